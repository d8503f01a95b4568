"""Devices that were withdrawn a moment ago: what the kubelet's checkpoint proves about them, and what it does not."""

import asyncio
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from tessera.core.devices.device import ON_THE_WAY, RECALL, Device
from tessera.node.deviceplugin.withdrawn import Withdrawn
from tessera.protocol.kubelet import checkpoint
from tests.node.deviceplugin.test_allocations import Clock
from tests.node.running import slices

TWOS, THREES = slices(2, [0, 2]), slices(3, [4])
BEFORE = [*TWOS, *THREES]
X, Y = TWOS[0].resource, THREES[0].resource
IDS = frozenset(one.id for one in BEFORE)


class Case:
    """Three devices that the kubelet has taken over, withdrawn at 0."""

    def __init__(self, folder: Path, *, listed: list[Device] = BEFORE) -> None:
        self.file, self.clock = folder / checkpoint.FILE, Clock()
        self.asked = dict.fromkeys((X, Y), -inf)
        self.withdrawn = Withdrawn(folder, lambda resource: self.asked[resource], self.clock)
        self.lists(*listed)
        self.withdrawn.published(BEFORE, ())

    def lists(self, *devices: Device, held: Device | None = None) -> None:
        """The kubelet writes its checkpoint, with these healthy devices."""
        healthy = {resource: [one.id for one in devices if one.resource == resource] for resource in (X, Y)}
        entries = (
            [checkpoint.CheckpointEntry("uid", "main", held.resource, {"-1": [held.id]})] if held else []
        )
        self.file.write_bytes(checkpoint.encode(entries, healthy))

    def released(self, at: float) -> float:
        """When they are released, if they are looked at every 50 ms from now on until then; infinite: they are not."""
        while not self.withdrawn.released and self.clock.now < at:
            self.clock.now += 0.05
            self.withdrawn.try_release()
        assert self.withdrawn.released in (IDS, frozenset()), "all together, or none"
        returning = self.withdrawn.of({one.key for one in BEFORE})
        listed = [*self.withdrawn.on_list(X), *self.withdrawn.on_list(Y)]
        assert {one.id for one in listed} == {one.id for one in returning}, "the kubelet's list has them"
        assert not any(one.healthy for one in listed)
        assert bool(returning) == (not self.withdrawn.released and self.clock.now < RECALL)
        return self.clock.now if self.withdrawn.released else inf


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_what_the_kubelet_no_longer_lists_is_released(case: Case) -> None:
    """Once the checkpoint has none of them, and a call that was on its way has had time to come. Until then each can come back."""
    assert case.released(1.0) == inf, "still listed"
    case.lists(*THREES)
    assert case.released(2.0) == inf, "one is still listed"
    case.lists()
    assert case.released(RECALL) == pytest.approx(2.05 + ON_THE_WAY, abs=0.051)


def test_other_devices_and_resources_do_not_matter(case: Case, tmp_path: Path) -> None:
    """An id counts with its resource; a resource that the kubelet has forgotten has no devices; devices of others stay listed."""
    case.file.write_bytes(
        checkpoint.encode([], {"example.com/other": [TWOS[0].id], X: ["MIG-another"], "example.com/null": []})
    )
    assert case.released(1.0) < 0.5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(checkpoint.encode([], {X: [], Y: []})[:-9]),
        lambda file: file.write_bytes(b'{"Data": {"PodDeviceEntries": null}, "Checksum": 1}'),
        lambda file: file.write_bytes(b'{"Data": {"PodDeviceEntries": null, "RegisteredDevices": null}}'),
        lambda file: file.write_bytes(b'{"Data": {"RegisteredDevices": {}}}'),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["none", "empty", "torn", "without devices", "null", "without pods", "not text", "a folder"],
)
def test_a_checkpoint_that_cannot_be_read_proves_nothing(case: Case, spoil: Callable[[Path], object]) -> None:
    """They can come back for as long as without a checkpoint, and are not released."""
    spoil(case.file)
    assert case.released(RECALL + 1) == inf


def test_a_look_that_fails_begins_anew(case: Case) -> None:
    """Whether they were listed meanwhile is not known then."""
    case.lists()
    assert case.released(0.2) == inf
    case.file.unlink()
    assert case.released(0.3) == inf
    case.lists()
    assert case.released(RECALL) == pytest.approx(0.35 + ON_THE_WAY, abs=0.051)


def test_what_was_never_listed_is_not_proven(tmp_path: Path) -> None:
    """The kubelet may not have taken over yet the list in which it was: that it is not listed says nothing."""
    case = Case(tmp_path, listed=TWOS)
    case.lists()
    assert case.released(RECALL + 1) == inf


def test_what_a_container_has_is_not_released(case: Case) -> None:
    """A device that the kubelet counts as allocated stays, whoever gave it."""
    case.lists(held=TWOS[1])
    assert case.released(RECALL + 1) == inf


def test_a_question_that_is_open_may_be_about_them(case: Case) -> None:
    """The kubelet has looked which devices are healthy before it asks which we prefer: Allocate comes after the answer."""
    case.lists()
    case.asked[Y] = inf
    assert case.released(1.0) == inf
    case.asked[Y] = case.clock.now
    assert case.released(RECALL) == pytest.approx(1.0 + ON_THE_WAY, abs=0.051)


def test_devices_that_are_published_again_are_not_released(case: Case) -> None:
    """A layout that wants them back: nothing is withdrawn any more."""
    case.lists()
    assert case.released(1.0) < inf
    case.withdrawn.published((), BEFORE)
    assert not case.withdrawn.released
    case.lists(*BEFORE)
    case.withdrawn.published(BEFORE, ())
    assert not case.withdrawn.released, "withdrawn again: proven again"
    assert len(case.withdrawn.of({one.key for one in BEFORE})) == len(BEFORE)


def test_what_was_unhealthy_does_not_come_back(tmp_path: Path) -> None:
    """The kubelet does not choose it."""
    withdrawn = Withdrawn(tmp_path, lambda _: -inf, Clock())
    ill = TWOS[0].unhealthy("lost")
    withdrawn.published([ill], ())
    assert not withdrawn.of({ill.key})


def test_a_process_that_stood_still_takes_them_off_the_list(case: Case) -> None:
    """Also where none could come back by the time it looked: the kubelet's list has them until a new one is sent."""
    case.clock.now += RECALL + 1
    sent: list[str] = []

    async def story() -> None:
        watching = asyncio.create_task(case.withdrawn.watch(sent.append))
        for _ in range(3):
            await asyncio.sleep(0)
        watching.cancel()

    asyncio.run(story())
    assert sent == [X, Y]
