"""The programs of a Kubernetes control plane and node, built once from their Go modules into a cache.

Nothing is downloaded but source, through Go's module proxy; `go/go.sum` says exactly which. The cache folder
`~/.cache/sluice/kubernetes-<version>-<hash of go.sum>` holds one program a file, each put there by a rename when it is
complete; a second process that needs one meanwhile waits for the first. On two busy cores the API server took four
minutes to build, the others one or two each; Go's own cache makes a repeat fast.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestration.local.kafka_jars import cache_home

MODULE = Path(__file__).parent / "go"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")
NODE = ("kube-scheduler", "kubelet")
BUILD_TIMEOUT_S = 1500.0
TELL_EVERY_S = 15.0

Progress = Callable[[str], None]


class CannotBuild(Exception):
    """What is missing on this machine, in words for the one who runs the tests."""


def say(message: str) -> None:
    """To the terminal itself: pytest keeps what goes to stdout and stderr until a test fails."""
    (sys.__stderr__ or sys.stderr).write(f"\nkubernetes: {message}")
    (sys.__stderr__ or sys.stderr).flush()


def kubernetes_version() -> str:
    """As pinned in go.mod, without the v."""
    pinned = re.search(r"k8s\.io/kubernetes v([0-9.]+)", (MODULE / "go.mod").read_text())
    assert pinned, "go.mod names no version of k8s.io/kubernetes"
    return pinned[1]


def binaries(names: Iterable[str] = CONTROL_PLANE, progress: Progress = say, *, build: bool = True) -> dict[str, Path]:
    """The programs by name; built first where the cache does not hold them and `build` says so.

    Raises:
        CannotBuild: not in the cache and not to be built, no Go on this machine, or the build failed (its last lines).
    """
    version = kubernetes_version()
    sources = hashlib.sha256((MODULE / "go.sum").read_bytes()).hexdigest()[:8]
    folder = cache_home() / f"kubernetes-{version}-{sources}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in names}
    for name, path in paths.items():
        if not path.exists():
            if not build:
                raise CannotBuild(f"{name} was never built here; `python -m tests.cluster.binaries` does so in minutes")
            with _locked(folder / ".lock", progress):
                if not path.exists():
                    _build(name, path, version, progress)
    return paths


def _build(name: str, path: Path, version: str, progress: Progress) -> None:
    go = shutil.which("go") or ("/usr/local/go/bin/go" if Path("/usr/local/go/bin/go").exists() else None)
    if go is None:
        raise CannotBuild("Go is not installed (https://go.dev/dl, or apt install golang): it builds the API server")
    major, minor, _ = version.split(".")
    # Without these a client sees v0.0.0 and takes the server for one that is too old for it.
    stamp = "-X k8s.io/component-base/version.git{}={} -X k8s.io/client-go/pkg/version.git{}={}"
    values = (("Version", f"v{version}"), ("Major", major), ("Minor", minor), ("TreeState", "clean"))
    flags = " ".join(stamp.format(key, value, key, value) for key, value in values)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}.") as workplace:
        built = Path(workplace) / name
        # One package at a time and after everybody else: a build must not make the machine's other tests time out.
        command = [go, "build", "-p=1", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(built), PACKAGES[name]]
        log = Path(workplace) / "log"
        started = time.monotonic()
        with log.open("wb") as output:
            build = subprocess.Popen(
                ["nice", "-n", "15", *command], cwd=MODULE, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
            )  # fmt: skip
        try:
            while build.poll() is None:
                waited = time.monotonic() - started
                if waited > BUILD_TIMEOUT_S:
                    raise CannotBuild(f"building {name} took longer than {BUILD_TIMEOUT_S:.0f} s")
                if int(waited / TELL_EVERY_S) != int((waited - 1) / TELL_EVERY_S):
                    progress(f"building {name} {version} (once), {waited:.0f} s")
                time.sleep(1)
        finally:
            if build.poll() is None:
                build.kill()
                build.wait()
        if build.returncode != 0:
            words = log.read_text(errors="replace").strip().splitlines()[-5:]
            raise CannotBuild(f"building {name} failed: {' | '.join(words)}")
        built.replace(path)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """The kernel frees the lock when its holder ends, however it ends."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is building; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for built_name, built_path in binaries(PACKAGES).items():
        print(built_name, built_path)
