"""Certificates of a small authority, made by openssl once a session."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Authority:
    """`.crt` and `.key` of `ca`, `other`, and of `localhost`, `elsewhere`, `client`, which `ca` has signed."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-days", "3650", "-subj", "/CN=authority")
    openssl("req", "-x509", *ec, "-keyout", "other.key", "-out", "other.crt", "-days", "30", "-subj", "/CN=other")
    for name, host, days in (
        ("localhost", "DNS:localhost,IP:127.0.0.1", 90),
        ("elsewhere", "DNS:elsewhere.example", 90),
        ("client", "DNS:client", 45),
    ):
        openssl("req", *ec, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text(f"subjectAltName={host}\n")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.crt", "-days", str(days), "-extfile", f"{name}.ext",
        )  # fmt: skip
    return Authority(folder)
