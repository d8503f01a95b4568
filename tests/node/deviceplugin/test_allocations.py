"""What the kubelet has allocated: what it says, what it proves, and what is remembered meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tessera.node.deviceplugin.allocations import GRACE, Allocations, Holders
from tessera.node.state import Key
from tessera.protocol.kubelet import checkpoint
from tessera.simulation.kubelet import Held, Kubelet
from tests.node.running import run, started

X = "example.com/x"
A, B = (X, "a"), (X, "b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A kubelet whose pods a test chooses, and the plugin's view of them."""

    def __init__(self, root: Path, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.clock = Clock()
        self.holders = Holders(root / "state" / "holders.json", self.clock)
        self.holders.load()
        self.allocations = Allocations(root, self.holders, self.send_again, self.clock)
        self.sent = 0
        self.listens = True

    def send_again(self) -> bool:
        self.sent += 1
        if self.listens:
            self.kubelet._write_checkpoint()  # as every message makes it do
        return self.listens

    def runs(self, **pods: str) -> None:
        """These pods run, each with one device."""
        self.kubelet.pods = {f"ml/{pod}": {"main": Held({X: [one]})} for pod, one in pods.items()}

    async def held(self, *keys: Key) -> dict[Key, str]:
        await self.allocations.settle(keys or (A, B))
        return self.allocations.held(keys or (A, B))

    async def held_after_grace(self) -> dict[Key, str]:
        """What is held still, when the kubelet has not counted the others for ten seconds."""
        await self.held()
        self.clock.now += GRACE
        return await self.held()


@asynccontextmanager
async def node_in(root: Path) -> AsyncIterator[Node]:
    async with started(Kubelet(root)) as kubelet:
        yield Node(root, kubelet)


def test_what_is_not_proven_free_is_held() -> None:
    """Before the first proof every device is held; then those in the checkpoint, by the names that List gives."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.runs(train="a")
            assert node.allocations.held((A, B)) == {A: "a pod", B: "a pod"}
            node.listens = False
            assert await node.held() == {A: "ml/train", B: "a pod"}, "no kubelet listens: nothing is proven"
            node.listens = True
            assert await node.held() == {A: "ml/train"}
            node.runs()
            assert await node.held_after_grace() == {}

    run(story)


def test_fault_60_a_pod_deleted_by_force() -> None:
    """The kubelet forgets it at once, while its container has seconds to end: its device is held for ten seconds more."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.runs(train="a", other="b")
            assert await node.held() == {A: "ml/train", B: "ml/other"}
            node.runs(other="b")
            for _ in range(10):
                assert await node.held() == {A: "ml/train", B: "ml/other"}
                node.clock.now += 0.99
            node.clock.now += 0.1
            assert await node.held() == {B: "ml/other"}

    run(story)


def test_fault_60_what_is_listed_is_held_whatever_the_checkpoint_says() -> None:
    """PodResources names a pod, and the checkpoint lacks it: the pod holds its device."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:

            def forget() -> None:
                (node.kubelet.folder / checkpoint.FILE).write_bytes(checkpoint.encode([]))

            node.kubelet._write_checkpoint = forget  # type: ignore[method-assign]
            node.runs(train="a")
            assert await node.held_after_grace() == {A: "ml/train"}
            assert await node.held_after_grace() == {A: "ml/train"}

    run(story)


def test_what_was_handed_out_just_now_is_held() -> None:
    """The kubelet may not count yet what was handed out a moment ago; it is free when the pod has not come in ten seconds."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            assert await node.held() == {}
            node.holders.grant([B])
            assert await node.held() == {B: "a pod"}
            node.clock.now = 9.9
            assert await node.held() == {B: "a pod"}
            node.clock.now = 10.1
            assert await node.held() == {}, "that pod never came about"
            node.holders.grant([B])
            node.runs(late="b")
            assert await node.held() == {B: "ml/late"}
            node.runs()
            assert await node.held_after_grace() == {}

    run(story)


@pytest.mark.parametrize("known", [(), ("ml/static",)])
def test_fault_42_a_list_that_lacks_pods_proves_nothing(known: tuple[str, ...]) -> None:
    """A kubelet that has just started lists no pods, or static pods only: the others hold what they held."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.runs(train="a", static="b")
            held = {A: "ml/train", B: "ml/static"}
            assert await node.held() == held
            for _ in range(3):
                await node.kubelet.restart(unknown=node.kubelet.pods.keys() - {*known})
                for _ in range(3):
                    assert await node.held() == held
                    node.clock.now += 60.0  # time alone proves nothing either
                assert set(node.allocations.listed.values()) == {*known}
                node.kubelet.unknown.clear()
                assert await node.held() == held
            await node.kubelet.remove("ml/train")
            assert await node.held_after_grace() == {B: "ml/static"}

    run(story)


def test_fault_42_init_containers_hold_what_no_list_shows() -> None:
    """Plain init containers are never listed, and their pod holds their devices until it ends."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.holders.grant([A])
            node.runs(train="a")
            node.kubelet._write_checkpoint()
            node.kubelet.pods["ml/train"].clear()  # the init container is over: no container is listed
            node.clock.now = 60.0
            assert await node.held() == {A: "a pod"}
            sent = node.sent
            assert await node.held() == {A: "a pod"}
            assert node.sent == sent, "the kubelet has just said so: it is not made to write every second"
            await node.kubelet.remove("ml/train")
            node.clock.now += 5.0
            assert await node.held_after_grace() == {}

    run(story)


def test_fault_42_plugin_and_kubelet_start_together() -> None:
    """The record is on disk: a plugin that starts beside a kubelet that knows no pod yet forgets none."""

    async def story(root: Path) -> None:
        async with node_in(root) as before:
            before.runs(train="a")
            assert await before.held() == {A: "ml/train"}
            await before.kubelet.restart(unknown=["ml/train"])
            after = Node(root, before.kubelet)
            assert after.allocations.held((A,)) == {A: "ml/train"}
            assert await after.held() == {A: "ml/train"}
            after.kubelet.unknown.clear()
            assert await after.held() == {A: "ml/train"}
            after.runs()
            assert await after.held_after_grace() == {}

    run(story)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"Data": {"PodDeviceEntries": 3}}',
        b"\xff",
        b'{"Data": {"PodDeviceEntries": [{"PodUID": "\xff"}]}}',
    ],
)
def test_a_checkpoint_that_cannot_be_read_proves_nothing(data: bytes) -> None:
    """What was held stays held."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.runs(train="a")
            assert await node.held() == {A: "ml/train"}
            node.runs()

            def spoil() -> None:
                (node.kubelet.folder / checkpoint.FILE).write_bytes(data)

            node.kubelet._write_checkpoint = spoil  # type: ignore[method-assign]
            assert await node.held() == {A: "ml/train"}

    run(story)


def test_a_checkpoint_that_is_not_written_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file says what was, not what is; and waiting for the new one ends."""
    monkeypatch.setattr("tessera.node.deviceplugin.allocations._CHECKPOINT_TIMEOUT", 0.05)

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            assert await node.held() == {}
            node.runs(train="a")
            assert await node.held() == {A: "ml/train"}
            (node.kubelet.folder / checkpoint.FILE).write_bytes(checkpoint.encode([]))
            node.runs()
            node.kubelet._write_checkpoint = lambda: None  # type: ignore[method-assign]
            assert await node.held() == {A: "ml/train"}

    run(story)


def test_a_kubelet_that_is_away() -> None:
    """The last answer and everything handed out since count as held."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.runs(train="a")
            assert await node.held() == {A: "ml/train"}
        node.holders.grant([B])
        node.clock.now = 60.0
        assert not await node.allocations.ask()
        assert await node.held() == {A: "ml/train", B: "a pod"}

    run(story)


def test_a_kubelet_without_pod_resources() -> None:
    """Without the socket, what was handed out counts as held, also after a restart."""

    async def story(root: Path) -> None:
        async with started(Kubelet(root, pod_resources=False)) as kubelet:
            node = Node(root, kubelet)
            assert await node.held() == {}
            node.holders.grant([A])
            assert await node.held() == {A: "a pod"}
            assert await Node(root, kubelet).held() == {A: "a pod"}

    run(story)


def test_two_at_once_agree() -> None:
    """The look and the metric may ask at the same time."""

    async def story(root: Path) -> None:
        async with node_in(root) as node:
            node.runs(train="a")
            answers: Collection[dict[Key, str]] = await asyncio.gather(*(node.held() for _ in range(4)))
            assert all(answer == {A: "ml/train"} for answer in answers)

    run(story)
