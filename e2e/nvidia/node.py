"""A node of NVIDIA's operator: its programs on the cluster's real node, over the stand-in driver.

The programs are NVIDIA's. What an operator and Kubernetes do around them is done here, in a thread:

- DaemonSets: device plugin and GPU Feature Discovery run as long as the node's label `nvidia.com/gpu.deploy.…` is `true`;
  mig-manager takes them away while it works, and brings them back.
- Node Feature Discovery: what GPU Feature Discovery writes to its file becomes labels of the node. They stay while it is away.
- The kubelet: the ConfigMap's key is mig-manager's file, some seconds later.
- mig-manager's pod: it starts anew when the ClusterPolicy names another ConfigMap.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from e2e.chart import go_module
from e2e.cluster import ApiError, ClusterWithNode, Object, program, versions
from e2e.cluster.client import PATIENCE
from e2e.cluster.node import check_possible
from e2e.cluster.programs import install_debian_packages, programs
from e2e.nvidia.driver import Driver
from e2e.nvidia.machine import Machine
from tessera.protocol import yaml

if TYPE_CHECKING:
    from e2e.cluster.processes import Process

CONFIG_MAP: Final = "custom-mig-parted-config"
CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
POLICIES: Final = "/apis/nvidia.com/v1/clusterpolicies"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEPLOY: Final = "nvidia.com/gpu.deploy."
_OPERATOR: Final = (
    "github.com/NVIDIA/gpu-operator",
    "v1.11.1",
)  # has the ClusterPolicy; newer ones cannot be fetched
_BY_LABEL: Final = ("device-plugin", "gpu-feature-discovery")
_LOOK_EVERY: Final = 0.1
_BACK_OFF: Final = 1.0  # seconds until a program that has ended is started again
_BUS: Final = """\
<busconfig>
  <type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>
  <policy context="default"><allow user="*"/><allow own="*"/><allow send_type="*"/><allow receive_type="*"/></policy>
</busconfig>
"""


def prepare() -> None:
    """See to it that everything is there; may build for minutes. Raises `Unavailable` where it cannot be."""
    check_possible()
    programs(versions.NVIDIA)
    install_debian_packages(versions.NVIDIA_PACKAGES, what="NVIDIA's mig-manager")


def default_config() -> str:
    """The configuration that NVIDIA ships with mig-parted: `all-1g.18gb`, `all-balanced` and so on."""
    module = versions.module_of("nvidia-mig-parted")
    file = go_module(module.path, module.version) / "deployments/systemd/config-default.yaml"
    return file.read_text()


class NvidiaNode:
    """The cluster's node, with NVIDIA's programs on it, until the block ends."""

    def __init__(
        self,
        cluster: ClusterWithNode,
        driver: Driver,
        folder: Path,
        *,
        strategy: str = "mixed",
        config: str = "",
        config_map: str = CONFIG_MAP,
        sync_delay: float = 0.0,
    ) -> None:
        """`sync_delay`: seconds until the file follows the ConfigMap; on a real node a minute or two."""
        self.cluster, self.driver, self.folder = cluster, driver, folder
        self.config_map, self.sync_delay = config_map, sync_delay
        self._strategy = strategy
        self._config = config or default_config()
        self._machine = Machine(folder / "machine", driver)
        self._running: dict[str, Process] = {}
        self._labels: set[str] = set()
        self._seen_version, self._seen_at, self._written = "", 0.0, ""
        self._file, self._features = folder / "config.yaml", folder / "features"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._operate, name="operator")
        self._undo = contextlib.ExitStack()
        self.namespace = ""
        self.error: BaseException | None = None

    # ---- what tests ask

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        found: dict[str, str] = self._node()["metadata"]["labels"]
        return found

    @property
    def devices(self) -> dict[str, int]:
        """What pods can have: `nvidia.com/mig-2g.35gb` and so on."""
        return _devices(self._node())

    def label(self, **labels: str | None) -> None:
        """Set labels of `nvidia.com`: `mig_config="all-balanced"`."""
        changes = {f"nvidia.com/{name.replace('_', '.')}": value for name, value in labels.items()}
        self._patch(changes)

    def wait_for_state(self, state: str, *, config: str | None = None, timeout: float = PATIENCE) -> None:
        """Wait for what mig-manager says, with a configuration if one is named."""
        self.wait(
            lambda node: (
                node["metadata"]["labels"].get(STATE) == state
                and config in (None, node["metadata"]["labels"].get(CONFIG))
            ),
            what=f"mig-manager says {state}",
            timeout=timeout,
        )

    def wait_for_devices(self, devices: Mapping[str, int], *, timeout: float = PATIENCE) -> None:
        """Wait until pods can have exactly these."""
        self.wait(
            lambda node: _devices(node) == devices, what=f"{dict(devices)} allocatable", timeout=timeout
        )

    def wait(self, condition: object, *, what: str, timeout: float = PATIENCE) -> None:
        """Wait until the node is as wanted."""
        assert callable(condition)

        def holds(node: Object) -> bool:
            if self.error is not None:
                raise self.error
            return bool(condition(node))

        self.cluster.wait_for_node(self.cluster.node_name, holds, what=what, timeout=timeout)

    def log(self, name: str = "mig-manager") -> str:
        """What a program has logged."""
        return (self.cluster.folder.logs / f"nvidia-{name}.log").read_text()

    # ---- what an operator does

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.cluster.forget_devices)
            undo.enter_context(self._operator_objects())
            self._patch(
                {"nvidia.com/gpu.present": "true"}
                | {f"{_DEPLOY}{name}": "true" for name in ("mig-manager", *_BY_LABEL)}
            )
            undo.callback(self._end_all)
            self._start_mig_manager()
            self._thread.start()
            undo.callback(self._thread.join)
            undo.callback(self._stop.set)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()
        if error is None and self.error is not None:
            raise self.error

    @contextlib.contextmanager
    def _operator_objects(self) -> Iterator[None]:
        """The ClusterPolicy that names the ConfigMap, and the ConfigMap."""
        api = self.cluster.api
        [definition] = yaml.load_all(
            (go_module(*_OPERATOR) / "config/crd/bases/nvidia.com_clusterpolicies.yaml").read_bytes(),
            "ClusterPolicy",
        )
        with contextlib.ExitStack() as undo:
            definition.pop("status", None)
            api.create(_DEFINITIONS, definition)
            undo.callback(self.cluster.wait_gone, _DEFINITIONS, definition["metadata"]["name"])
            undo.callback(api.delete, f"{_DEFINITIONS}/{definition['metadata']['name']}")
            self.cluster.wait(self._has_policies, what="ClusterPolicies can be made")
            self.namespace = undo.enter_context(self.cluster.namespace("gpu-operator"))
            api.create(
                f"/api/v1/namespaces/{self.namespace}/configmaps",
                {"metadata": {"name": self.config_map}, "data": {"config.yaml": self._config}},
            )
            self._write_config(self._config)
            required = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
                "required"
            ]
            spec: Object = {name: {} for name in required}
            spec |= {
                "operator": {"defaultRuntime": "containerd"},
                "mig": {"strategy": self._strategy},
                "migManager": {"enabled": True, "config": {"name": self.config_map}},
            }
            api.create(
                POLICIES,
                {
                    "apiVersion": "nvidia.com/v1",
                    "kind": "ClusterPolicy",
                    "metadata": {"name": "cluster-policy"},
                    "spec": spec,
                },
            )
            api.patch(
                f"{POLICIES}/cluster-policy/status",
                {"status": {"state": "ready", "namespace": self.namespace}},
            )
            yield

    def _has_policies(self) -> bool:
        with contextlib.suppress(ApiError):
            return bool(self.cluster.api.get(POLICIES))
        return False

    def _operate(self) -> None:
        try:
            while not self._stop.wait(_LOOK_EVERY):
                self._follow_deploy_labels()
                self._follow_policy()
                self._follow_config_map()
                self._follow_features()
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.error = error
        finally:  # what this thread has started, the kernel kills with it, but not what that has started
            self._end_all()

    def _follow_deploy_labels(self) -> None:
        labels = self.labels
        for name, start in zip(_BY_LABEL, (self._start_plugin, self._start_discovery), strict=True):
            wanted = labels.get(f"{_DEPLOY}{name}") == "true"
            process = self._running.get(name)
            if wanted and process is None:
                start()
            elif process is not None and not process.alive:  # as it does where a card is lost
                self._running.pop(name)
                self._stop.wait(_BACK_OFF)
            elif not wanted and process is not None:
                self._end(name)

    def _follow_policy(self) -> None:
        policy = self.cluster.api.get(f"{POLICIES}/cluster-policy")
        name = policy["spec"]["migManager"]["config"]["name"]
        if name != self.config_map:
            found = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
            self.config_map = name
            self._write_config(found["data"]["config.yaml"])
            self.restart_mig_manager()

    def _follow_config_map(self) -> None:
        found = self.cluster.api.find(f"/api/v1/namespaces/{self.namespace}/configmaps/{self.config_map}")
        if found is None:
            return
        if found["metadata"]["resourceVersion"] != self._seen_version:
            self._seen_version, self._seen_at = found["metadata"]["resourceVersion"], time.monotonic()
        if time.monotonic() - self._seen_at >= self.sync_delay:
            self._write_config(found["data"]["config.yaml"])

    def _write_config(self, text: str) -> None:
        if text != self._written:
            partial = self._file.with_suffix(".partial")
            partial.write_text(text)
            partial.replace(self._file)
            self._written = text

    def _follow_features(self) -> None:
        try:
            lines = self._features.read_text().splitlines()
        except FileNotFoundError:
            return
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        present = self.labels
        gone = self._labels - set(found)
        if gone or any(present.get(name) != value for name, value in found.items()):
            self._patch({**dict.fromkeys(gone), **found})
        self._labels = set(found)

    # ---- the programs

    def _start_mig_manager(self) -> None:
        bus, socket = self.folder / "bus.conf", self.cluster.folder.path / "dbus"
        bus.write_text(_BUS.format(socket))
        self._start("dbus", "dbus-daemon", f"--config-file={bus}", "--nofork", "--nopidfile", bare=True)
        self.cluster.wait(socket.exists, what="the bus listens")
        self._start(
            "mig-manager",
            program("nvidia-mig-manager"),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--node-name={self.cluster.node_name}",
            f"--config-file={self._file}",
            "--reconfigure-script=/bin/true",
            f"--default-gpu-clients-namespace={self.namespace}",
            "--host-root-mount=",
            DBUS_SYSTEM_BUS_ADDRESS=f"unix:path={socket}",
        )

    def restart_mig_manager(self) -> None:
        """End it and start it again, as a new pod of its DaemonSet would."""
        self._end("mig-manager")
        self._end("dbus")
        (self.cluster.folder.path / "dbus").unlink(missing_ok=True)
        self._start_mig_manager()

    def _start_plugin(self) -> None:
        self._start(
            "device-plugin",
            program("nvidia-device-plugin"),
            f"--mig-strategy={self._strategy}",
            f"--driver-root-ctr-path={self.driver.root}",
        )

    def _start_discovery(self) -> None:
        self._start(
            "gpu-feature-discovery",
            program("gpu-feature-discovery"),
            f"--mig-strategy={self._strategy}",
            "--use-node-feature-api=false",
            "--no-timestamp",
            f"--output-file={self._features}",
            "--machine-type-file=/nonexistent",
            "--sleep-interval=5s",
        )

    def _start(self, name: str, *command: str | Path, bare: bool = False, **variables: str) -> None:
        places = [
            self.driver.root / "usr/bin",
            program("nvidia-mig-parted").parent,
            "/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        environment = {**self.driver.variables, "PATH": ":".join(map(str, places)), **variables}
        self._running[name] = self.cluster.start_on_node(
            f"nvidia-{name}",
            *(command if bare else self._machine.seen_by(*command)),
            environment=environment,
        )

    def _end(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.stop()

    def _end_all(self) -> None:
        for name in list(self._running):
            self._end(name)

    # ----

    def _node(self) -> Object:
        return self.cluster.api.get(f"/api/v1/nodes/{self.cluster.node_name}")

    def _patch(self, labels: Mapping[str, str | None]) -> None:
        self.cluster.api.patch(
            f"/api/v1/nodes/{self.cluster.node_name}", {"metadata": {"labels": dict(labels)}}
        )


def _devices(node: Object) -> dict[str, int]:
    allocatable = node["status"].get("allocatable", {})
    return {name: int(n) for name, n in allocatable.items() if name.startswith("nvidia.com/") and n != "0"}
