"""A real node, one program that hands out its devices, and everything that goes wrong around it."""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from e2e import dra
from e2e.bridge import bridge
from e2e.cluster import ApiError, ClusterWithNode, Object, pods_path
from e2e.cluster.errors import ClusterError
from e2e.command import Running

from stress.chaos import samples
from stress.chaos.churn import NAMESPACE, THREADS, Churn
from stress.chaos.clocks import HOUR, JumpingClock
from stress.chaos.schedule import Disturbance, Fault, Report

MOST_CHANGES: Final = 5  # of the node in a second, on average over the run
SETTLED: Final = 240.0  # seconds after the last fault in which everything must be usable again


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The cards of the node."""

    config: str  # of the program
    layouts: Sequence[str]  # the first one can be had as a whole when the faults end
    devices: Mapping[str, int]  # by profile: those of the first layout
    profiles: Sequence[str]  # that pods ask for
    environment: Mapping[str, str] = field(default_factory=dict)


SIMULATED: Final = Hardware(
    config="simulated:\n  product: Simulated H200-70GB\n  cards: 2\n  layout: 2g.20gb=2,3g.30gb=1\n",
    layouts=("2g.20gb=2,3g.30gb=1", "1g.10gb=7", "3g.30gb=2,1g.10gb=1", "2g.20gb=3,1g.10gb=1"),
    devices={"2g.20gb": 4, "3g.30gb": 2},
    profiles=("1g.10gb", "2g.20gb", "3g.30gb"),
)


@dataclass(slots=True)
class Figures:
    """What happened besides faults."""

    layouts: int = 0
    changes: int = 0  # of the node object
    memory_kib: list[int] = field(default_factory=list)  # of the program, every few seconds


class NodePart:
    """The device plugin, or the DRA driver with the bridge, on simulated cards."""

    kind: ClassVar[str] = "plugin"

    def __init__(self, cluster: ClusterWithNode, folder: Path, report: Report) -> None:
        self.cluster = cluster
        self.report = report
        self.random = random.Random(report.seed)
        self.hardware = self.make_hardware(folder)
        self.figures = Figures()
        self.over = threading.Event()
        self.state = folder / "state"  # a small disk of its own, which can be full or read-only
        self.cdi = folder / "cdi"  # the node's CDI folder as the program sees it
        self.locks = folder / "locks"
        self.log = folder / f"{self.kind}.log"
        self._folder = folder
        self._clock = JumpingClock(folder / "clock")
        # A kubelet gives a device plugin's device to the next pod as soon as the API server has forgotten the last one, which
        # a forced deletion does while its container still runs. So only claims see forced deletions.
        by_force = self.kind == "dra"
        self._churn = Churn(cluster, self.hardware.profiles, self.locks, self.over, by_force=by_force)
        config = folder / "devices.yaml"
        config.write_text(self.hardware.config)
        self._options = (
            "dra-driver" if self.kind == "dra" else "device-plugin",
            f"--config={config}",
            f"--node-name={cluster.node_name}",
            f"--kubelet-dir={cluster.kubelet_dir}",
            f"--cdi-dir={self.cdi}",
            f"--state-dir={self.state}",
            f"--kubeconfig={cluster.kubeconfig}",
            "--log-format=text",
        )

    def make_hardware(self, folder: Path) -> Hardware:
        """The cards. What they keep is in the folder."""
        return SIMULATED

    # The program and its folders

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The folders, mounted so that they can be spoilt, and the program."""
        self.locks.mkdir()
        with ExitStack() as stack:
            stack.enter_context(mounted(self.cdi, "--bind", self.cluster.cdi_dir))
            self.program = self.start_program()
            stack.callback(lambda: self.program.stop())  # noqa: PLW0108 # the program that runs then
            yield

    def start_program(self) -> Running:
        """The program, with the clock that may jump."""
        environment = {**os.environ, **self.hardware.environment, **self._clock.environment}
        return Running(*self._options, log=self.log, environment=environment)

    # Faults

    def faults(self) -> list[Fault]:
        """The table of faults."""
        return [
            Fault("kill the program", self.killed, 0.0, 3.0),
            Fault("stop the program for a while", self._stopped, 0.5, 6.0),
            Fault("restart the kubelet", self._kubelet_restarted, 0.0, 0.5),
            Fault("restart the API server", self._api_server_away, 0.0, 4.0),
            Fault("a slow API server", self._api_server_slow, 0.0, 0.5),
            Fault("truncated state", lambda: self._spoilt(lambda text: text[: len(text) // 2]), 0.0, 1.0),
            Fault(
                "corrupted state", lambda: self._spoilt(lambda text: text.replace(b'"', b"\0", 3)), 0.0, 1.0
            ),
            Fault("a full disk", self._disk_full, 1.0, 5.0),
            Fault("a read-only state folder", self._state_read_only, 1.0, 6.0),
            Fault("a read-only CDI folder", self._cdi_read_only, 1.0, 6.0),
            Fault("a new layout", self._relayouted, 0.0, 0.5),
            Fault("a clock that jumps an hour ahead", lambda: self._clock.jumped(HOUR), 2.0, 8.0),
            Fault("a clock that jumps an hour back", lambda: self._clock.jumped(-HOUR), 2.0, 8.0),
        ]

    @contextmanager
    def killed(self) -> Iterator[None]:
        """The program is killed, and started again."""
        self.program.kill()
        yield
        self.program = self.start_program()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        self.program.process.send_signal(signal.SIGSTOP)
        yield
        self.program.process.send_signal(signal.SIGCONT)

    @contextmanager
    def _kubelet_restarted(self) -> Iterator[None]:
        with contextlib.suppress(ClusterError):  # it may take its time while other things fail
            self.cluster.restart_kubelet()
        yield

    @contextmanager
    def _api_server_away(self) -> Iterator[None]:
        self.cluster.stop_apiserver()
        yield
        self.cluster.start_apiserver()
        with contextlib.suppress(ClusterError):  # it waits for pods that may be gone by now
            self.cluster.settle()

    @contextmanager
    def _api_server_slow(self) -> Iterator[None]:
        for _ in range(4):
            self.cluster.signal("kube-apiserver", signal.SIGSTOP)
            self.rest(0.2, 1.5)
            self.cluster.signal("kube-apiserver", signal.SIGCONT)
            self.rest(0.1, 0.3)
        yield

    @contextmanager
    def _spoilt(self, change: Callable[[bytes], bytes]) -> Iterator[None]:
        """Change a file of the state while the program is down, as a crash in the middle of a write would."""
        self.program.kill()
        files = sorted(path for path in self.state.rglob("*.json") if path.is_file())
        if files:
            chosen = self.random.choice(files)
            chosen.write_bytes(change(chosen.read_bytes()))
        self.program = self.start_program()
        yield

    @contextmanager
    def _disk_full(self) -> Iterator[None]:
        with self.filled_disk():
            if self.random.random() < 0.5:
                self.change_layout()
            yield
            if self.random.random() < 0.5:
                with self.killed():
                    self.rest(0.0, 2.0)

    @contextmanager
    def filled_disk(self) -> Iterator[None]:
        """Inside the block, the disk of the state has no room."""
        filler = self.state / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def _state_read_only(self) -> Iterator[None]:
        """DRA driver and cutter keep a file open there, which forbids a remount: they are down at that moment."""
        with self._down_for_remount():
            run("mount", "-o", "remount,ro", self.state)
        if self.random.random() < 0.5:
            self.change_layout()
        yield
        with self._down_for_remount():
            run("mount", "-o", "remount,rw", self.state)

    @contextmanager
    def _down_for_remount(self) -> Iterator[None]:
        if self.kind == "plugin":
            yield
            return
        with self.killed():
            yield

    @contextmanager
    def _cdi_read_only(self) -> Iterator[None]:
        run("mount", "-o", "remount,ro,bind", self.cdi)
        if self.random.random() < 0.5:
            self.change_layout()
        yield
        run("mount", "-o", "remount,rw,bind", self.cdi)

    @contextmanager
    def _relayouted(self) -> Iterator[None]:
        self.change_layout()
        yield

    def change_layout(self) -> None:
        """Ask for another layout, by the node's annotation."""
        self.ask_for(self.random.choice(self.hardware.layouts))

    def ask_for(self, layout: str) -> None:
        """Ask for this layout. An API server that is away does not hear of it."""
        body = {"metadata": {"annotations": {"run.ai/mig.config": layout}}}
        with contextlib.suppress(ApiError, OSError):
            self.cluster.api.patch(f"/api/v1/nodes/{self.cluster.node_name}", body)
            self.figures.layouts += 1

    def rest(self, least: float, most: float) -> None:
        """Wait for a while in the middle of a fault."""
        time.sleep(self.random.uniform(least, most))

    # Promises

    def watch(self) -> None:
        """Look at what must hold, ten times a second."""
        version, measured = "", time.monotonic()
        while not self.over.wait(0.1):
            self.look()
            if time.monotonic() > measured + 2.0:
                measured = time.monotonic()
                if use := samples.read_use(self.program.process.pid):
                    self.figures.memory_kib.append(use.memory_kib)
            with contextlib.suppress(ApiError, OSError):
                node = self.cluster.api.get(f"/api/v1/nodes/{self.cluster.node_name}")["metadata"]
                managers = [
                    manager
                    for manager in node.get("managedFields") or ()
                    if manager.get("subresource") != "status"
                ]
                latest = json.dumps(managers)
                self.figures.changes += latest != version
                version = latest

    def look(self) -> None:
        """Look once at what must hold at any time."""
        self.report.checks["no device is in two containers"] += 1
        for path in self.locks.glob("twice-*"):
            self.report.add(self.kind, f"a device is in two containers, {path.name}: {path.read_text()}")

    def judge(self, seconds: float) -> None:
        """What must hold over the whole time."""
        for promise in (
            "logs are bounded, without tracebacks",
            "the node is seldom changed",
            "memory is flat",
        ):
            self.report.checks[promise] += 1
        complaints = samples.complaints_about_log(self.log, seconds)
        if self.figures.changes > MOST_CHANGES * seconds:
            complaints.append(f"the node was changed {self.figures.changes} times in {seconds:.0f} s")
        complaints += samples.complaints_about_memory("program", self.figures.memory_kib)
        for complaint in complaints:
            self.report.add(self.kind, complaint)

    def use_everything(self) -> None:
        """After the faults: the whole of a known layout can be had, and the program rests when nothing happens."""
        self.report.checks["after the faults everything can be had"] += 1
        self.cluster.settle()
        dra.remove_pods(self.cluster, NAMESPACE)
        self.ask_for(self.hardware.layouts[0])

        def in_place(node: Object) -> bool:
            labels = node["metadata"]["labels"]
            counts = {name: labels.get(f"nvidia.com/mig-{name}.count") for name in self.hardware.devices}
            expected = {name: str(number) for name, number in self.hardware.devices.items()}
            return labels.get("nvidia.com/mig.config.state") == "success" and counts == expected

        self.cluster.wait_for_node(self.cluster.node_name, in_place, timeout=SETTLED)
        self._rest_when_idle()
        wanted = [name for name, number in self.hardware.devices.items() for _ in range(number)]
        for number, profile in enumerate(wanted):
            self.cluster.api.create(pods_path(NAMESPACE), self._churn.pod(f"last-{number}", profile))

        def all_run() -> bool:
            pods = self.cluster.api.get(pods_path(NAMESPACE))["items"]
            return all(pod["status"].get("phase") == "Running" for pod in pods)

        self.cluster.wait(all_run, timeout=SETTLED, what="a pod on each device after the faults")
        dra.remove_pods(self.cluster, NAMESPACE)

    def _rest_when_idle(self) -> None:
        self.report.checks["nothing is busy when nothing happens"] += 1
        before = samples.read_use(self.program.process.pid)
        time.sleep(5.0)
        after = samples.read_use(self.program.process.pid)
        if before and after:
            shares = samples.processor_shares({self.kind: before}, {self.kind: after}, 5.0)
            for complaint in samples.complaints_about_idle(shares):
                self.report.add(self.kind, complaint)

    def run(self, minutes: float, least: int) -> None:
        """Break things for so many minutes, then see that everything can be used."""
        self.cluster.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        started = time.monotonic()
        with self.prepared(), ThreadPoolExecutor(THREADS + 1) as threads:
            work = [threads.submit(self._churn.run, number) for number in range(THREADS)]
            work.append(threads.submit(self.watch))
            try:
                Disturbance(self.kind, self.faults(), self.report, self.random).run(minutes, least)
            finally:
                self.over.set()
            for task in work:
                task.result()
            self.judge(time.monotonic() - started)
            try:
                self.use_everything()
            except ClusterError as error:
                self.report.add(self.kind, f"after the faults: {error}")
        figures = self.figures
        self.report.say(
            self.kind,
            f"{self._churn.pods} pods made, {self._churn.ran} seen running; {figures.layouts} layouts; "
            f"the node changed {figures.changes} times; memory {samples.memory_span(figures.memory_kib)}",
        )


class DraPart(NodePart):
    """The DRA driver, with the webhook and the controller that turn requests into claims."""

    kind = "dra"

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with super().prepared():
            self.program.wait_for_log("registered with the kubelet")
            with bridge(self.cluster, NAMESPACE, self._folder) as self.bridge:
                yield

    def faults(self) -> list[Fault]:
        return [*super().faults(), Fault("kill the controller", self._controller_killed, 0.0, 3.0)]

    @contextmanager
    def _controller_killed(self) -> Iterator[None]:
        self.bridge.controller.kill()
        yield
        self.bridge.restart_controller()


@contextmanager
def mounted(path: Path, *options: object) -> Iterator[None]:
    """Mount something on a folder that does not exist yet."""
    path.mkdir()
    run("mount", *options, path)
    try:
        yield
    finally:
        run("umount", "--lazy", path)


def run(*command: object) -> None:
    """Run a program that prints nothing of interest."""
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
