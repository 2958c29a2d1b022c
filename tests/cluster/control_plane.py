"""A real Kubernetes control plane on loopback: etcd, API server, controller manager. No root, no Docker, no node.

    with ControlPlane(folder) as cluster:
        cluster.kubeconfig()                  # path of a kubeconfig of the administrator
        cluster.kubeconfig("team-a")          # … of a user without any right but those that a test binds
        cluster.request("GET", "/api/v1/namespaces")

Certificates are a test's own, made by openssl; users are static tokens. Every process ends with the thread that
started it (tether.py), even when that is killed: start and restart from the main thread. Pods are made by the
controllers and stay pending, because there is no node: `kubelet.PretendedKubelet` says of them what a kubelet would.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from orchestration.local.ports import free_port
from orchestration.local.tether import tethered
from tests.cluster.binaries import CONTROL_PLANE, CannotBuild, Progress, binaries, say

READY_TIMEOUT_S = 90.0  # ready after 5 s on two idle cores
STOP_TIMEOUT_S = 10.0
ADMIN = "sluice-test-admin"
IDENTITIES = {
    ADMIN: (ADMIN, "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", "system:kube-controller-manager"),
    "kube-scheduler": ("system:kube-scheduler", "system:kube-scheduler"),
    "kubelet": ("system:node:node-1", "system:nodes"),
}
"""Name and group of those who are there from the start."""
SERVICE_RANGE = "10.96.0.0/16"
SERVER_NAMES = "DNS:localhost,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
KUBERNETES_SERVICE_IP = "10.96.0.1"


class Answered(OSError):
    """The API server answered, but not with success: its status code, and its own words."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.message = str(json.loads(text).get("message")) if text.startswith("{") else text
        super().__init__(f"{code}: {self.message}")


class ControlPlane:
    """See the module.

    Args:
        folder: For certificates, data and logs.
        address: Where the API server listens.
        users: Get a token each, and no rights.
        progress: Called with a line for people whenever something takes time.
        build: Whether programs that were never built here are built now, which takes minutes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        users: Sequence[str] = (),
        progress: Progress = say,
        build: bool = True,
    ) -> None:
        self.folder = folder
        self.address = address
        self.port = free_port()
        self._etcd_port, self._etcd_peer_port = free_port(), free_port()
        self._tokens = {user: secrets.token_hex(16) for user in (*IDENTITIES, *users)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._programs: Mapping[str, Path] = {}
        self._progress = progress
        self._build = build

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    def start(self) -> None:
        """Start everything; return when the API server is ready and the default service account exists.

        Raises:
            CannotBuild: a program cannot be built here, or openssl is missing.
        """
        self._programs = binaries(CONTROL_PLANE, self._progress, build=self._build)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_certificates()
        self._write_tokens()
        try:
            self.start_etcd()
            self.start_api_server()
            self.wait_until_ready()
            self._launch(
                "kube-controller-manager",
                f"--kubeconfig={self.kubeconfig('kube-controller-manager')}",
                f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
                f"--root-ca-file={self.ca_file}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--secure-port=0",
                # A node that went silent is noticed by tests in seconds, not in minutes.
                "--node-monitor-grace-period=20s",
            )
            self._wait_for(
                "the default service account",
                lambda: self._exists("/api/v1/namespaces/default/serviceaccounts/default"),
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process; nothing is left, whatever they do."""
        # Killed: an API server that is asked would wait for every watch to end, and its data is thrown away.
        for name in reversed(list(self._processes)):
            self.stop_process(name, signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- parts, for tests that break them ----------------------------------------------------------------------------

    def start_etcd(self) -> None:
        self._launch(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{self._etcd_peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self._etcd_peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{self._etcd_peer_port}",
            "--unsafe-no-fsync",  # a test's data need not survive a power cut
            "--log-level=warn",
        )

    def start_api_server(self, *flags: str) -> None:
        """On the same port and data each time."""
        self._launch(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self.address}",
            f"--secure-port={self.port}",
            # The address of the `kubernetes` Service must not be loopback; where there is no node nobody asks for it.
            "--endpoint-reconciler-type=none"
            if self.address.startswith("127.")
            else f"--advertise-address={self.address}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--client-ca-file={self.ca_file}",
            f"--kubelet-client-certificate={self.folder / 'server.crt'}",
            f"--kubelet-client-key={self.folder / 'server.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.folder / 'service-accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'service-accounts.key'}",
            "--shutdown-delay-duration=0s",
            *flags,
        )

    def stop_process(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart_api_server(self, *flags: str) -> None:
        self.stop_process("kube-apiserver", signal.SIGKILL)
        self.start_api_server(*flags)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        self._wait_for("the API server", lambda: self._answers("/readyz"))

    def launch(self, name: str, program: Path, *flags: str, prefix: Sequence[str] = ()) -> None:
        """Start one more program that ends with this control plane's process."""
        self._programs = {**self._programs, name: program}
        self._launch(name, *flags, prefix=prefix)

    # -- access ------------------------------------------------------------------------------------------------------

    def token(self, user: str = ADMIN) -> str:
        return self._tokens[user]

    def kubeconfig(self, user: str = ADMIN, *, token: str | None = None, namespace: str = "default") -> Path:
        """A kubeconfig file for a user, or for anybody who has a token."""
        path = self.folder / f"{user.replace(':', '_')}.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": user, "user": {"token": token or self._tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": namespace}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
        timeout_s: float = 30.0,
    ) -> dict[str, Any]:
        """One plain request, without any of the code under test. Raises `Answered` for anything but success."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {token or self._tokens[ADMIN]}",
                "Content-Type": content_type,
                "Accept": accept,
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=self._tls()) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Answered(error.code, error.read().decode(errors="replace")) from error
        return json.loads(text) if text.startswith(b"{") else {"text": text.decode()}

    def apply(
        self, document: dict[str, Any], *, manager: str = "test", dry_run: bool = False, token: str | None = None
    ) -> dict[str, Any]:
        """Server-side apply of any object of the kinds that tests use."""
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.request(
            "PATCH", object_path(document) + query, document, content_type="application/apply-patch+yaml", token=token
        )

    def token_of(self, namespace: str, service_account: str) -> str:
        """A fresh token of a service account, as its pods get it."""
        answer = self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
        )
        return str(answer["status"]["token"])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def _answers(self, path: str) -> bool:
        try:
            self.request("GET", path, timeout_s=2.0)
        except OSError:
            return False
        return True

    _exists = _answers

    def _wait_for(self, what: str, is_there: Any) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not is_there():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise AssertionError(f"{name} ended with {process.returncode}: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{what} was not there after {READY_TIMEOUT_S:.0f} s: {self._last_words('kube-apiserver')}"
                )
            time.sleep(0.1)

    def _last_words(self, name: str) -> str:
        lines = self.log(name).splitlines()
        telling = [line for line in lines if line.startswith(("E", "F")) or "rror" in line] or lines
        return " | ".join(telling[-4:])

    def _launch(self, name: str, *flags: str, prefix: Sequence[str] = ()) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                tethered([*prefix, str(self._programs[name]), *flags]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={key: value for key, value in os.environ.items() if not key.startswith(("ETCD", "KUBE"))},
            )

    def _write_tokens(self) -> None:
        lines = []
        for user, token in self._tokens.items():
            name, group = IDENTITIES.get(user, (user, "sluice-test"))
            lines.append(f'{token},{name},{user},"{group}"\n')
        path = self.folder / "tokens.csv"
        path.write_text("".join(lines))
        path.chmod(0o600)

    def _make_certificates(self) -> None:
        if shutil.which("openssl") is None:
            raise CannotBuild("openssl is not installed; it makes the API server's certificates")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
        self._openssl(
            "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=sluice-test-ca",
            "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
        )  # fmt: skip
        # The API server shows the same certificate to kubelets, where its group may do everything.
        names = f"{SERVER_NAMES},IP:127.0.0.1,IP:{KUBERNETES_SERVICE_IP},IP:{self.address}"
        self._openssl(
            "req", "-x509", *key, "-keyout", "server.key", "-out", "server.crt", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-subj", "/O=system:masters/CN=kube-apiserver", "-addext", f"subjectAltName={names}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth,clientAuth",
        )  # fmt: skip
        self._openssl(
            "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "service-accounts.key"
        )

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"openssl {arguments[0]}: {done.stderr}"


CLUSTER_WIDE = {
    "Namespace",
    "Node",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def object_path(document: Mapping[str, Any]) -> str:
    """Where an object lives in the API."""
    group_version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    root = f"/api/{group_version}" if "/" not in group_version else f"/apis/{group_version}"
    scope = "" if kind in CLUSTER_WIDE else f"/namespaces/{metadata.get('namespace', 'default')}"
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"{root}{scope}/{plural.lower()}/{metadata['name']}"
