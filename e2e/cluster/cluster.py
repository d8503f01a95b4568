"""A cluster of one's own, in two sizes: what is started, in which order, and what tests may do to it."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from e2e.cluster import versions
from e2e.cluster.api import Api, ApiError, Object
from e2e.cluster.client import PATIENCE, Client, schedulable
from e2e.cluster.control_plane import Addresses, ControlPlane
from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.etcd import Etcd
from e2e.cluster.folder import Folder
from e2e.cluster.images import write_busybox_images
from e2e.cluster.network import Network
from e2e.cluster.node import ANCHOR, Node, check_possible
from e2e.cluster.processes import Process, start, until
from e2e.cluster.programs import SYSTEM_PATH, install_debian_packages, programs

_CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
_CNI_PLUGINS = Path("/usr/lib/cni")  # where Debian has them
_OURS = ("nvidia.com/", "run.ai/", "tessera.dev/")  # labels and annotations of layouts and devices


class Cluster(Client):
    """A control plane: etcd, API server, controllers, scheduler. Nodes are objects (`add_node`)."""

    needs: ClassVar[Sequence[str]] = versions.CONTROL_PLANE

    def __init__(self, folder: Folder, *, owned: bool) -> None:
        self.folder = folder
        self._owned = owned
        self._api_was_away = False
        self._running: dict[str, Process] = {}
        self._commands: dict[str, Sequence[str | Path]] = {}  # of every program that was started
        self._programs = programs(self.needs)
        self._plane = ControlPlane(folder.path, self._addresses())
        tls = ssl.create_default_context(cafile=self._plane.authority.files.certificate)
        tls.load_cert_chain(self._plane.admin.certificate, self._plane.admin.key)
        kubectl, cache = self._programs["kubectl"], folder.path / "kubectl-cache"
        super().__init__(self._plane.kubeconfig, kubectl, cache, Api(self._plane.addresses.url, tls))

    @classmethod
    def start(cls, name: str, *, owned: bool = True) -> Self:
        """Start a cluster and wait until it can be used; `owned`: it ends with this process, come what may."""
        cls.prepare()
        folder = Folder(name)
        folder.create(owned=owned)
        try:
            cluster = cls(folder, owned=owned)
            cluster._bring_up()
        except BaseException as error:
            if isinstance(error, ClusterError):
                error.add_note(folder.log_tails())
            folder.remove()
            raise
        return cluster

    @classmethod
    def prepare(cls) -> None:
        """See to it that everything is there before anything is started; raises `Unavailable` where it cannot be."""
        if not os.uname().sysname == "Linux":
            raise Unavailable("the cluster runs on Linux")
        programs(cls.needs)

    def stop(self) -> None:
        """End every process, and leave nothing behind."""
        self.api.close()
        self.folder.remove()

    def stop_apiserver(self) -> None:
        """Stop the API server; `start_apiserver` brings it back.

        It answers what it was asked, but would wait a minute for the watches that others hold: that is cut short.
        """
        self._api_was_away = True
        self._running.pop("kube-apiserver").stop(grace=1)

    def start_apiserver(self, *options: str) -> None:
        """Start the API server, and wait until it is ready."""
        self._spawn("kube-apiserver", [*self._plane.api_server(self._programs["kube-apiserver"]), *options])
        self._wait_for_apiserver()

    def restart_apiserver(self, *options: str) -> None:
        """Stop the API server, start it again, and wait until it is ready."""
        self.stop_apiserver()
        self.start_apiserver(*options)

    def back_up_etcd(self, target: Path) -> None:
        """Copy what etcd has into a folder that does not exist yet. API server and etcd stand still meanwhile."""
        for name in ("kube-apiserver", "etcd"):
            self.signal(name, signal.SIGSTOP)
        try:
            shutil.copytree(self._plane.etcd_data, target)
        finally:
            for name in ("etcd", "kube-apiserver"):
                self.signal(name, signal.SIGCONT)

    def restore_etcd(self, source: Path) -> None:
        """Put a backup in the place of what etcd has now, and wait until the API server is ready.

        As `etcdutl snapshot restore --bump-revision --mark-compacted` does it: revisions go on from the newest one that
        clients have seen, and what lies before is compacted. So clients notice, and list everything again.
        """
        etcd = Etcd(self._plane.addresses.etcd_port)
        newest = etcd.revision()
        self.stop_apiserver()
        self._running.pop("etcd").stop()
        shutil.rmtree(self._plane.etcd_data)
        shutil.copytree(source, self._plane.etcd_data)
        self._spawn("etcd", self._commands["etcd"])
        self._until(etcd.is_ready, "etcd is ready")
        etcd.raise_revision(newest)
        self.start_apiserver()

    def signal(self, program: str, number: int) -> None:
        """Send a signal to one of the cluster's programs."""
        self._running[program].signal(number)

    def runs(self, program: str) -> bool:
        """Whether one of the cluster's programs runs."""
        return program in self._running and self._running[program].alive

    def settle(self) -> None:
        """See to it that a test finds every program at work; raises with the names of those that had ended.

        Controllers that lost their API server wait, up to a minute: they start anew.
        """
        ended = [name for name in self._commands if not self.runs(name)]
        for name in ended:
            self._spawn(name, self._commands[name])
        if ended:
            self._wait_for_apiserver()
        if self._api_was_away:
            self._restart_clients()
            self._api_was_away = False
        if ended:
            raise ClusterError(f"{' and '.join(ended)} had ended: started again for the next test")

    def _restart_clients(self) -> None:
        """Start controllers and scheduler anew."""
        for name in _CONTROLLERS:
            self._running.pop(name).stop(grace=1)
        self._start_controllers()

    def _start_controllers(self) -> None:
        manager, scheduler = _CONTROLLERS
        self._spawn(manager, self._plane.controller_manager(self._programs[manager]))
        self._spawn(scheduler, self._plane.scheduler(self._programs[scheduler]))

    def _bring_up(self) -> None:
        self._spawn("etcd", self._plane.etcd(self._programs["etcd"]))
        self._spawn("kube-apiserver", self._plane.api_server(self._programs["kube-apiserver"]))
        self._while_apiserver_starts()
        self._wait_for_apiserver()
        self._start_controllers()
        self._when_apiserver_is_ready()
        self.wait_for_service_account()

    def _addresses(self) -> Addresses:
        return Addresses.choose("10.96.0.0/24")

    def _while_apiserver_starts(self) -> None:
        """Room for what needs no API server yet."""

    def _when_apiserver_is_ready(self) -> None:
        """Room for what does."""

    def _spawn(self, name: str, command: Sequence[str | Path]) -> None:
        # containerd looks for its shim in the PATH.
        folders = dict.fromkeys(str(path.parent) for path in self._programs.values())
        self._commands[name] = command
        self._running[name] = start(
            name,
            command,
            folder=self.folder.path,
            log=self.folder.logs / f"{name}.log",
            # Nothing else of the caller's environment: a proxy in it is not meant for these addresses.
            environment={"PATH": ":".join([*folders, SYSTEM_PATH]), "HOME": "/"},
            die_with_parent=self._owned,
        )

    def _wait_for_apiserver(self) -> None:
        def ready() -> bool:
            try:
                return self.api.text("/readyz") == "ok"
            except (OSError, ApiError):
                return False

        self._until(ready, "the API server is ready")

    def _until(self, condition: Callable[[], object], what: str) -> None:
        """Ask until the condition holds, but not if a program that should run has ended."""

        def holds() -> bool:
            for name, process in self._running.items():
                if not process.alive:
                    raise ClusterError(f"{name} has ended")
            return bool(condition())

        until(holds, timeout=PATIENCE, what=what)


class ClusterWithNode(Cluster):
    """A control plane and one real node: kubelet and containerd, as root."""

    needs: ClassVar[Sequence[str]] = (*versions.CONTROL_PLANE, *versions.NODE)

    @classmethod
    def prepare(cls) -> None:
        """As for a control plane; also root, and what the distribution has."""
        check_possible()
        install_debian_packages()
        super().prepare()

    @property
    def node_name(self) -> str:
        """The real node's name."""
        return self._node.name

    @property
    def node_address(self) -> str:
        """Where pods and the API server reach the node, and what runs on it with the host's network."""
        return self._node.network.node_address

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's folder; inside the node also /var/lib/kubelet. Plugins register in `device-plugins`."""
        return self._node.kubelet_dir

    @property
    def cdi_dir(self) -> Path:
        """Where containerd reads CDI specifications; inside the node also /var/run/cdi."""
        return self._node.cdi_dir

    def stop_kubelet(self) -> None:
        """Stop the kubelet; containers go on."""
        self._running.pop("kubelet").stop()

    def start_kubelet(self) -> None:
        """Start the kubelet."""
        self._spawn("kubelet", self._node.kubelet(self._programs["kubelet"], self._kubelet_kubeconfig))

    def settle(self) -> None:
        """The kubelet also answers again."""
        try:
            super().settle()
        finally:
            self._until(lambda: self._kubelet_knows(set()), "the kubelet answers")

    def _restart_clients(self) -> None:
        """The kubelet too: it would compare what it reports with a node object that is a minute old."""
        super()._restart_clients()
        self.restart_kubelet()

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start it again, and wait until it knows its pods again, as far as they were not deleted meanwhile."""
        before = self._pods_of_node()
        self.stop_kubelet()
        self.start_kubelet()
        self._until(
            lambda: self._kubelet_knows(before & self._pods_of_node()), "the kubelet knows its pods again"
        )

    def _pods_of_node(self) -> set[str]:
        listed = self.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self.node_name}")
        return {
            pod["metadata"]["uid"] for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]
        }

    def forget_devices(self) -> None:
        """Take from the node what device plugins of earlier tests left: a webhook or a kubelet may still count on it.

        The kubelet shows a resource for five minutes after its plugin has gone, as capacity that is not allocatable;
        when it starts again, it does not.
        """
        path = f"/api/v1/nodes/{self.node_name}"
        node = self.api.get(path)
        status, found = node["status"], node["metadata"]
        gone = {
            section: {name: None for name in found.get(section, {}) if name.startswith(_OURS)}
            for section in ("labels", "annotations")
        }
        self.api.patch(path, {"metadata": gone})
        if _left(status):
            self.restart_kubelet()
            self.wait_for_node(self.node_name, lambda one: not _left(one["status"]), what="no device is left")

    def load_image(self, archive: Path) -> None:
        """Make an archive's images known on the node; pods use them with `imagePullPolicy: Never`."""
        self._node.load_image(self._programs["ctr"], archive)

    def run_on_node(self, *command: str | Path) -> str:
        """Run a program inside the node's mounts and processes, and return what it prints."""
        return subprocess.run(
            self._node.inside(*command), capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def start_on_node(
        self, name: str, *command: str | Path, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start a program inside the node's mounts and processes; it ends with the cluster at the latest. Its log is with the others."""
        return start(
            name,
            self._node.inside(*command),
            folder=self.folder.path,
            log=self.folder.logs / f"{name}.log",
            environment={"PATH": SYSTEM_PATH, "HOME": "/", **(environment or {})},
            die_with_parent=self._owned,
        )

    def _addresses(self) -> Addresses:
        network = Network.claim(self.folder.path)
        self._node = Node(self.folder.path, f"node-{self.folder.name}", network)
        return Addresses.choose(network.service_range, api=(network.api_address, 443))

    def _while_apiserver_starts(self) -> None:
        node = self._node
        serving = self._plane.authority.issue(
            "kubelet", node.name, hosts=[node.name, node.network.node_address]
        )
        client = self._plane.authority.issue(
            "kubelet-client", f"system:node:{node.name}", group="system:nodes"
        )
        self._kubelet_kubeconfig = self._plane.write_kubeconfig("kubelet.kubeconfig", client)
        runc = Path(shutil.which("runc", path=SYSTEM_PATH) or "runc")
        node.prepare(serving, self._plane.authority.files.certificate, runc=runc, cni=_CNI_PLUGINS)
        self._spawn(ANCHOR, node.anchor())
        self._until(node.anchor_pid, "the node's namespaces are set up")
        self._spawn("containerd", node.containerd(self._programs["containerd"]))
        archives = write_busybox_images(node.images)
        self._until(lambda: _accepts(node.socket), "containerd accepts connections")
        for archive in archives:
            self.load_image(archive)

    def _when_apiserver_is_ready(self) -> None:
        self.start_kubelet()
        self.wait_for_node(self.node_name, schedulable, what="the node is ready")

    def _kubelet_knows(self, pods: set[str]) -> bool:
        try:
            listed = self.api.get(f"/api/v1/nodes/{self.node_name}/proxy/pods")
        except ApiError:
            return False
        return pods <= {pod["metadata"]["uid"] for pod in listed.get("items") or []}


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _left(status: Object) -> bool:
    """Whether the kubelet shows devices of a plugin that has gone."""
    allocatable = status["allocatable"]
    return any(
        count != "0" and allocatable.get(name, "0") == "0"
        for name, count in status["capacity"].items()
        if "/" in name
    )
