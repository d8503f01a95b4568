"""The device plugin cuts the cards of a stand-in for NVIDIA's driver, through nvidia-ml-py: faults at the driver's calls, and a real kubelet."""

import json
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from e2e.cluster import ClusterWithNode, program
from e2e.cluster.api import Api, Object
from e2e.cluster.client import condition_of
from e2e.cluster.processes import until
from e2e.command import Running, node_options, tessera
from e2e.layouts import LAYOUTS, kept, mig_layout
from e2e.nvidia import NVML, Driver, Slice
from e2e.nvidia.machine import Machine
from e2e.nvidia.machine import device_nodes as nodes_in_dev
from e2e.test_device_plugin import MIG, annotate, logged, mapped, pod, wait_allocatable
from tessera.protocol.kubelet import checkpoint
from tessera.protocol.mig.nodes import decode_mapping
from tessera.protocol.mig.rollouts import RESULT

FIRST = ["2g.35gb", "2g.35gb", "3g.71gb"]
STORY = "2g.35gb=2,3g.71gb=1"
ONES = "1g.18gb=7"
_ROUNDS = int(os.environ.get("TESSERA_E2E_ROUNDS", "5"))  # layouts while pods come and go
_RACES = int(os.environ.get("TESSERA_E2E_RACES", "2"))  # layouts that pods race with
_PODS = 12  # with each


class Node:
    """A machine with cards, and no kubelet: whatever is not wanted is free."""

    def __init__(self, folder: Path, driver: Driver, *, switch_mode: bool = False) -> None:
        self.driver = driver
        self.layout = folder / "layout.yaml"
        self.log = folder / "device-plugin.log"
        self._folder = folder
        self._config = folder / "devices.yaml"
        self._config.write_text(
            f"nvml: {{migStrategy: mixed, cut: true, switchMode: {str(switch_mode).lower()}}}\n"
        )
        (folder / "k/device-plugins").mkdir(parents=True)

    def start(self) -> Running:
        return Running(
            "device-plugin",
            f"--config={self._config}",
            "--node-name=node-1",
            f"--kubelet-dir={self._folder / 'k'}",
            f"--cdi-dir={self._folder / 'cdi'}",
            f"--state-dir={self._folder / 'state'}",
            f"--layout={self.layout}",
            "--metrics-listen=127.0.0.1:0",
            log=self.log,
            environment=self.driver.environment,
        )

    @property
    def offered(self) -> Counter[str]:
        """The profiles of the devices that containers can be given: those in the CDI spec."""
        (spec,) = (self._folder / "cdi").glob("*.json")
        names = {one["name"] for one in json.loads(spec.read_text())["devices"]}
        listed = tessera(
            "device-plugin", f"--config={self._config}", "--list", environment=self.driver.environment
        )
        rows = [line.split() for line in listed.stdout.splitlines()]
        return Counter(row[0].removeprefix(MIG).replace(".me", "+me") for row in rows if row[1] in names)

    def saying(self) -> Callable[[str], bool]:
        """Whether the plugin's log has a text from now on."""
        before = len(self.log.read_text())
        return lambda text: text in self.log.read_text()[before:]

    @property
    def unfinished(self) -> list[Path]:
        return [*(self._folder / "state/cut").glob("*.json")]

    def is_cut(self, profiles: Sequence[str], card: int = 0) -> Callable[[], bool]:
        """Whether a card has these slices (in the order of names), each with its device, and nothing is left to do."""

        def condition() -> bool:
            slices = self.driver.slices(card)
            whole = all(len(one.computes) == 1 for one in slices)
            return whole and sorted(one.profile for one in slices) == [*profiles] and not self.unfinished

        return condition


def counts(profiles: Sequence[str]) -> str:
    return ",".join(f"{profile}={number}" for profile, number in Counter(profiles).items())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A card that is cut into 2g, 2g, 3g."""
    driver = Driver(tmp_path / "driver", "H200", cards=2)
    driver.cut(0, *FIRST)
    driver.cut(1)
    return Node(tmp_path, driver)


def test_layouts_are_carried_out(node: Node) -> None:
    """The card is cut as the file says, again whenever it changes; a slice that both layouts have is never touched."""
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST, 1), what="the empty card cut")
        before = {one.serial: one.profile for one in node.driver.slices(0)}
        node.layout.write_text("1g.18gb=2,2g.35gb=1,3g.71gb=1")
        running.until(node.is_cut(["1g.18gb", "1g.18gb", "2g.35gb", "3g.71gb"]), what="two small slices")
        after = {one.serial: one.profile for one in node.driver.slices(0)}
        assert sorted(dict(before.items() & after.items()).values()) == ["2g.35gb", "3g.71gb"]
        running.wait_for_log("layout success")
        node.layout.write_text(ONES)
        for card in (0, 1):
            running.until(node.is_cut(["1g.18gb"] * 7, card), what="seven slices")


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("nvmlComputeInstanceDestroy", True),
        ("nvmlGpuInstanceDestroy", False),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", True),
        ("nvmlGpuInstanceCreateComputeInstance", False),
    ],
)
def test_fault_49_killed_at_a_call(node: Node, call: str, after: bool) -> None:
    """The process is killed at the call, before or after it took effect: the next start finishes, and the slice that stays is the same."""
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST, 1), what="the first layout")
        kept = node.driver.slices(0)[-1]
        node.driver.kill(call, nth=2, after=after)
        node.layout.write_text("1g.18gb=4,3g.71gb=1")
        until(lambda: running.process.poll() is not None, timeout=60, what="the kill")
        running.kill()
    assert node.unfinished
    with node.start() as running:
        for card in (0, 1):
            running.until(node.is_cut([*["1g.18gb"] * 4, "3g.71gb"], card), what="the layout")
    assert node.driver.slices(0)[-1] == kept


def test_fault_50_nvml_refuses(node: Node) -> None:
    """What was there before is put back, the state has NVML's words; the next layout is tried anew."""
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST, 1), what="the first layout")
        node.driver.fail(
            "nvmlDeviceCreateGpuInstanceWithPlacement", NVML.INSUFFICIENT_RESOURCES, card=0, nth=3
        )
        node.layout.write_text(ONES)
        running.wait_for_log(
            "layout failed: card 0: nvmlDeviceCreateGpuInstanceWithPlacement: Insufficient Resources"
        )
        assert node.is_cut(FIRST)()
        running.until(node.is_cut(["1g.18gb"] * 7, 1), what="the other card")
        node.layout.write_text("1g.18gb=6")
        running.until(node.is_cut(["1g.18gb"] * 6), what="another layout")


def test_fault_50_another_program_uses_a_slice(node: Node) -> None:
    """The rest is cut, the state has NVML's words; when the program is gone, the slice goes too."""
    with node.start() as running:
        node.layout.write_text(STORY)
        running.until(node.is_cut(FIRST, 1), what="the first layout")
        held = node.driver.slices(0)[-1]
        node.driver.use(0, held.instance)
        node.layout.write_text(ONES)
        running.wait_for_log("card 0 will be tried again: 3g.71gb at 4: nvmlComputeInstanceDestroy: In use")
        assert node.is_cut([*["1g.18gb"] * 4, "3g.71gb"])()
        node.driver.use(0, held.instance, pid=0)
        running.until(node.is_cut(["1g.18gb"] * 7), what="the rest")


def test_fault_50_a_call_that_hangs_holds_up_its_card_alone(node: Node) -> None:
    """The other card is cut meanwhile, the state names the call, and the process ends when it is asked to."""
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST, 1), what="the first layout")
        with node.driver.hanging("nvmlGpuInstanceDestroy", card=0):
            node.layout.write_text(ONES)
            running.until(lambda: node.driver.layout(1) == ["1g.18gb"] * 7, what="the other card")
            running.wait_for_log(
                "card 0 waits for nvmlGpuInstanceDestroy, which has not come back for more than 30 s"
            )
            assert running.stop(timeout=30) == 0


def test_fault_50_a_read_that_hangs_holds_up_its_card_alone(node: Node) -> None:
    """At the start and later: the other card is read, offered and cut; the one that hangs is unhealthy with the name of the call, until it comes back."""
    words = "has not answered for more than 10 s, in nvmlDeviceGetMinorNumber"
    node.layout.write_text(STORY)
    with node.driver.hanging("nvmlDeviceGetMinorNumber", card=1), node.start() as running:
        running.wait_for_log(f"layout pending: card 1 {words}")
        assert f"1 unhealthy: card-1: {words}" in node.log.read_text()
        assert node.is_cut(FIRST)()
        node.driver.no_faults()
        running.until(node.is_cut(FIRST, 1), what="the card that has answered")
        running.wait_for_log("layout success")
        said = node.saying()
        with node.driver.hanging("nvmlDeviceGetMinorNumber", card=1):
            running.until(partial(said, "unhealthy: MIG-"), what="the slices of the card that hangs")
            assert said(f": {words}")
            node.layout.write_text(ONES)
            running.until(node.is_cut(["1g.18gb"] * 7), what="the other card")
            assert node.is_cut(FIRST, 1)()
        running.until(node.is_cut(["1g.18gb"] * 7, 1), what="the card that is back")


def test_fault_51_a_lost_card(node: Node) -> None:
    """Its devices become unhealthy with NVML's words; the other card is cut."""
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST, 1), what="the first layout")
        running.wait_for_log("layout success")
        node.driver.lose(1)
        running.wait_for_log("unhealthy: MIG-")
        assert "does not answer: GPU is lost" in node.log.read_text()
        node.layout.write_text(ONES)
        running.until(node.is_cut(["1g.18gb"] * 7), what="the card that answers")
        node.driver.lose(1, lost=False)
        running.until(node.is_cut(["1g.18gb"] * 7, 1), what="the card that is back")


def test_mig_mode(tmp_path: Path) -> None:
    """Switched where that is allowed; where a reset is needed that is said, and the card is cut after it."""
    driver = Driver(tmp_path / "driver", "H200", cards=2)
    driver.needs_reset(1)
    node = Node(tmp_path, driver, switch_mode=True)
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST), what="a card whose mode was switched")
        running.wait_for_log("MIG mode will be on after a reset of the card")
        assert not driver.mig(1)
        driver.reset(1)
        running.until(node.is_cut(FIRST, 1), what="the card that was reset")


def test_fault_49_after_a_reset_of_all_cards_they_are_cut_at_the_start(node: Node) -> None:
    """As after a reboot: the cards have no slices, and get those of the layout before anything is published."""
    node.layout.write_text(STORY)
    with node.start() as running:
        running.until(node.is_cut(FIRST, 1), what="the first layout")
    node.driver.reset()
    log = len(node.log.read_text())
    with node.start() as running:
        running.until(node.is_cut(FIRST), what="the layout")
        running.until(lambda: "CDI spec" in node.log.read_text()[log:], what="a CDI spec")
        text = node.log.read_text()[log:]
        assert text.index("card 0 is cut") < text.index("CDI spec")


@pytest.mark.usefixtures("nvidia_programs")
def test_mig_parted_and_tessera_cut_alike(node: Node, tmp_path: Path) -> None:
    """What Tessera has cut is what mig-parted asserts; what mig-parted has applied, Tessera reads and leaves as it is.

    A card that mig-parted re-cuts while the plugin runs is seen within 15 seconds.
    """
    driver, layouts = (
        node.driver,
        (FIRST, ["1g.18gb"] * 7, ["1g.18gb+me", "1g.35gb", "3g.71gb"], ["7g.141gb"]),
    )
    machine, config = Machine(tmp_path / "machine", driver), tmp_path / "parted.yaml"
    lines = ["version: v1", "mig-configs:"]
    for number, profiles in enumerate(layouts):
        lines += [f"  c{number}:", "  - devices: all", "    mig-enabled: true", "    mig-devices:"]
        lines += [f'      "{profile}": {count}' for profile, count in Counter(profiles).items()]
    config.write_text("\n".join(lines) + "\n")

    def mig_parted(verb: str, number: int) -> None:
        options = (f"--config-file={config}", f"--selected-config=c{number}")
        command = machine.seen_by(program("nvidia-mig-parted"), verb, *options)
        done = subprocess.run(command, env=driver.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    with node.start() as running:
        for number, profiles in enumerate(layouts):
            node.layout.write_text(counts(profiles))
            for card in driver.cards:
                running.until(node.is_cut(sorted(profiles), card), what="the layout")
            mig_parted("assert", number)
        node.layout.unlink()
        running.wait_for_log("layout: nothing")
        for number, profiles in enumerate(layouts):
            mig_parted("apply", number)
            running.until(
                lambda p=profiles: node.offered == Counter(p * 2), what="what mig-parted cut", timeout=15
            )
            driver.forget_calls()
            said = node.saying()
            node.layout.write_text(counts(profiles))
            running.until(partial(said, "layout: nvidia.com"), what="the layout")
            node.layout.unlink()
            running.until(partial(said, "layout: nothing"), what="no layout")
            assert not said("layout pending")
            assert not driver.calls("Create") + driver.calls("Destroy")


@pytest.fixture
def device_nodes() -> Iterator[None]:
    """The card's nodes."""
    with nodes_in_dev():
        yield


def on_kubelet(cluster: ClusterWithNode, driver: Driver, folder: Path) -> Running:
    """The plugin of the cluster's node, which has the driver's cards."""
    config = folder / "devices.yaml"
    config.write_text("nvml: {migStrategy: mixed, cut: true}\n")
    return Running(
        "device-plugin",
        *node_options(cluster, config, folder),
        log=folder / "device-plugin.log",
        environment=driver.environment,
    )


def test_the_first_story_on_a_real_kubelet(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, device_nodes: None
) -> None:
    """2 × 2g + 1 × 3g, then 7 × 1g: allocatable follows within seconds, a pod that holds a slice keeps it, and the rest comes when it ends."""
    cluster, driver = cluster_with_node, Driver(tmp_path / "driver", "H200")
    driver.cut(0)
    annotate(cluster, STORY)
    try:
        with on_kubelet(cluster, driver, tmp_path):
            wait_allocatable(cluster, {MIG + "2g.35gb": "2", MIG + "3g.71gb": "1"})
            cluster.apply(
                pod("training", MIG + "3g.71gb", 1, "env; exec sleep 1000"), namespace=node_namespace
            )
            cluster.wait_for_pod_phase("training", "Running", namespace=node_namespace)
            held = driver.slices(0)[-1]
            annotate(cluster, ONES)
            wait_allocatable(
                cluster, {MIG + "1g.18gb": "4", MIG + "2g.35gb": "0", MIG + "3g.71gb": "0"}, timeout=30
            )
            node = cluster.wait_for_node(cluster.node_name, lambda one: mapped(one) == 5)
            assert node["metadata"]["labels"]["nvidia.com/mig.config.state"] == "pending"
            reason = node["metadata"]["annotations"]["nvidia.com/mig.config.reason"]
            assert reason == f"3 to come after 1 × 3g.71gb, kept for {node_namespace}/training"
            assert driver.slices(0)[-1] == held
            assert "NVIDIA_VISIBLE_DEVICES=MIG-" in logged(cluster, node_namespace, "training")
            cluster.kubectl("delete", "pod", "training", "-n", node_namespace)
            wait_allocatable(cluster, {MIG + "1g.18gb": "7"}, timeout=60)
            assert driver.layout(0) == ["1g.18gb"] * 7
            cluster.wait_for_node(
                cluster.node_name,
                lambda one: one["metadata"]["labels"].get("nvidia.com/mig.config.state") == "success",
            )
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.18gb": "0"})


def test_a_mig_layout_on_a_real_kubelet(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, device_nodes: None
) -> None:
    """Tessera cuts the card under a MigLayout: after the pod that holds a slice which goes; where NVML refuses, the old slices are back and
    the node is uncordoned, and a second try succeeds."""
    cluster, driver = cluster_with_node, Driver(tmp_path / "driver", "H200")
    driver.cut(0)
    annotate(cluster, STORY)
    layout = mig_layout("cut", layouts=[{"product": "H200", "perCard": {"1g.18gb": 7}}])
    layout["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.node_name}
    path = f"{LAYOUTS}/cut"

    def cordoned() -> bool:
        return bool(cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["spec"].get("unschedulable"))

    def message(type_: str) -> str:
        return str(condition_of(cluster.api.get(path), type_).get("message", ""))

    try:
        with on_kubelet(cluster, driver, tmp_path):
            wait_allocatable(cluster, {MIG + "2g.35gb": "2", MIG + "3g.71gb": "1"})
            cluster.apply(pod("training", MIG + "3g.71gb", 1), namespace=node_namespace)
            cluster.wait_for_pod_phase("training", "Running", namespace=node_namespace)
            with kept(cluster, tmp_path, layout) as condition:
                waits = (
                    f"waiting for pods that hold devices which go: {node_namespace}/training (1 × 3g.71gb)"
                )
                cluster.wait(lambda: waits in message("Progressing"), what="the pod waited for")
                assert (cordoned(), driver.layout(0)) == (True, FIRST)
                driver.fail("nvmlDeviceCreateGpuInstanceWithPlacement", NVML.INSUFFICIENT_RESOURCES, nth=3)
                cluster.kubectl("delete", "pod", "training", "-n", node_namespace)
                cluster.wait(lambda: condition("Degraded") == "True", what="the failure")
                assert "card 0: nvmlDeviceCreateGpuInstanceWithPlacement: Insufficient Resources" in message(
                    "Degraded"
                )
                assert message("Degraded").endswith("the old layout is back")
                assert (cordoned(), driver.layout(0)) == (False, FIRST)
                wait_allocatable(cluster, {MIG + "2g.35gb": "2", MIG + "3g.71gb": "1"}, timeout=1.0)
                driver.no_faults()
                cluster.kubectl("annotate", "node", cluster.node_name, f"{RESULT}-")
                cluster.kubectl("wait", "--for=condition=Ready", "miglayout/cut", "--timeout=120s")
                assert (cordoned(), driver.layout(0)) == (False, ["1g.18gb"] * 7)
                wait_allocatable(cluster, {MIG + "1g.18gb": "7", MIG + "3g.71gb": "0"}, timeout=1.0)
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.18gb": "0"})


@pytest.mark.timeout(60 * _ROUNDS + 300, func_only=True)
def test_random_layouts_while_pods_come_and_go(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, device_nodes: None
) -> None:
    """Whatever is asked of the card, the slice that a pod was given is the same until the pod ends; in the end all is as asked."""
    cluster, driver = cluster_with_node, Driver(tmp_path / "driver", "H200")
    driver.cut(0)
    texts = [STORY, ONES, "3g.71gb=2", "1g.35gb=2,2g.35gb=1", "1g.18gb=4"]
    draw, held, pods, text = random.Random(27), dict[str, Slice](), 0, ""

    def given(name: str) -> Slice | None:
        """The slice that a pod has."""
        found = re.search(r"NVIDIA_VISIBLE_DEVICES=(MIG-\S+)", logged(cluster, node_namespace, name))
        node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")
        mapping = decode_mapping(node["metadata"]["annotations"]["run.ai/mig-mapping"])
        places = {one.device_uuid: one.position for some in mapping.values() for one in some}
        at = places.get(found[1]) if found else None
        return next((one for one in driver.slices(0) if one.start == at), None)

    try:
        with on_kubelet(cluster, driver, tmp_path) as running:
            for number in range(_ROUNDS):
                text = draw.choice([one for one in texts if one != text])
                annotate(cluster, text)
                running.until(quiet(driver), what=f"{text}, as far as pods leave room for it")
                assert {one.serial for one in held.values()} <= {one.serial for one in driver.slices(0)}
                if len(held) == 2:
                    gone = draw.choice([*held])
                    cluster.kubectl("delete", "pod", gone, "-n", node_namespace)
                    del held[gone]
                name, profile = f"pod-{number}", draw.choice(text.split(",")).partition("=")[0]
                taken = sum(one.profile == profile for one in held.values())
                if allocatable(cluster, profile) > taken:
                    cluster.apply(
                        pod(name, MIG + profile, 1, "env; exec sleep 1000"), namespace=node_namespace
                    )
                    cluster.wait_for_pod_phase(name, "Running", namespace=node_namespace)
                    held[name] = cluster.wait(partial(given, name), what="the pod's slice")
                    pods += 1
            assert pods >= _ROUNDS // 2
            cluster.kubectl("delete", "pods", "--all", "-n", node_namespace)
            annotate(cluster, ONES)
            wait_allocatable(cluster, {MIG + "1g.18gb": "7"})
            running.until(lambda: driver.layout(0) == ["1g.18gb"] * 7, what="seven slices")
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.18gb": "0"})


@pytest.mark.timeout(60 * _RACES + 300, func_only=True)
def test_pods_that_come_at_the_moment_of_a_cut(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """The kubelet takes pods in while the layout changes: each is rejected, or its slice stays; none has a slice that is gone."""
    cluster, driver = cluster_with_node, Driver(tmp_path / "driver", "H200", cards=4)
    for card in driver.cards:
        driver.cut(card)
    draw, ends, pods = random.Random(27), Counter[str](), f"/api/v1/namespaces/{node_namespace}/pods"
    record = cluster.kubelet_dir / "device-plugins" / checkpoint.FILE
    layouts = ("1g.18gb", 7), ("2g.35gb", 3)

    def held() -> dict[str, set[str]]:
        """What pods have by the kubelet's record, by their UIDs."""
        entries = msgspec.json.decode(record.read_bytes())["Data"]["PodDeviceEntries"] or ()
        return {one["PodUID"]: {*chain(*one["DeviceIDs"].values())} for one in entries}

    def judged() -> bool:
        """Whether the kubelet has decided about every pod."""
        some, known = cluster.api.get(pods)["items"], held()
        decided = [
            one for one in some if one["status"]["phase"] == "Failed" or one["metadata"]["uid"] in known
        ]
        return len(decided) == _PODS

    try:
        with on_kubelet(cluster, driver, tmp_path) as running, ThreadPoolExecutor() as threads:
            profile, number = layouts[0]
            annotate(cluster, f"{profile}={number}")
            wait_allocatable(cluster, {MIG + profile: str(4 * number)})
            for turn in range(_RACES):
                other, others = layouts[turn % 2 == 0]
                for one in range(_PODS):
                    late = draw.uniform(0, 1.0)
                    threads.submit(
                        _later, late, cluster.api, pods, never_starts(cluster, f"pod-{turn}-{one}", profile)
                    )
                time.sleep(0.3)
                annotate(cluster, f"{other}={others}")
                cluster.wait(judged, what="the kubelet's answer")
                running.until(quiet(driver, 4.0), what="what can be cut")
                there = {one.uuid(card) for card in driver.cards for one in driver.slices(card)}
                for one in cluster.api.get(pods)["items"]:
                    if one["status"]["phase"] == "Failed":
                        ends[one["status"]["reason"]] += 1
                    else:
                        assert held()[one["metadata"]["uid"]] <= there
                        ends["given"] += 1
                cluster.kubectl("delete", "pods", "--all", "--force", "-n", node_namespace)
                profile, number = other, others
                wait_allocatable(cluster, {MIG + profile: str(4 * number)})
            assert ends["given"]
            assert ends.total() > ends["given"]
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.18gb": "0", MIG + "2g.35gb": "0"})


def never_starts(cluster: ClusterWithNode, name: str, profile: str) -> Object:
    """A pod that the kubelet of the node takes in, and gives a slice, and for which it then waits for a volume."""
    made: Object = json.loads(pod(name, MIG + profile, 1))
    made["spec"] |= {
        "nodeName": cluster.node_name,
        "volumes": [{"name": "none", "configMap": {"name": "none"}}],
    }
    return made


def _later(seconds: float, api: Api, path: str, body: Object) -> None:
    time.sleep(seconds)
    api.create(path, body)


def quiet(driver: Driver, seconds: float = 6.0) -> Callable[[], bool]:
    """Whether the cards have not changed for longer than a slice that is not wanted stays."""

    def look() -> list[list[Slice]]:
        return [driver.slices(card) for card in driver.cards]

    seen, since = look(), time.monotonic()

    def condition() -> bool:
        nonlocal seen, since
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    return condition


def allocatable(cluster: ClusterWithNode, profile: str) -> int:
    node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")
    return int(node["status"]["allocatable"].get(MIG + profile, "0"))
