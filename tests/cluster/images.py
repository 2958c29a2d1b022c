"""The project's images, built from their Dockerfiles without a registry: mmdebstrap makes a base, buildah the rest.

The base is made once into the cache, the layers with the locked packages once for each lock file; what is left for
each session is copying our own code. `SLUICE_TEST_IMAGES=<folder>` with `dispatcher.tar` and `canary.tar` (docker
archives of `localhost/sluice/<name>:test`) is used instead where it is set.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from orchestration.local.kafka_jars import cache_home
from tests.cluster.binaries import CannotBuild, Progress, say

ROOT = Path(__file__).parents[2]
DOCKERFILES = {"dispatcher": "dispatcher_image/Dockerfile", "canary": "canary_image/Dockerfile"}
PACKAGES = "python3-minimal,python3-venv,libpython3-stdlib,ca-certificates"
SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
BASE = "localhost/sluice-test-base"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_TIMEOUT_S = 900


def image_archives(folder: Path, progress: Progress = say, *, build: bool = True) -> dict[str, Path]:
    """A docker archive of each image, as `localhost/sluice/<name>:test`.

    Raises:
        CannotBuild: buildah or mmdebstrap is missing, the base was never made and is not to be built, or a build
        failed (with its last lines).
    """
    given = os.environ.get("SLUICE_TEST_IMAGES")
    if given:
        return {name: Path(given) / f"{name}.tar" for name in DOCKERFILES}
    missing = [program for program in ("buildah", "mmdebstrap") if shutil.which(program) is None]
    if missing:
        raise CannotBuild(f"not installed: {', '.join(missing)}; or set SLUICE_TEST_IMAGES")
    store = cache_home() / "images"
    store.mkdir(parents=True, exist_ok=True)
    archives = {}
    with (store / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _succeeds(store, "inspect", "--type", "image", BASE):
            if not build:
                raise CannotBuild("their base was never made here; `pytest tests/cluster` does so in minutes")
            progress("making the base of the images (once)")
            _make_base(store)
        for name, dockerfile in DOCKERFILES.items():
            progress(f"building the image of {name}")
            tag = f"localhost/sluice/{name}:test"
            _buildah(store, "build", "--layers", "--build-arg", f"BASE={BASE}", "-f", dockerfile, "-t", tag, ".")
            archives[name] = folder / f"{name}.tar"
            _buildah(store, "push", "-q", tag, f"docker-archive:{archives[name]}:{tag}")
    return archives


def _make_base(store: Path) -> None:
    archive = store / "base.tar"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(archive), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"mmdebstrap: {done.stderr.strip()[-500:]}")
    container = _buildah(store, "from", "scratch")
    _buildah(store, "add", container, str(archive), "/")
    # Whom this machine trusts, so that a build behind a proxy of its own reaches the package index.
    _buildah(store, "copy", container, str(AUTHORITIES), str(AUTHORITIES))
    trust = [word for key in ("PIP_CERT", "SSL_CERT_FILE") for word in ("--env", f"{key}={AUTHORITIES}")]
    _buildah(store, "config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", *trust, container)
    _buildah(store, "commit", "-q", container, BASE)
    _buildah(store, "rm", container)
    archive.unlink()


def _buildah(store: Path, *arguments: str) -> str:
    done = _run(store, *arguments)
    if done.returncode != 0:
        raise CannotBuild(f"buildah {arguments[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def _succeeds(store: Path, *arguments: str) -> bool:
    return _run(store, *arguments).returncode == 0


def _run(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ["--root", str(store / "storage"), "--runroot", str(store / "run"), "--storage-driver", "overlay"]
    return subprocess.run(
        ["buildah", *where, *arguments],
        cwd=ROOT, env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
        capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
