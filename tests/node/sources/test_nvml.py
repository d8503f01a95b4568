"""Real GPUs, as far as can be tested without one: the strategies, health, and what is asked of the driver."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera.core.devices.device import Device, DeviceNode, Edits, Span
from tessera.core.mig.layout import Strategy
from tessera.node.sources import SourceFailed
from tessera.node.sources.nvml import NvmlSource, mig_minors
from tessera.node.sources.nvml_card import NvmlCard, NvmlMigDevice
from tessera.node.sources.nvml_library import Nvml, NvmlEvent, NvmlLibrary
from tessera.protocol.configuration.devices import NvmlCards
from tests.node.sources.fake_pynvml import FakePynvml

WHOLE = NvmlCard(0, "GPU-0", "NVIDIA H200", 143771, minor=0, numa=1)
CUT = NvmlCard(
    1,
    "GPU-1",
    "NVIDIA H200",
    143771,
    minor=1,
    numa=0,
    mig_enabled=True,
    mig_devices=(
        NvmlMigDevice("MIG-a", "1g.18gb+me", 7, 0, 16384, 0, 1),
        NvmlMigDevice("MIG-b", "3g.71gb", 2, 0, 71424, 4, 4),
    ),
)


class FakeNvml:
    """A driver that says what the test says."""

    def __init__(self, *cards: NvmlCard) -> None:
        self.list = list(cards)
        self.pending: list[NvmlEvent] = []
        self.looks = 0
        self.unanswered: dict[str, str] = {}

    def cards(self, busy: Collection[str] = ()) -> Sequence[NvmlCard]:
        self.looks += 1
        return list(self.list)

    def events(self) -> Sequence[NvmlEvent]:
        pending, self.pending = self.pending, []
        return pending

    def close(self) -> None:
        pass


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def source(
    nvml: Nvml, strategy: Strategy = Strategy.MIXED, *, clock: Clock | None = None, **options: Any
) -> NvmlSource:
    described = options.pop("described", True)
    cards = NvmlCards(strategy, "NVIDIA_VISIBLE_DEVICES", "tessera.nvml/gpu", described_by_us=described)
    return NvmlSource(nvml, cards, clock=clock or Clock(), **options)


def resources(devices: Sequence[Device]) -> list[tuple[str, str]]:
    return [(device.resource, device.id) for device in devices]


@pytest.mark.parametrize(
    ("cards", "strategy", "expected"),
    [
        ([WHOLE, CUT], Strategy.NONE, [("nvidia.com/gpu", "GPU-0"), ("nvidia.com/gpu", "GPU-1")]),
        (
            [WHOLE, CUT],
            Strategy.MIXED,
            [
                ("nvidia.com/gpu", "GPU-0"),
                ("nvidia.com/mig-1g.18gb.me", "MIG-a"),
                ("nvidia.com/mig-3g.71gb", "MIG-b"),
            ],
        ),
        ([WHOLE], Strategy.SINGLE, [("nvidia.com/gpu", "GPU-0")]),
        (
            [replace(CUT, mig_devices=CUT.mig_devices[1:])],
            Strategy.SINGLE,
            [("nvidia.com/gpu", "MIG-b")],
        ),
    ],
)
def test_strategies(cards: list[NvmlCard], strategy: Strategy, expected: list[tuple[str, str]]) -> None:
    """Resource names are those of NVIDIA's plugin."""
    assert resources(source(FakeNvml(*cards), strategy).devices()) == expected


@pytest.mark.parametrize("cards", [[WHOLE, CUT], [CUT]])
def test_single_wants_cards_that_are_alike(cards: list[NvmlCard]) -> None:
    """A mixture under strategy single is refused, with the way out."""
    with pytest.raises(SourceFailed, match="use mixed"):
        source(FakeNvml(*cards), Strategy.SINGLE).devices()


def test_device_nodes_places_and_numa(tmp_path: Path) -> None:
    """A GPU has its node and the shared ones that exist; a MIG device its two capabilities besides."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    caps = tmp_path / "proc" / "driver" / "nvidia-caps"
    caps.mkdir(parents=True)
    (caps / "mig-minors").write_text("config 1\nmonitor 2\ngpu1/gi2/access 21\ngpu1/gi2/ci0/access 22\n")
    whole, _, slice_ = source(FakeNvml(WHOLE, CUT), host_root=tmp_path).devices()
    assert whole.edits == Edits(
        nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0"), DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"))
    )
    assert [node.path for node in slice_.edits.nodes] == [
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
    ]
    assert whole.place is not None
    assert slice_.place is not None
    assert (whole.place.span, slice_.place.span) == (Span(0, 8), Span(4, 4))
    assert slice_.place.card.blocks[0] == Span(0, 8)
    assert (whole.numa, slice_.numa) == ((1,), (0,))


def test_described_by_nvidias_toolkit() -> None:
    """Where NVIDIA's own CDI spec describes the devices, ours says nothing about them."""
    (device,) = source(FakeNvml(WHOLE), described=False).devices()
    assert device.edits == Edits()


def test_minors() -> None:
    """The driver's table of capabilities, and an empty one."""
    assert mig_minors("config 1\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n") == {
        "gpu0/gi1": 12,
        "gpu0/gi1/ci0": 13,
    }
    assert mig_minors("") == {}


def problems(devices: Sequence[Device]) -> dict[str, str]:
    return {device.id: device.problem for device in devices if device.problem}


def test_fault_51_events_make_ill_and_quiet_heals() -> None:
    """A critical XID marks the card, or the one slice it names; five quiet minutes heal, without a restart."""
    nvml, clock = FakeNvml(WHOLE, CUT), Clock()
    gpus = source(nvml, clock=clock)
    assert problems(gpus.devices()) == {}
    nvml.pending = [NvmlEvent("GPU-0", None, 31), NvmlEvent("GPU-1", 2, 94)]
    assert problems(gpus.devices()) == {"MIG-b": "XID 94"}
    clock.now += 200
    nvml.pending = [NvmlEvent("GPU-1", None, None)]
    assert problems(gpus.devices()) == {
        "MIG-a": "uncorrectable memory error",
        "MIG-b": "uncorrectable memory error",
    }
    clock.now += 200
    assert list(problems(gpus.devices())) == ["MIG-a", "MIG-b"]
    clock.now += 101
    assert problems(gpus.devices()) == {}


def test_a_card_that_does_not_answer_is_ill_until_it_does() -> None:
    """What a look at the card shows is its health, looked at every ten seconds and right after an event."""
    nvml, clock = FakeNvml(WHOLE), Clock()
    gpus = source(nvml, clock=clock)
    gpus.devices()
    nvml.list = [replace(WHOLE, problem="does not answer: GPU is lost")]
    clock.now += 5
    assert problems(gpus.devices()) == {}
    assert nvml.looks == 1
    clock.now += 5
    assert problems(gpus.devices()) == {"GPU-0": "does not answer: GPU is lost"}
    nvml.list = [WHOLE]
    clock.now += 10
    assert problems(gpus.devices()) == {}


def test_what_the_library_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Card, slice, place, memory, NUMA node and worn memory come out as the driver says; events do not wait."""
    fake = FakePynvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    numa = tmp_path / "bus/pci/devices/0000:1b:00.0/numa_node"
    numa.parent.mkdir(parents=True)
    numa.write_text("1\n")
    library = NvmlLibrary(sysfs=tmp_path)
    for _ in range(2):
        assert library.cards() == [
            NvmlCard(
                0,
                "GPU-x",
                "NVIDIA H200",
                143771,
                minor=3,
                numa=1,
                mig_enabled=True,
                mig_devices=(NvmlMigDevice("MIG-x", "1g.18gb+me", 9, 0, 16384, 6, 1),),
                problem="row remapping failed: the card's memory is worn out",
            )
        ]
    assert fake.registered == [("card", 8)]
    assert library.events() == [NvmlEvent("GPU-x", None, 79)]
    assert library.events() == []
    library.close()
    library.close()
    assert fake.open == 0


def test_fault_50_a_driver_that_is_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver there is one sentence; when it is back, everything is asked and registered again."""
    fake = FakePynvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    library = NvmlLibrary()
    fake.loaded = False
    with pytest.raises(SourceFailed, match="NVML: error 9"):
        library.cards()
    fake.loaded = True
    assert len(library.cards()) == 1
    fake.loaded = False
    with pytest.raises(SourceFailed, match="NVML: error 1"):
        library.cards()
    fake.loaded = True
    assert len(library.cards()) == 1
    assert (fake.open, fake.registered) == (1, [("card", 8)] * 2)


def library(monkeypatch: pytest.MonkeyPatch, *cards: str) -> tuple[FakePynvml, NvmlLibrary]:
    fake = FakePynvml()
    fake.cards = list(cards)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake, NvmlLibrary()


LOST = "does not answer: error 15"


@pytest.mark.parametrize(
    "call", ["", " nvmlDeviceGetUUID", " nvmlDeviceGetMigMode", " nvmlDeviceGetMigDeviceHandleByIndex"]
)
def test_fault_51_one_lost_card_does_not_take_the_node_with_it(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A card that is lost, at whatever it is asked, keeps its devices as last seen, unhealthy with NVML's words; the others stay.

    It is healthy again when it answers.
    """
    fake, nvml = library(monkeypatch, "card", "card1")
    fake.events, clock = [], Clock()
    cards = NvmlCards(Strategy.MIXED, "", "tessera.nvml/gpu", described_by_us=True)
    gpus = NvmlSource(nvml, cards, clock=clock)
    before = gpus.devices()
    worn = "row remapping failed: the card's memory is worn out"  # the fake's cards are
    assert problems(before) == {"MIG-x": worn, "MIG-x1": worn}
    fake.answers[f"card1{call}"] = 15
    clock.now += 10
    after = gpus.devices()
    assert resources(after) == resources(before)
    assert problems(after) == {"MIG-x": worn, "MIG-x1": LOST}
    fake.answers.clear()
    clock.now += 10
    assert gpus.devices() == before
    assert fake.open == 1


def test_fault_51_a_card_that_was_lost_before_we_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no name but its number, and is shown as a whole GPU that does not answer; strategy single does not mind it."""
    fake, nvml = library(monkeypatch, "card", "card1")
    fake.answers["card1"] = 15
    expected = [("nvidia.com/mig-1g.18gb.me", "MIG-x"), ("nvidia.com/gpu", "card-1")]
    mixed = source(nvml).devices()
    assert (resources(mixed), mixed[1].problem) == (expected, LOST)
    single = [("nvidia.com/gpu", "MIG-x"), ("nvidia.com/gpu", "card-1")]
    assert resources(source(nvml, Strategy.SINGLE).devices()) == single


def test_numbers_that_shift_when_a_card_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a card that is lost, what another card is now is not said: no id stands twice."""
    fake, nvml = library(monkeypatch, "card", "card1", "card2")
    nvml.cards()
    fake.cards, fake.answers = ["card1", "card2"], {"card2": 15}
    assert [(card.uuid, card.problem == LOST) for card in nvml.cards()] == [("GPU-x1", False), ("", True)]
    fake.cards, fake.answers = ["card1", "card2", "card3"], {}
    assert [card.uuid for card in nvml.cards()] == ["GPU-x1", "GPU-x2", "GPU-x3"]


def test_a_card_that_is_being_cut_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as it was seen last, and is not unhealthy for it."""
    fake, nvml = library(monkeypatch, "card", "card1")
    before = nvml.cards()
    fake.answers = {"card1": 15}
    assert nvml.cards(busy={"GPU-x1"}) == before
    assert nvml.cards()[1].problem == LOST


def test_a_slice_that_is_removed_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that cuts the card meanwhile does not make it unhealthy: the slice is gone, that is all."""
    fake, nvml = library(monkeypatch, "card")
    fake.answers["card slice"] = 6
    (card,) = nvml.cards()
    assert (card.mig_enabled, card.mig_devices) == (True, ())
    fake.answers = {"card nvmlDeviceGetMigMode": 3}  # a card without MIG
    assert not nvml.cards()[0].mig_enabled


def test_events_while_a_card_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of a lost card has no name and makes us read the cards; a wait for events that fails makes us open the library again."""
    fake, nvml = library(monkeypatch, "card", "card1")
    nvml.cards()
    fake.answers = {"card": 15}
    assert nvml.events() == [NvmlEvent("", None, 79)]
    fake.answers = {"events": 15}
    assert nvml.events() == []
    fake.answers = {}
    assert len(nvml.cards()) == 2
    assert (fake.open, fake.registered) == (1, [("card", 8), ("card1", 8)] * 2)


def test_cards_that_come_and_a_card_that_another_program_cuts() -> None:
    """Whatever mig-parted does, and whichever card comes, is seen at the next look, ten seconds later at most."""
    nvml, clock = FakeNvml(WHOLE), Clock()
    gpus = source(nvml, clock=clock)
    assert resources(gpus.devices()) == [("nvidia.com/gpu", "GPU-0")]
    nvml.list = [
        replace(WHOLE, mig_enabled=True, mig_devices=(NvmlMigDevice("MIG-0", "3g.71gb", 1, 0, 71424, 0, 4),)),
        CUT,
    ]
    clock.now += 10
    assert resources(gpus.devices()) == [
        ("nvidia.com/mig-3g.71gb", "MIG-0"),
        ("nvidia.com/mig-1g.18gb.me", "MIG-a"),
        ("nvidia.com/mig-3g.71gb", "MIG-b"),
    ]


def test_profiles_are_named_as_by_gpu_feature_discovery() -> None:
    """Slices with media engines, and compute instances that share a GPU instance, are resources of their own."""
    part = NvmlMigDevice("MIG-c", "1c.3g.71gb", 2, 0, 71424, 4, 4)
    cut = replace(
        CUT, mig_devices=(CUT.mig_devices[0], part, replace(part, uuid="MIG-d", compute_instance=1))
    )
    assert [device.resource for device in source(FakeNvml(cut)).devices()] == [
        "nvidia.com/mig-1g.18gb.me",
        "nvidia.com/mig-1c.3g.71gb",
        "nvidia.com/mig-1c.3g.71gb",
    ]
