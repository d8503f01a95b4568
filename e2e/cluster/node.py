"""A real node: containerd and kubelet, as root, shut off from the rest of the machine.

Both run in a mount and process namespace of the node's own. Its first process is the *anchor*: when the anchor ends, the
kernel ends every process in the namespace (shims and containers included) and undoes every mount, so that nothing
can stay behind. What is written to `/run`, `/var/lib` and `/var/log` inside goes with it too. Three folders of the
cluster's folder are shown at the places where people expect them:

    CLUSTER/kubelet   at /var/lib/kubelet     (device-plugins/ in it)
    CLUSTER/cdi       at /var/run/cdi
    CLUSTER/pod-logs  at /var/log/pods

The network is a bridge in the machine's own namespace: pods get addresses of its range and reach the API server at the
first address of the service range, which the bridge also has. There is no kube-proxy and no DNS.
"""

import contextlib
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.images import PAUSE, architecture
from e2e.cluster.pki import KeyPair

#: The anchor's name among the cluster's processes.
ANCHOR = "node"

_CGROUPS = Path("/sys/fs/cgroup")

# The kubelet sets these for the whole machine; inside the namespace it sees copies.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)

_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12  # linux/capability.h


@dataclass(frozen=True, slots=True)
class Network:
    """The n-th network: a bridge, a range for pods and one for Services, out of what is set aside for tests (RFC 2544)."""

    index: int

    @property
    def bridge(self) -> str:
        """The bridge's name; whoever manages to create it owns the network."""
        return f"tessera{self.index}"

    @property
    def pod_range(self) -> str:
        """Addresses of pods."""
        return f"198.18.{self.index}.0/24"

    @property
    def node_address(self) -> str:
        """The node itself, and the pods' way out."""
        return f"198.18.{self.index}.1"

    @property
    def service_range(self) -> str:
        """Addresses of Services."""
        return f"198.19.{self.index}.0/24"

    @property
    def api_address(self) -> str:
        """The `kubernetes` Service, where the API server itself listens."""
        return f"198.19.{self.index}.1"

    @classmethod
    def claim(cls) -> "Network":
        """The first network that nobody has."""
        for index in range(256):
            network = cls(index)
            if _ip("link", "add", network.bridge, "type", "bridge").returncode == 0:
                for arguments in (
                    ("addr", "add", f"{network.node_address}/24", "dev", network.bridge),
                    ("addr", "add", f"{network.api_address}/32", "dev", network.bridge),
                    ("link", "set", network.bridge, "up"),
                ):
                    if (done := _ip(*arguments)).returncode:
                        network.release()
                        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
                return network
            if not Path(f"/sys/class/net/{network.bridge}").exists():
                break
        raise Unavailable("no network bridge can be made here (`ip link add … type bridge` fails)")

    def release(self) -> None:
        """Remove the bridge; the pods' ends of it go with their namespaces."""
        _ip("link", "delete", self.bridge)


class Node:
    """The files of one node in the cluster's folder, and the command lines of its programs."""

    def __init__(self, folder: Path, name: str, network: Network) -> None:
        self.folder = folder
        self.name = name
        self.network = network
        self.kubelet_dir = folder / "kubelet"
        self.cdi_dir = folder / "cdi"
        self.pod_logs = folder / "pod-logs"
        self.images = folder / "images"
        self.socket = folder / "containerd.sock"
        self._anchor_file = folder / "anchor"
        self._cgroup = f"tessera-{folder.name}"

    def prepare(self, serving: KeyPair, client_ca: Path, *, runc: Path, cni: Path) -> None:
        """Write every configuration file."""
        for path in (self.kubelet_dir, self.cdi_dir, self.pod_logs, self.images, self.folder / "cni"):
            path.mkdir()
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self.cni_config(), indent=2))
        (self.folder / "containerd.toml").write_text(self.containerd_config(runc=runc, cni=cni))
        (self.folder / "kubelet.json").write_text(
            json.dumps(self.kubelet_config(serving, client_ca), indent=2)
        )
        for hierarchy in _cgroup_hierarchies():
            (hierarchy / self._cgroup).mkdir(exist_ok=True)

    def anchor(self) -> list[str | Path]:
        """The namespaces' first process; it also takes in orphans."""
        sysctls = self.folder / "sysctl"
        script = f"""
            read -r outer_pid rest </proc/self/stat  # /proc is still the machine's: this is the id that others know
            mount -t proc proc /proc
            mount --make-rshared /
            mkdir -p {sysctls}
            for name in {" ".join(_SYSCTLS)}; do
                test -e /proc/sys/$name || continue
                copy={sysctls}/$(echo $name | tr / _)
                cat /proc/sys/$name >$copy
                mount --bind $copy /proc/sys/$name
            done
            for place in /run /var/log; do mount -t tmpfs -o mode=755 tmpfs $place; done
            mkdir -p /run/var-lib/upper /run/var-lib/work
            layers=lowerdir=/var/lib,upperdir=/run/var-lib/upper,workdir=/run/var-lib/work
            mount -t overlay -o $layers overlay /var/lib  # what is there stays to be seen: homes, for one
            mkdir -p /run/cdi /run/lock /var/lib/kubelet /var/log/pods
            mount --bind {self.cdi_dir} /run/cdi
            mount --bind {self.kubelet_dir} /var/lib/kubelet
            mount --bind {self.pod_logs} /var/log/pods
            echo $outer_pid >{self._anchor_file}.new
            mv {self._anchor_file}.new {self._anchor_file}
            while :; do sleep 86400 & wait $!; done
        """
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-ec", script]

    def anchor_pid(self) -> int | None:
        """The anchor's process id, once the namespaces are set up."""
        with contextlib.suppress(FileNotFoundError):
            return int(self._anchor_file.read_text())
        return None

    def inside(self, *command: str | Path) -> list[str | Path]:
        """A command, run inside the node's namespaces."""
        pid = self.anchor_pid()
        if pid is None:
            raise ClusterError("the node's namespaces are not set up")
        return ["nsenter", f"--target={pid}", "--mount", "--pid", "--", *command]

    def containerd(self, program: Path) -> list[str | Path]:
        """The container runtime."""
        return self.inside(program, f"--config={self.folder / 'containerd.toml'}")

    def kubelet(self, program: Path, kubeconfig: Path) -> list[str | Path]:
        """The kubelet."""
        return self.inside(
            program,
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.kubelet_dir}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.network.node_address}",
        )

    def image_import(self, ctr: Path, archive: Path) -> list[str | Path]:
        """The command that makes a docker-archive's images known to the kubelet."""
        address = f"--address={self.socket}"
        platform = f"--platform=linux/{architecture()}"
        return self.inside(
            ctr, address, "--namespace=k8s.io", "images", "import", "--local", platform, archive
        )

    def cni_config(self) -> dict[str, object]:
        """Pods on the bridge, and their way out by it. The bridge is ours: the plugin need not configure the machine."""
        bridge = {
            "type": "bridge",
            "bridge": self.network.bridge,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.network.pod_range, "gateway": self.network.node_address}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "1.0.0", "name": "tessera", "plugins": [bridge]}

    def containerd_config(self, *, runc: Path, cni: Path) -> str:
        """The configuration of containerd: version 3, containerd 2's."""
        return f"""version = 3
root = "{self.folder / "containerd"}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{self.socket}"

[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["/var/run/cdi"]
disable_apparmor = true
# Without CAP_SYS_RESOURCE the OOM score cannot be lowered, and runc would give up.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{cni}"]
conf_dir = "{self.folder / "cni"}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
"""

    def kubelet_config(self, serving: KeyPair, client_ca: Path) -> dict[str, object]:
        """The kubelet's configuration: quick to report, and untroubled by a full disk or swap."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.network.node_address,
            "healthzBindAddress": self.network.node_address,
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(client_ca)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": "/var/log/pods",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "oomScoreAdj": 0,
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "10s",
            "syncFrequency": "5s",
            "shutdownGracePeriod": "0s",
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "maxPods": 200,
        }

    def clean_up(self) -> None:
        """After the anchor's end: what the kernel does not undo by itself."""
        for hierarchy in _cgroup_hierarchies():
            _remove_cgroup(hierarchy / self._cgroup)
        self.network.release()


def check_possible() -> None:
    """Whether this machine can run a node at all; says why not."""
    if os.geteuid() != 0:
        raise Unavailable("a node needs root")
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    effective = int(status["CapEff"], 16)
    if not (effective >> _CAP_SYS_ADMIN & 1 and effective >> _CAP_NET_ADMIN & 1):
        raise Unavailable(
            "a node needs the capabilities to mount and to make network devices; this root has not"
        )
    if not any(os.access(hierarchy, os.W_OK) for hierarchy in _cgroup_hierarchies()):
        raise Unavailable("a node needs a writable /sys/fs/cgroup")


def _cgroup_hierarchies() -> list[Path]:
    """The roots of all control group hierarchies: one in version 2, one for each controller in version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove_cgroup(path: Path) -> None:
    """Remove a control group and those below it; the last process may take a moment to leave."""
    for folder, _, _ in os.walk(path, topdown=False):
        for attempt in range(50):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                break
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.02)
            else:
                break


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
