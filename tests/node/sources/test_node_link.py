"""A simulated node in a cluster: the annotation is followed, the node says what became of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tessera.kube.clock import SYSTEM_CLOCK
from tessera.kube.rest.client import Client, path_of
from tessera.node.assembly import Settings
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.sources.node_link import NodeLink, Report, _read
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.protocol.mig.nodes import IN_USE, decode_mapping
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.control_plane.store import StatusError
from tessera.simulation.kubelet import Kubelet
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.node.running import TICK, run, sample, started

EXAMPLE = (Path(__file__).parents[3] / "examples" / "simulated-h200.yaml").read_text()
TWO, THREE = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.30gb"
STATE, REASON, MAPPING = "nvidia.com/mig.config.state", "nvidia.com/mig.config.reason", "run.ai/mig-mapping"


def annotation(*devices: str, cards: str = "[0, 1, 2, 3]") -> str:
    listed = ", ".join(devices)
    return f"""
        version: v1
        mig-configs:
          selected:
          - devices: {cards}
            mig-enabled: true
            mig-devices: [{listed}]
        """


@dataclass
class Cluster:
    server: MisbehavingApiServer
    client: Client
    kubelet: Kubelet
    node: Plugin

    async def annotate(self, text: str | None) -> None:
        await self.patch({"annotations": {RUNAI_CONFIG: text}})

    async def patch(self, metadata: dict[str, Any]) -> None:
        await self.client.patch(path_of("v1", "nodes", name="node-1"), {"metadata": metadata})

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.server.store.get(NODES, "node-1").document["metadata"].get("labels") or {})

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.server.store.get(NODES, "node-1").document["metadata"].get("annotations") or {})

    def room(self, profile: str, how: str) -> float | None:
        return sample(self.node.metrics, "tessera_device_plugin_mig_room", profile=profile, how=how)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster(
    root: Path,
    text: str | None = None,
    *,
    there: bool = True,
    configuration: str = EXAMPLE,
    says: str | None = None,
    kubelet: Kubelet | None = None,
    hide_in_use: bool = False,
) -> AsyncIterator[Cluster]:
    """A node and its plugin; `says`: which devices are in use, as an earlier plugin left it. A kubelet that is given runs already."""
    runs = nullcontext(kubelet) if kubelet else started(Kubelet(root))
    async with runs as kubelet, MisbehavingApiServer() as server:
        await server.start()
        annotations = {RUNAI_CONFIG: text} if text else {}
        annotations |= {IN_USE: says} if says is not None else {}
        if there:
            server.store.create(NODES, {"metadata": {"name": "node-1", "annotations": annotations}})
        async with Client(server.cluster) as client:
            chosen = replace(settings(root), hide_in_use=hide_in_use)
            node = Plugin(device_config.parse(configuration), chosen, client)
            task = asyncio.create_task(node.run())
            try:
                yield Cluster(server, client, kubelet, node)
            finally:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task


def settings(root: Path) -> Settings:
    return Settings("node-1", kubelet_dir=root, cdi_dir=root / "cdi", state_dir=root / "state", tick=TICK)


def test_the_annotation_becomes_resources() -> None:
    """2×2g.20gb + 1×3g.30gb on four cards is 8 and 4; a change brings what came and takes what went."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            await it.until(lambda: it.labels.get(STATE) == "success")
            assert it.labels == {
                STATE: "success",
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": "NVIDIA-H200-70GB",
                "nvidia.com/gpu.count": "4",
                "nvidia.com/gpu.memory": "71680",
                "nvidia.com/mig.strategy": "mixed",
                "nvidia.com/mig.capable": "true",
                **{
                    f"{TWO}.{key}": value
                    for key, value in {
                        "count": "8",
                        "memory": "20480",
                        "product": "NVIDIA-H200-70GB-MIG-2g.20gb",
                    }.items()
                },
                **{
                    f"{THREE}.{key}": value
                    for key, value in {
                        "count": "4",
                        "memory": "30720",
                        "product": "NVIDIA-H200-70GB-MIG-3g.30gb",
                    }.items()
                },
            }
            mapping = decode_mapping(it.annotations[MAPPING])
            uuids = {device.device_uuid for devices in mapping.values() for device in devices}
            assert uuids == {device.id for device in it.node.devices}
            await it.annotate(annotation("1g.10gb", "1g.10gb", cards="[0, 1]"))
            one = "nvidia.com/mig-1g.10gb"
            await it.kubelet.until(
                lambda kubelet: kubelet.allocatable == {TWO: 0, THREE: 0, one: 4, "nvidia.com/gpu": 2}
            )
            await it.until(lambda: f"{one}.count" in it.labels)
            assert not [name for name in it.labels if name.startswith((TWO, THREE))]
            assert list(decode_mapping(it.annotations[MAPPING])) == [0, 1]

    run(story)


def test_without_an_annotation_the_configuration_holds() -> None:
    """No annotation: the layout of the configuration, GPU labels, and no state, since no layout was asked for."""

    async def story(root: Path) -> None:
        async with cluster(root) as it:
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            await it.until(lambda: "nvidia.com/gpu.count" in it.labels)
            assert STATE not in it.labels
            await it.annotate(annotation("7g.70gb"))
            await it.until(lambda: it.labels.get(STATE) == "success")
            await it.annotate(None)
            await it.until(lambda: STATE not in it.labels)
            await it.kubelet.until(lambda kubelet: kubelet.allocatable.get(TWO) == 8)

    run(story)


def test_fault_27_a_bad_annotation() -> None:
    """State failed, with the reason; the last good layout stays in the node's resources."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.until(lambda: it.labels.get(STATE) == "success")
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            for bad, reason in (
                ("{[", "run.ai/mig.config"),
                (annotation("4g.80gb"), "4g.80gb"),
                (annotation("3g.30gb", "3g.30gb", "3g.30gb"), "cards 0-3"),
            ):
                await it.annotate(bad)
                await it.until(lambda reason=reason: reason in it.annotations.get(REASON, ""))  # type: ignore[misc]
                assert it.labels[STATE] == "failed"
                assert it.kubelet.allocatable == {TWO: 8, THREE: 4}
            await it.annotate(annotation("7g.70gb"))
            await it.until(lambda: it.labels[STATE] == "success")
            assert REASON not in it.annotations
            await it.kubelet.until(lambda kubelet: kubelet.allocatable.get("nvidia.com/mig-7g.70gb") == 4)

    run(story)


def test_fault_28_a_layout_that_waits_for_a_pod() -> None:
    """The state is pending while a pod holds on to an old device, and names it; then it is success."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            await it.kubelet.admit("ml/train", {TWO: 1})
            await it.annotate(annotation("7g.70gb"))
            seven = "nvidia.com/mig-7g.70gb"
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 0, THREE: 0, seven: 3})
            await it.until(lambda: it.labels[STATE] == "pending")
            assert "1 to come" in it.annotations[REASON]
            assert "kept for ml/train" in it.annotations[REASON]
            mapping = decode_mapping(it.annotations[MAPPING])
            there = {one.device_uuid: one.leaving for devices in mapping.values() for one in devices}
            assert there == {device.id: device.leaving for device in it.node.devices}
            assert sorted(there.values()) == [False, False, False, True]
            assert it.labels[f"{seven}.count"] == "3", "labels tell what is there, not what is to come"
            # so does the metric: beside the device that stays, two more of its kind would fit on that card
            await it.until(lambda: (it.room("7g.70gb", "free"), it.room("2g.20gb", "beside")) == (3, 2))
            await it.kubelet.remove("ml/train")
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 0, THREE: 0, seven: 4})
            await it.until(lambda: it.labels[STATE] == "success")
            mapping = decode_mapping(it.annotations[MAPPING])
            assert [[one.leaving for one in devices] for devices in mapping.values()] == [[False]] * 4
            assert it.labels[f"{seven}.count"] == "4"

    run(story)


def test_an_old_state_is_no_answer_to_a_new_layout() -> None:
    """`mig apply` takes the state away and writes a layout: what comes back is about that layout, never the old success."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.until(lambda: it.labels.get(STATE) == "success")
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            await it.kubelet.admit("ml/train", {TWO: 1})
            states: list[str] = []
            new = annotation("7g.70gb")

            def note(_: Any) -> None:
                state = it.labels.get(STATE)
                if state and state not in states[-1:] and it.annotations[RUNAI_CONFIG] == new:
                    states.append(state)

            stop = it.server.store.follow(NODES, it.server.store.version, note)
            await it.patch({"labels": {STATE: None}, "annotations": {RUNAI_CONFIG: new}})
            await it.until(lambda: it.labels.get(STATE) == "pending")
            stop()
            assert states == ["pending"]

    run(story)


def test_a_layout_that_cannot_be_put_in_place_is_no_success() -> None:
    """While specs cannot be written the state is pending, with the reason; the devices are as they were."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.until(lambda: it.labels.get(STATE) == "success")
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            (root / "cdi").rename(root / "elsewhere")
            (root / "cdi").write_text("a file where the folder should be")
            await it.annotate(annotation("7g.70gb"))
            await it.until(lambda: it.labels.get(STATE) == "pending")
            assert it.annotations[REASON].startswith("cannot be put in place, will be tried again: ")
            assert it.labels[f"{TWO}.count"] == "8"
            assert it.kubelet.allocatable == {TWO: 8, THREE: 4}
            (root / "cdi").unlink()
            await it.until(lambda: it.labels.get(STATE) == "success")
            assert it.labels["nvidia.com/mig-7g.70gb.count"] == "4"

    run(story)


def test_what_the_watch_brought_is_newer_than_an_answer() -> None:
    """A patch's answer that comes after a newer event of the watch does not hide what the event said."""

    class SlowClient:
        """While it patches, a person removes the label that was there."""

        clock = SYSTEM_CLOCK
        patches: ClassVar[list[dict[str, Any]]] = []

        async def patch(self, path: str, patch: dict[str, Any]) -> bytes:
            self.patches.append(patch)
            if len(self.patches) == 1:
                link.upsert(_read(b'{"metadata": {"name": "node-1", "labels": {"b": "2"}}}'))
            return b'{"metadata": {"name": "node-1", "labels": {"a": "1", "b": "2"}}}'

    async def story() -> None:
        link.upsert(_read(b'{"metadata": {"name": "node-1", "labels": {"a": "1"}}}'))
        link.report(Report(labels={"a": "1", "b": "2"}))
        await link._write()
        await link._write()
        assert [one["metadata"]["labels"] for one in SlowClient.patches] == [{"b": "2"}, {"a": "1"}]
        await link._write()
        assert len(SlowClient.patches) == 2, "the second answer was the newest word"

    link = NodeLink(SlowClient(), "node-1")  # type: ignore[arg-type] # nothing else is called
    asyncio.run(story())


def test_removed_labels_come_back() -> None:
    """What the node ought to say is compared with what it says, not with what was sent."""

    async def story(root: Path) -> None:
        async with cluster(root) as it:
            await it.until(lambda: "nvidia.com/gpu.product" in it.labels)
            await it.patch(
                {"labels": {"nvidia.com/gpu.product": None, "nvidia.com/gpu.count": "99", "team": "a"}}
            )
            await it.until(lambda: it.labels.get("nvidia.com/gpu.product") == "NVIDIA-H200-70GB")
            assert it.labels["nvidia.com/gpu.count"] == "4"
            assert it.labels["team"] == "a"

    run(story)


def test_a_node_that_comes_later() -> None:
    """Nothing is announced before the node says, or does not say, which layout it wants."""

    async def story(root: Path) -> None:
        async with cluster(root, there=False) as it:
            await it.server.until(lambda: it.server.watches > 0)
            assert it.kubelet.capacity == {}
            document = {"metadata": {"name": "node-1", "annotations": {RUNAI_CONFIG: annotation("7g.70gb")}}}
            it.server.store.create(NODES, document)
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {"nvidia.com/mig-7g.70gb": 4})

    run(story)


def test_an_api_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the API server the last good layout of the run before holds; with it, what the node says."""
    monkeypatch.setattr("tessera.node.sources.node_link._SILENT_AFTER", 0.2)

    async def story(root: Path) -> None:
        async with cluster(root, annotation("7g.70gb")) as it:
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {"nvidia.com/mig-7g.70gb": 4})
        async with started(Kubelet(root)) as kubelet, MisbehavingApiServer() as server:
            await server.start()
            unreachable = server.cluster
            await server.stop()
            async with Client(unreachable) as client:
                node = Plugin(device_config.parse(EXAMPLE), settings(root), client)
                task = asyncio.create_task(node.run())
                await kubelet.until(lambda kubelet: kubelet.allocatable == {"nvidia.com/mig-7g.70gb": 4})
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    run(story)


def test_an_answer_that_is_refused_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the API server says no to the labels, they are sent again."""
    monkeypatch.setattr("tessera.node.sources.node_link._RETRY", (0.05, 0.1))

    async def story(root: Path) -> None:
        async with cluster(root, there=False) as it:
            refused = 0

            def intercept(request: Any) -> Any:
                nonlocal refused
                if request.method == "PATCH" and refused < 3:
                    refused += 1
                    return status(StatusError(403, "Forbidden", "nodes is forbidden"))
                return None

            it.server.intercept = intercept
            it.server.store.create(NODES, {"metadata": {"name": "node-1"}})
            await it.until(lambda: "nvidia.com/gpu.product" in it.labels)
            assert refused == 3

    run(story)


def test_room_is_measured() -> None:
    """The metric of fragmentation says what the cards could still hold, given which devices pods hold."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            await it.until(lambda: it.room("2g.20gb", "free") == 8)
            assert (it.room("3g.30gb", "free"), it.room("1g.10gb", "free"), it.room("1g.10gb", "recut")) == (
                4,
                0,
                28,
            )
            await it.kubelet.admit("default/p", {TWO: 1})
            await it.until(lambda: it.room("2g.20gb", "free") == 7)
            assert it.room("1g.10gb", "recut") == 21

    run(story)


def test_fault_56_specs_that_cannot_be_written() -> None:
    """A layout whose CDI spec cannot be written is reported once; it is tried less and less often, whatever happens."""

    async def story(root: Path) -> None:
        async with cluster(root, annotation("2g.20gb", "2g.20gb", "3g.30gb")) as it:
            await it.until(lambda: it.labels.get(STATE) == "success")
            spec = root / "cdi" / "tessera-tessera.simulated_gpu.json"
            spec.unlink()
            spec.mkdir()  # as a folder that is read-only: no file can be put there
            before = len(patches(it))
            await it.annotate(annotation("7g.70gb"))
            await it.until(lambda: it.labels.get(STATE) == "pending")
            for tried in range(4):
                await it.until(lambda tried=tried: (failures(it) or 0) > tried)  # type: ignore[misc]
                await it.patch(
                    {"labels": {"heartbeat": str(tried)}}
                )  # what a node says all the time is no reason to try
            written = [change for change in patches(it)[before:] if keys(change) - {"heartbeat", IN_USE}]
            assert len(written) == 2, "our own annotation, and one report"
            assert it.annotations[REASON] == (
                f"cannot be put in place, will be tried again: [Errno 21] Is a directory: '{spec}'"
            )
            assert it.kubelet.allocatable == {TWO: 8, THREE: 4}
            spec.rmdir()
            await it.until(lambda: it.labels.get(STATE) == "success")

    def patches(it: Cluster) -> list[bytes]:
        return [request.body for request in it.server.requests if request.method == "PATCH"]

    def keys(change: bytes) -> set[str]:
        return {key for some in json.loads(change)["metadata"].values() for key in some or ()}

    def failures(it: Cluster) -> float | None:
        return sample(it.node.metrics, "tessera_device_plugin_failures_total", what="publish")

    run(story)
