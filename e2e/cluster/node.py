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
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.images import PAUSE, architecture
from e2e.cluster.network import Network
from e2e.cluster.pki import KeyPair

#: The anchor's name among the cluster's processes.
ANCHOR = "node"
#: Where containerd keeps what the kubelet uses.
CONTAINERD_NAMESPACE = "k8s.io"

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
        self.cgroup = cgroup_of(folder)

    @classmethod
    def of(cls, folder: Path) -> "Node | None":
        """The node of a cluster that runs; None where it has none."""
        network = Network.of(folder)
        return cls(folder, f"node-{folder.name}", network) if network is not None else None

    def prepare(self, serving: KeyPair, client_ca: Path, *, runc: Path, cni: Path) -> None:
        """Write every configuration file."""
        for path in (self.kubelet_dir, self.cdi_dir, self.pod_logs, self.images, self.folder / "cni"):
            path.mkdir()
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self.cni_config(), indent=2))
        (self.folder / "containerd.toml").write_text(self.containerd_config(runc=runc, cni=cni))
        (self.folder / "kubelet.json").write_text(
            json.dumps(self.kubelet_config(serving, client_ca), indent=2)
        )
        cgroups.create(self.cgroup)

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

    def load_image(self, ctr: Path, archive: Path) -> str:
        """Make an archive's images known to the kubelet; what ctr says of them."""
        options = (f"--platform=linux/{architecture()}", f"--snapshotter={self._snapshotter()}")
        into = (f"--address={self.socket}", f"--namespace={CONTAINERD_NAMESPACE}")
        command = self.inside(ctr, *into, "images", "import", "--local", *options, archive.absolute())
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{archive} cannot be loaded: {done.stderr.strip()}")
        return done.stdout

    def _snapshotter(self) -> str:
        """How images are kept; inside a container there is no overlay on the container's own overlay."""
        kind = subprocess.run(
            ["stat", "--file-system", "--format=%T", self.folder], capture_output=True, check=True
        )
        return "native" if kind.stdout.strip() == b"overlayfs" else "overlayfs"

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

[plugins.'io.containerd.cri.v1.images']
snapshotter = "{self._snapshotter()}"

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
            "cgroupRoot": f"/{self.cgroup}",
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


def cgroup_of(folder: Path) -> str:
    """The control group of the node of the cluster in a folder."""
    return f"tessera-{folder.name}"


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
    if not cgroups.writable():
        raise Unavailable("a node needs a writable /sys/fs/cgroup")
