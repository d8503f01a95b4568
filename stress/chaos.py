"""Ten bad minutes for a real node: seeded random faults while pods and layouts come and go, and invariants checked throughout.

    make chaos                                            the device plugin, then the DRA driver with the bridge, ten minutes each
    python -m stress.chaos plugin --minutes 2 --seed 7    one of them, shorter, as seed 7 has it

A seed fixes which faults come, in which order, and what each one hits. When exactly a process is hit depends on the machine.
What must hold: no device is in two containers at once; no program writes more than a bounded number of log lines and of changes to
its node; a pod that was given a device has it; and when the faults end, everything that the last layout says can be had again.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from e2e import dra
from e2e.bridge import bridge
from e2e.cluster import ApiError, ClusterWithNode, Object, pods_path
from e2e.cluster.errors import ClusterError
from e2e.cluster.programs import install_debian_packages
from e2e.cluster.versions import DebianPackage
from e2e.command import Running

NAMESPACE: Final = "chaos"
LAYOUTS: Final = ("2g.20gb=2,3g.30gb=1", "1g.10gb=7", "3g.30gb=2,1g.10gb=1", "2g.20gb=3,1g.10gb=1")
PROFILES: Final = ("1g.10gb", "2g.20gb", "3g.30gb")
MOST_LINES: Final = 40  # of log that a program may write in a second, on average over the run
MOST_CHANGES: Final = 5  # of the node in a second, on average over the run
SETTLED: Final = 180.0  # seconds after the last fault in which everything must be usable again
CHURN: Final = 4  # threads that make and delete pods
# Each container writes its name into its device's file and reads it back: two that live at once see each other.
SCRIPT: Final = """
    for device in $(echo $NVIDIA_VISIBLE_DEVICES | tr , ' '); do
        while :; do
            echo $HOSTNAME >/locks/$device
            sleep 0.1
            read -r found </locks/$device
            test "$found" = "$HOSTNAME" || echo "$HOSTNAME $found" >/locks/twice-$device
        done &
    done
    trap exit TERM
    wait
"""


@dataclass(slots=True)
class Figures:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    pods: int = 0
    ran: int = 0
    layouts: int = 0
    changes: int = 0  # of the node object
    looks: int = 0


class Chaos:
    """One node, one program that hands out its devices, and everything that goes wrong."""

    def __init__(self, cluster: ClusterWithNode, kind: str, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.kind = kind
        self.random = random.Random(seed)
        self.figures = Figures()
        self.over = threading.Event()
        self.state = folder / "state"  # a small disk of its own, which can be full or read-only
        self.cdi = folder / "cdi"  # the node's CDI folder as the program sees it
        self.locks = folder / "locks"
        self._folder = folder
        self._wrong: list[str] = []
        config = folder / "devices.yaml"
        config.write_text(
            "simulated:\n  product: Simulated H200-70GB\n  cards: 2\n  layout: 2g.20gb=2,3g.30gb=1\n"
        )
        self._options = (
            "device-plugin" if kind == "plugin" else "dra-driver",
            f"--config={config}",
            f"--node-name={cluster.node_name}",
            f"--kubelet-dir={cluster.kubelet_dir}",
            f"--cdi-dir={self.cdi}",
            f"--state-dir={self.state}",
            f"--kubeconfig={cluster.kubeconfig}",
            "--log-format=text",
        )
        self.log = folder / f"{kind}.log"
        self.faults: dict[str, Callable[[], None]] = {
            "kill the program": self._kill,
            "stop the program for a while": self._pause,
            "restart the kubelet": self._restart_kubelet,
            "restart the API server": self._restart_apiserver,
            "a slow API server": self._slow_apiserver,
            "truncated state": lambda: self._spoil(lambda text: text[: len(text) // 2]),
            "corrupted state": lambda: self._spoil(lambda text: text.replace(b'"', b"\x00", 3)),
            "a full disk": self._full_disk,
            "a read-only state folder": lambda: self._read_only(self.state),
            "a read-only CDI folder": lambda: self._read_only(self.cdi),
            "a new layout": self._layout,
            "a wrong clock": self._wrong_clock,
        }
        if kind == "dra":
            self.faults["kill the controller"] = self._kill_controller

    # The program and its folders

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The folders, mounted so that they can be spoilt, and the program."""
        self.locks.mkdir()
        with ExitStack() as stack:
            stack.enter_context(_mounted(self.cdi, "--bind", self.cluster.cdi_dir))
            self.program = self._start()
            stack.callback(lambda: self.program.stop())  # noqa: PLW0108 # the one that runs then
            if self.kind == "dra":
                self.program.wait_for_log("registered with the kubelet")
                self.bridge = stack.enter_context(bridge(self.cluster, NAMESPACE, self._folder))
            yield

    def _start(self, **environment: str) -> Running:
        return Running(*self._options, log=self.log, environment={**os.environ, **environment})

    # Faults

    def _kill(self) -> None:
        self.program.kill()
        self._rest(0.0, 3.0)
        self.program = self._start()

    def _kill_controller(self) -> None:
        self.bridge.controller.kill()
        self._rest(0.0, 3.0)
        self.bridge.restart_controller()

    def _pause(self) -> None:
        self.program.process.send_signal(signal.SIGSTOP)
        self._rest(0.5, 6.0)
        self.program.process.send_signal(signal.SIGCONT)

    def _restart_kubelet(self) -> None:
        with contextlib.suppress(ClusterError):  # it may take its time beside everything else
            self.cluster.restart_kubelet()

    def _restart_apiserver(self) -> None:
        self.cluster.stop_apiserver()
        self._rest(0.0, 4.0)
        self.cluster.start_apiserver()
        with contextlib.suppress(ClusterError):  # it waits for pods that may be gone by now
            self.cluster.settle()

    def _slow_apiserver(self) -> None:
        for _ in range(4):
            self.cluster.signal("kube-apiserver", signal.SIGSTOP)
            self._rest(0.2, 1.5)
            self.cluster.signal("kube-apiserver", signal.SIGCONT)
            self._rest(0.1, 0.3)

    def _spoil(self, change: Callable[[bytes], bytes]) -> None:
        """Change a file of the state while the program is down, as a crash in the middle of a write would."""
        self.program.kill()
        files = sorted(path for path in self.state.rglob("*.json") if path.is_file())
        if files:
            chosen = self.random.choice(files)
            chosen.write_bytes(change(chosen.read_bytes()))
        self.program = self._start()

    def _full_disk(self) -> None:
        filler = self.state / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        if self.random.random() < 0.5:
            self._layout()
        self._rest(1.0, 5.0)
        if self.random.random() < 0.5:
            self._kill()
        filler.unlink()

    def _read_only(self, path: Path) -> None:
        held = (
            self.kind == "dra" and path == self.state
        )  # it keeps a file open there, which forbids a remount
        if held:
            self.program.kill()
        _run("mount", "-o", "remount,ro" + (",bind" if path == self.cdi else ""), path)
        if held:
            self.program = self._start()
        if self.random.random() < 0.5:
            self._layout()
        self._rest(1.0, 6.0)
        if held:
            self.program.kill()
        _run("mount", "-o", "remount,rw" + (",bind" if path == self.cdi else ""), path)
        if held:
            self.program = self._start()

    def _wrong_clock(self) -> None:
        """The program starts again with a clock that is an hour off, and later with the right one."""
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        offset = self.random.choice(("-1h", "+1h"))
        self.program.kill()
        self.program = self._start(LD_PRELOAD=str(library), FAKETIME=offset, DONT_FAKE_MONOTONIC="1")
        self._rest(2.0, 8.0)
        self._kill()

    def _layout(self) -> None:
        body = {"metadata": {"annotations": {"run.ai/mig.config": self.random.choice(LAYOUTS)}}}
        with contextlib.suppress(ApiError, OSError):
            self.cluster.api.patch(f"/api/v1/nodes/{self.cluster.node_name}", body)
            self.figures.layouts += 1

    def _rest(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))

    # Pods

    def churn(self, number: int) -> None:
        """Make a pod, let it run, delete it; again until it is over."""
        chance, count = random.Random(f"{number}"), 0
        while not self.over.is_set():
            name, count = f"p{number}-{count}", count + 1
            with contextlib.suppress(ApiError, OSError):
                self.cluster.api.create(pods_path(NAMESPACE), self.pod(name, chance.choice(PROFILES)))
                self.figures.pods += 1
            until = time.monotonic() + chance.uniform(1.0, 20.0)
            ran = False
            while time.monotonic() < until and not self.over.is_set():
                with contextlib.suppress(ApiError, OSError):
                    status = self.cluster.api.get(f"{pods_path(NAMESPACE)}/{name}")["status"]
                    ran = ran or status.get("phase") == "Running"
                self.over.wait(0.3)
            self.figures.ran += ran
            # A kubelet gives a device plugin's device to the next pod as soon as the API server has forgotten the last
            # one, which a forced deletion does while its container still runs. So only claims see forced deletions.
            force = {"gracePeriodSeconds": "0"} if self.kind == "dra" and chance.random() < 0.5 else {}
            with contextlib.suppress(ApiError, OSError):
                self.cluster.api.delete(f"{pods_path(NAMESPACE)}/{name}", **force)

    def pod(self, name: str, profile: str) -> Object:
        """A pod that notices another one on its device."""
        grace = 1 if self.kind == "plugin" else 0
        body: Object = json.loads(
            dra.pod(name, script=SCRIPT, limits={f"nvidia.com/mig-{profile}": 1}, grace=grace)
        )
        body["spec"]["volumes"] = [{"name": "locks", "hostPath": {"path": str(self.locks)}}]
        body["spec"]["containers"][0]["volumeMounts"] = [{"name": "locks", "mountPath": "/locks"}]
        return body

    # Invariants

    def watch(self) -> None:
        """Look at what must hold, ten times a second."""
        version = ""
        while not self.over.wait(0.1):
            self.figures.looks += 1
            self._wrong += [f"{path.name}: {path.read_text()}" for path in self.locks.glob("twice-*")]
            with contextlib.suppress(ApiError, OSError):
                node = self.cluster.api.get(f"/api/v1/nodes/{self.cluster.node_name}")["metadata"]
                managers = [
                    one for one in node.get("managedFields") or () if one.get("subresource") != "status"
                ]
                latest = json.dumps(managers)
                self.figures.changes += latest != version
                version = latest

    def wrong(self, seconds: float) -> list[str]:
        """What did not hold."""
        wrong = sorted(set(self._wrong))
        lines = self.log.read_bytes().count(b"\n")
        if lines > MOST_LINES * seconds:
            wrong.append(f"the program wrote {lines} log lines in {seconds:.0f} s")
        if self.figures.changes > MOST_CHANGES * seconds:
            wrong.append(f"the node was changed {self.figures.changes} times in {seconds:.0f} s")
        for word in (b"Traceback", b"Segmentation"):
            if word in self.log.read_bytes():
                wrong.append(f"{word.decode()} in {self.log}")
        return wrong

    def usable(self) -> list[str]:
        """After the faults: the whole of a known layout can be had; what cannot."""
        self.cluster.settle()
        dra.remove_pods(self.cluster, NAMESPACE)
        body = {"metadata": {"annotations": {"run.ai/mig.config": LAYOUTS[0]}}}
        self.cluster.api.patch(f"/api/v1/nodes/{self.cluster.node_name}", body)

        def in_place(node: Object) -> bool:
            labels = node["metadata"]["labels"]
            found = (labels.get(f"nvidia.com/{name}") for name in ("mig.config.state", "mig-2g.20gb.count"))
            return tuple(found) == ("success", "4")

        self.cluster.wait_for_node(self.cluster.node_name, in_place, timeout=SETTLED)
        for number, profile in enumerate(["2g.20gb"] * 4 + ["3g.30gb"] * 2):
            self.cluster.api.create(pods_path(NAMESPACE), self.pod(f"last-{number}", profile))
        deadline, waiting = time.monotonic() + SETTLED, list[str]()
        while time.monotonic() < deadline:
            pods = self.cluster.api.get(pods_path(NAMESPACE))["items"]
            waiting = [
                f"{pod['metadata']['name']} ({json.dumps(pod['status'])[:600]})"
                for pod in pods
                if pod["status"].get("phase") != "Running"
            ]
            if not waiting:
                dra.remove_pods(self.cluster, NAMESPACE)
                return []
            time.sleep(1)
        return [f"after the faults these pods still do not run: {', '.join(waiting)}"]


def run(kind: str, minutes: float, seed: int) -> int:
    """One run; the number of things that did not hold."""
    ClusterWithNode.prepare()
    install_debian_packages([DebianPackage("faketime", ("faketime",))], what="a wrong clock")
    with (
        tempfile.TemporaryDirectory(prefix="tessera-chaos-", ignore_cleanup_errors=True) as folder,
        # mounted before the node is there, whose container runtime mounts files of it
        _mounted(Path(folder) / "state", "-t", "tmpfs", "-o", "size=512k", "tmpfs"),
    ):
        cluster = ClusterWithNode.start(f"chaos-{kind}-{os.getpid()}")
        try:
            return _run_in(Chaos(cluster, kind, Path(folder), seed), minutes)
        finally:
            cluster.stop()


def _run_in(chaos: Chaos, minutes: float) -> int:
    cluster = chaos.cluster
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    start = time.monotonic()
    with chaos.prepared(), ThreadPoolExecutor(CHURN + 1) as threads:
        work = [threads.submit(chaos.churn, number) for number in range(CHURN)]
        work.append(threads.submit(chaos.watch))
        try:
            while time.monotonic() - start < minutes * 60:
                name = chaos.random.choice(list(chaos.faults))
                print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
                chaos.faults[name]()
                chaos.figures.faults[name] += 1
                time.sleep(chaos.random.uniform(0.5, 5.0))
        finally:
            chaos.over.set()
        for task in work:
            task.result()
        wrong = [*chaos.wrong(time.monotonic() - start), *chaos.usable()]
    figures = chaos.figures
    print(
        f"{chaos.kind}: {sum(figures.faults.values())} faults ({', '.join(f'{n} x {f}' for f, n in sorted(figures.faults.items()))}); "
        f"{figures.pods} pods made, {figures.ran} seen running; {figures.layouts} layouts; {figures.looks} looks; "
        f"the node changed {figures.changes} times; {len(wrong)} things wrong"
    )
    for one in wrong:
        print(f"  {one}")
    if wrong:
        kept = Path("out") / f"chaos-{chaos.kind}.log"
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(chaos.log.read_bytes())
        print(f"  the program's log: {kept}")
    return len(wrong)


@contextmanager
def _mounted(path: Path, *options: object) -> Iterator[None]:
    path.mkdir()
    _run("mount", *options, path)
    try:
        yield
    finally:
        _run("umount", "--lazy", path)


def _run(*command: object) -> None:
    subprocess.run([str(one) for one in command], check=True, capture_output=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=["plugin", "dra"], default=["plugin", "dra"])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    sys.exit(1 if sum(run(kind, options.minutes, options.seed) for kind in options.kinds) else 0)


if __name__ == "__main__":
    main()
