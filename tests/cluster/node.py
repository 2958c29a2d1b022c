"""A real node for the control plane: containerd, kubelet and scheduler, with the pods in a network of their own.

    with ControlPlane(folder, address=network.host) as cluster, Node(cluster, network): ...

Needs root, and Debian's containerd, runc, containernetworking-plugins, iproute2 and iptables. Everything happens in a
network namespace that the test makes: pods reach the machine at `network.host`, the machine reaches pods by their own
addresses. There is no kube-proxy and no DNS: the API server's Service is one rewriting rule, other Services have an
address and nobody behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.cluster.binaries import MODULE, NODE, CannotBuild, binaries
from tests.cluster.control_plane import KUBERNETES_SERVICE_IP, ControlPlane

NAME = "node-1"
READY_TIMEOUT_S = 120.0
CNI_PLUGINS = Path("/usr/lib/cni")
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "ctr", "ip", "iptables", "nsenter")
SANDBOX_IMAGE = "localhost/pause:1"


def why_not() -> str | None:
    """What is missing for a node on this machine; None: nothing."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not (CNI_PLUGINS / "bridge").exists():
        missing.append("containernetworking-plugins")
    return f"not installed: {', '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class Network:
    """A namespace with one cable to the machine: `host` at our end, `node` at the other, pods in `pods`."""

    name: str
    host: str
    node: str
    pods: str

    @property
    def command(self) -> list[str]:
        """Prefix of what runs in it. Only the network is another one: mounts must be seen by kubelet and containerd."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Make one that no other test has at this moment."""
    made, near, far = _claim()
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", made.name)
        _run("ip", "addr", "add", f"{made.host}/24", "dev", near)
        _run("ip", "link", "set", near, "up")
        _run("ip", "route", "add", made.pods, "via", made.node)
        inside = ["ip", "-n", made.name]
        _run(*inside, "addr", "add", f"{made.node}/24", "dev", far)
        _run(*inside, "link", "set", far, "up")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "route", "add", "default", "via", made.host)
        _run(*made.command, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        yield made
    finally:
        subprocess.run(["ip", "link", "delete", near], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", made.name], capture_output=True, check=False)


def _claim() -> tuple[Network, str, str]:
    """The first free number: the kernel lets only one of two who ask make a namespace of that name."""
    for number in range(100):
        # From the range for benchmarks of RFC 2544, which no machine is in by chance.
        made = Network(f"sluice-{number}", f"198.18.{number}.1", f"198.18.{number}.2", f"198.19.{number}.0/24")
        done = subprocess.run(["ip", "netns", "add", made.name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return made, f"sluice{number}h", f"sluice{number}n"
        if "File exists" not in done.stderr:
            raise CannotBuild(f"a network namespace cannot be made: {done.stderr.strip()}")
    raise CannotBuild("a hundred networks of earlier tests are left: ip netns list")


class Node:
    """See the module. Started, it is Ready."""

    def __init__(self, cluster: ControlPlane, network: Network) -> None:
        self._cluster = cluster
        self._network = network
        # Short: containerd's socket paths may have 107 characters.
        self._folder = Path("/run") / f"{network.name}-node"
        self._state = cluster.folder / "node"

    def start(self) -> None:
        built = binaries(NODE)
        for folder in (self._folder, self._state / "cni", self._state / "kubelet"):
            folder.mkdir(parents=True, exist_ok=True)
        # What kube-proxy would do, for the one Service that pods need to have.
        where = f"{self._cluster.address}:{self._cluster.port}"
        for chain in ("PREROUTING", "OUTPUT"):
            _run(
                *self._network.command, "iptables", "-t", "nat", "-A", chain, "-d", KUBERNETES_SERVICE_IP,
                "-p", "tcp", "--dport", "443", "-j", "DNAT", "--to-destination", where,
            )  # fmt: skip
        self._write_containerd()
        self._write_cni()
        inside = self._network.command
        self._cluster.launch(
            "containerd", Path("/usr/bin/containerd"), "--config", str(self._state / "containerd.toml"), prefix=inside
        )
        self._wait("containerd", lambda: self.ctr("version") is not None)
        self.load_image(self._pause_image())
        self._cluster.launch(
            "kube-scheduler",
            built["kube-scheduler"],
            f"--kubeconfig={self._cluster.kubeconfig('kube-scheduler')}",
            "--leader-elect=false",
            "--secure-port=0",
        )
        self._write_kubelet()
        self._cluster.launch(
            "kubelet",
            built["kubelet"],
            f"--config={self._state / 'kubelet.json'}",
            f"--kubeconfig={self._cluster.kubeconfig('kubelet')}",
            f"--root-dir={self._state / 'kubelet'}",
            f"--hostname-override={NAME}",
            f"--node-ip={self._network.node}",
            prefix=inside,
        )
        self._wait("the node", self._is_ready)

    def stop(self) -> None:
        """End pods, kubelet and containerd, with the networks and mounts that they leave."""
        for name in ("kubelet", "kube-scheduler"):
            self._cluster.stop_process(name)
        namespaces = self._pod_networks()
        deadline = time.monotonic() + 10
        while (left := (self.ctr("tasks", "list", "-q") or "").split()) and time.monotonic() < deadline:
            for task in left:
                self.ctr("tasks", "delete", "-f", task)
        self._cluster.stop_process("containerd")
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if mount.startswith((f"{self._folder}/", f"{self._state}/")):
                subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pod_networks(self) -> set[str]:
        """The namespaces of our pods, by what containerd says: the machine may have others of the same kind."""
        found = set()
        for container in (self.ctr("containers", "list", "-q") or "").split():
            spec = json.loads(self.ctr("containers", "info", container) or "{}").get("Spec") or {}
            for namespace in (spec.get("linux") or {}).get("namespaces") or ():
                path = Path(namespace.get("path") or "")
                if namespace.get("type") == "network" and path.name.startswith("cni-"):
                    found.add(path.name)
        return found

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def load_image(self, archive: Path) -> None:
        """Make the images of a docker or OCI archive known to the node."""
        answer = self.ctr("images", "import", "--no-unpack", str(archive))
        assert answer is not None, f"{archive} could not be imported"

    def ctr(self, *arguments: str) -> str | None:
        """The output of containerd's own client, None where it failed."""
        command = ["ctr", "-a", str(self._folder / "containerd.sock"), "-n", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.stdout if done.returncode == 0 else None

    # ----------------------------------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        try:
            node = self._cluster.request("GET", f"/api/v1/nodes/{NAME}")
        except OSError:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))

    def _wait(self, what: str, is_there: Any) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not is_there():
            if time.monotonic() > deadline:
                logs = {
                    name: self._cluster.log(name)[-1500:]
                    for name in ("containerd", "kubelet")
                    if (self._cluster.folder / f"{name}.log").exists()
                }
                raise AssertionError(f"{what} was not there after {READY_TIMEOUT_S:.0f} s: {logs}")
            time.sleep(0.2)

    def _write_containerd(self) -> None:
        (self._state / "containerd.toml").write_text(
            f"""version = 2
root = "{self._state}/containerd"
state = "{self._folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{self._folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{SANDBOX_IMAGE}"
restrict_oom_score_adj = true
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{self._state}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
        )

    def _write_cni(self) -> None:
        bridge = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods0",
                    "isGateway": True,
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": self._network.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": str(self._state / "addresses"),
                    },
                }
            ],
        }
        (self._state / "cni" / "pods.conflist").write_text(json.dumps(bridge))

    def _write_kubelet(self) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._folder}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(self._cluster.ca_file)}},
            "authorization": {"mode": "AlwaysAllow"},
            "readOnlyPort": 0,
            "healthzPort": 0,
            "resolvConf": "",
            "syncFrequency": "5s",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi"},
            "makeIPTablesUtilChains": False,
            "shutdownGracePeriod": "0s",
        }
        (self._state / "kubelet.json").write_text(json.dumps(config))

    def _pause_image(self) -> Path:
        """An image of one static program, made by hand: no registry has to be reached for it."""
        program = self._state / "pause"
        environment = {**os.environ, "CGO_ENABLED": "0"}
        go = shutil.which("go") or "/usr/local/go/bin/go"
        done = subprocess.run(
            [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), "./pause"],
            cwd=MODULE, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise CannotBuild(f"building the pause program failed: {done.stderr[-500:]}")
        return scratch_image(program, SANDBOX_IMAGE, self._state / "pause.tar")


def scratch_image(program: Path, name: str, archive: Path) -> Path:
    """A docker archive of an image that holds one program, and runs it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        entry = tarfile.TarInfo(program.name)
        entry.size, entry.mode = program.stat().st_size, 0o755
        files.addfile(entry, io.BytesIO(program.read_bytes()))
    content = layer.getvalue()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as image:
        for part, data in (("config.json", config), ("layer.tar", content), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(part)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))
    return archive


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
