"""Claims that cut real cards, on a driver in memory: slices come and go with their claims, whatever happens on the way."""

import asyncio
import copy
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tessera.core.devices.device import Device, DeviceType
from tessera.core.dra.device_names import slice_name
from tessera.core.mig.layout import Strategy
from tessera.core.mig.placement import Instance, every_place
from tessera.core.mig.profile import MigProfile
from tessera.node.cdi import ClaimFiles
from tessera.node.dra.claim_cutting import ClaimSlices
from tessera.node.dra.claim_objects import GivenDevice
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.dra.preparing import CannotPrepare, Claims
from tessera.node.dra.slice_documents import offer
from tessera.node.metrics import DraMetrics
from tessera.node.sources.cutting import jobs
from tessera.node.sources.cutting.jobs import CutJob
from tessera.node.sources.cutting.on_demand import OnDemandSource
from tessera.node.sources.cutting.port import DriverRefused
from tessera.node.sources.nvml import NvmlSource
from tessera.protocol.configuration.devices import NvmlCards
from tessera.protocol.kubelet.dra_messages import ClaimName
from tests.node.dra.samples import POOL
from tests.node.sources.cutting.fake import H200, FakeCard, FakeDriver, Killed, fits
from tests.node.sources.cutting.test_card import layout
from tests.node.sources.test_nvml import Clock

ONE, TWO, THREE = "gpu-0-mig-1g-18gb-1", "gpu-0-mig-2g-35gb-0", "gpu-0-mig-3g-71gb-4"
PLACES = [*every_place(H200)]


class Inline(CutJob):
    """A cut in the caller's thread: what kills it kills the caller."""

    def start(self) -> None:
        self._run()


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads, and no waiting for the disk."""

    async def to_thread(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(jobs, "CutJob", Inline)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Node:
    """A process of the driver; another one over the same folder and cards is the next."""

    def __init__(self, root: Path, driver: FakeDriver, *, boot: str = "a", **options: Any) -> None:
        self.root, self.driver = root, driver
        (root / "boot").write_text(boot)
        cards = NvmlCards(
            Strategy.MIXED,
            "NVIDIA_VISIBLE_DEVICES",
            "tessera.nvml/gpu",
            described_by_us=True,
            cut=True,
            dynamic=(),
        )
        self.metrics = DraMetrics()
        self.source = OnDemandSource(
            NvmlSource(driver, cards, host_root=root),
            driver,
            node="node-1",
            state_dir=root / "state",
            metrics=self.metrics,
            boot_id=root / "boot",
            **options,
        )
        self.source.begin(())
        self.source.objection = ""
        self.store = PreparedClaims(root / "claims", root / "boot")
        self.devices: dict[str, Device] = {}
        self.given: dict[str, Sequence[GivenDevice]] = {}
        self.claims = Claims(
            pool=POOL,
            store=self.store,
            files=ClaimFiles(root / "cdi"),
            read=self._read,
            offered=lambda: self.devices,
            metrics=self.metrics,
            slices=ClaimSlices(self.source, self.store),
        )

    async def _read(self, claim: ClaimName) -> Sequence[GivenDevice]:
        return self.given[claim.uid]

    async def poll(self) -> dict[str, Device]:
        """A look, and the end of what it began."""
        self.devices = offer(await self.source.devices())
        self.claims.tidy(self.store.readable())
        await asyncio.gather(*self.claims._tasks)
        return self.devices

    async def prepare(self, uid: str, *devices: str, timeout: float = 0.0, admin: bool = False) -> None:
        self.given[uid] = [GivenDevice("gpu", one, admin) for one in devices]
        await self.claims.prepare(ClaimName("ns", uid, uid), timeout)

    async def end(self, uid: str) -> None:
        await self.claims.unprepare(ClaimName("ns", uid, uid))

    def killed(self) -> None:
        """The process ends: whatever it had locked is free."""
        self.source._jobs._lock.release()

    def seen(self, uid: str) -> dict[str, list[str]]:
        """The devices that containers of a claim see: variables and nodes, by the device's name."""
        spec = json.loads((self.root / "cdi" / f"gpu.tessera.dev-claim-{uid}.json").read_text())
        return {
            one["name"].removeprefix(f"{uid}-"): [
                *one["containerEdits"].get("env", ()),
                *(node["path"] for node in one["containerEdits"].get("deviceNodes", ())),
            ]
            for one in spec["devices"]
        }

    @property
    def left(self) -> list[str]:
        """Files of claims and cuts."""
        folders = (self.root / "claims", self.root / "cdi", self.root / "state" / "cut")
        return sorted(path.name for folder in folders for path in folder.glob("*.json"))


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def cut(card: FakeCard) -> list[str]:
    return [str(one) for one in card.cut.instances]


def minors(root: Path, *instances: int) -> None:
    file = root / "proc/driver/nvidia-caps/mig-minors"
    file.parent.mkdir(parents=True)
    lines = [f"gpu0/gi{n}/access {100 + n}\ngpu0/gi{n}/ci0/access {200 + n}\n" for n in instances]
    file.write_text("".join(lines))


def test_every_place_is_offered_as_nvml_has_it(tmp_path: Path) -> None:
    """Names, memory and counters are those of the places that NVML names; the card as a whole only where its mode may be switched."""

    async def story() -> None:
        driver = FakeDriver(FakeCard(0), FakeCard(1, mig=False))
        found = await Node(tmp_path, driver).poll()
        assert {one.model.profile for one in found.values()} == {"", *map(str, H200.profiles)}
        assert len(found) == len(PLACES) + 1
        assert found["gpu-1"].model.type is DeviceType.GPU
        one = found[ONE]
        assert (one.resource, one.model.memory_mib, one.model.parent, one.model.cut) == (
            "nvidia.com/mig-1g.18gb", 16384, "GPU-0", False,
        )  # fmt: skip
        assert Node(tmp_path, driver).source.counted == {}
        switching = Node(tmp_path, driver, switch_mode=True)
        assert len(await switching.poll()) == 2 * (len(PLACES) + 1)
        assert switching.source.counted.keys() == {"GPU-0", "GPU-1"}
        few = Node(tmp_path, driver, profiles=[MigProfile.parse("3g.71gb"), MigProfile.parse("1g.5gb")])
        assert [*await few.poll()] == ["gpu-0-mig-3g-71gb-4", "gpu-0-mig-3g-71gb-0", "gpu-1"]

    run(story)


def test_a_slice_is_cut_for_its_claim_and_goes_with_it(tmp_path: Path) -> None:
    """Its containers see its UUID and its capabilities; claims beside it keep theirs, and nothing is left."""

    async def story() -> None:
        card = FakeCard()
        minors(tmp_path, 1, 2)
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        await node.prepare("a", TWO)
        await node.prepare("b", THREE)
        variable, card_node, *_, gi, ci = node.seen("a")[TWO]
        assert (variable, card_node) == ("NVIDIA_VISIBLE_DEVICES=MIG-0-1-0", "/dev/nvidia0")
        assert (gi, ci) == ("/dev/nvidia-caps/nvidia-cap101", "/dev/nvidia-caps/nvidia-cap201")
        assert cut(card) == ["2g.35gb at 0", "3g.71gb at 4"]
        calls = len(card.calls)
        await node.prepare("a", TWO)
        assert len(card.calls) == calls, "what is prepared is not cut again"
        await node.end("a")
        assert (cut(card), [*card.instances]) == (["3g.71gb at 4"], [2])
        await node.end("b")
        assert (cut(card), node.left) == ([], [])
        assert not any(node.driver.open_at_cut)

    run(story)


def test_whole_cards_and_slices_by_turns(tmp_path: Path) -> None:
    """With `switchMode` MIG is turned on for the first slice, and off for the whole card; it stays as it is when claims end."""

    async def story() -> None:
        card = FakeCard(mig=False)
        node = Node(tmp_path, FakeDriver(card), switch_mode=True)
        await node.poll()
        await node.prepare("a", TWO)
        assert (card.mig, cut(card)) == (True, ["2g.35gb at 0"])
        await node.end("a")
        await node.poll()
        await node.prepare("b", "gpu-0")
        assert not card.mig
        assert node.seen("b")["gpu-0"][0] == "NVIDIA_VISIBLE_DEVICES=GPU-0"
        await node.end("b")
        assert not card.mig
        card.reset_needed = True
        with pytest.raises(CannotPrepare, match="MIG mode will be on after a reset of the card"):
            await node.prepare("c", TWO)

    run(story)


def test_fault_50_what_a_program_uses_stays_with_nvmls_words(tmp_path: Path) -> None:
    """A slice that another program made goes when nobody uses it; until then claims for its place fail with NVML's words, others do not."""

    async def story() -> None:
        card = FakeCard().add(*layout("2g.35gb@0", "3g.71gb@4"))
        card.in_use = {1}
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        assert cut(card) == ["2g.35gb at 0"]
        words = (
            f"{ONE} cannot be cut: card 0: 2g.35gb at 0: nvmlComputeInstanceDestroy: In use by another client"
        )
        with pytest.raises(CannotPrepare, match=words):
            await node.prepare("a", ONE)
        await node.end("a")
        with pytest.raises(CannotPrepare, match="In use by another client"):
            await node.prepare("same", TWO)  # never the slice that the program has
        await node.end("same")
        await node.prepare("b", THREE)
        card.in_use = set()
        await Node(tmp_path, node.driver).poll()  # one that does not wait before it tries again
        await node.prepare("a", ONE)
        assert cut(card) == ["1g.18gb at 1", "3g.71gb at 4"]

    run(story)


def test_while_others_have_the_cards_only_slices_of_claims_go(tmp_path: Path) -> None:
    """Nothing is cut for a claim, with the reason; a claim that ends takes its own slice with it, and no other."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        await node.prepare("a", TWO)
        card.add(*layout("3g.71gb@4"))
        node.source.objection = "a device plugin offers the same devices"
        with pytest.raises(CannotPrepare, match=f"{THREE} cannot be cut: a device plugin offers the same"):
            await node.prepare("b", THREE)
        await node.end("b")
        await node.end("a")
        assert cut(card) == ["3g.71gb at 4"]
        node.source.objection = ""
        await node.poll()
        assert cut(card) == []

    run(story)


def test_a_claim_ends_though_a_program_uses_its_slice(tmp_path: Path) -> None:
    """The slice goes when the program has let go of it."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        await node.prepare("a", TWO)
        card.in_use = {1}
        await node.end("a")
        assert (cut(card), node.left) == (["2g.35gb at 0"], [])
        card.in_use = set()
        await Node(tmp_path, node.driver).poll()
        assert cut(card) == []

    run(story)


def test_fault_50_where_nvml_refuses_the_card_is_as_before(tmp_path: Path) -> None:
    """The claim fails with NVML's words, the slices of others are the same, and the next try is whole."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        await node.prepare("a", THREE)

        def refuse(name: str, number: int) -> None:
            if name == "create_compute":
                raise DriverRefused("nvmlGpuInstanceCreateComputeInstance: Insufficient Resources")

        card.fault = refuse
        with pytest.raises(CannotPrepare, match=f"{TWO} cannot be cut: card 0: nvmlGpuInstanceCreate"):
            await node.prepare("b", TWO)
        assert (cut(card), card.complete) == (["3g.71gb at 4"], True)
        number = len(card.calls)
        with pytest.raises(CannotPrepare, match="nvmlGpuInstanceCreate"):
            await node.prepare("b", TWO)
        assert len(card.calls) == number, "the same is not tried again at once"
        card.fault = lambda name, number: None
        later = Node(tmp_path, node.driver)
        await later.poll()
        await later.prepare("b", TWO)
        assert (cut(card), next(iter(card.instances))) == (["2g.35gb at 0", "3g.71gb at 4"], 1)

    run(story)


def test_fault_50_what_nvml_refuses_for_one_claim_does_not_keep_others(tmp_path: Path) -> None:
    """A claim that was begun and cannot be cut is no part of what is cut for another one on the same card."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        create = card.create

        def refuse(instance: Instance) -> int:
            if instance.size == 2:
                raise DriverRefused("nvmlDeviceCreateGpuInstanceWithPlacement: Insufficient Resources")
            return create(instance)

        card.create = refuse  # type: ignore[method-assign]
        with pytest.raises(CannotPrepare, match="Insufficient Resources"):
            await node.prepare("a", TWO)
        await node.poll()
        await node.prepare("b", THREE)
        assert cut(card) == ["3g.71gb at 4"]

    run(story)


def test_fault_50_a_call_that_hangs_holds_up_its_card_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims of the card fail with the card's name, those of others are prepared; no other process cuts meanwhile."""
    monkeypatch.setattr(jobs, "CutJob", CutJob)
    monkeypatch.setattr(jobs, "_POLL", 0.05)

    async def story() -> None:
        cards, gate = [FakeCard(0), FakeCard(1)], threading.Event()
        node = Node(tmp_path, FakeDriver(*cards))
        await node.poll()

        def hang(name: str, number: int) -> None:
            if name == "create":
                gate.wait(30)

        cards[0].fault = hang
        with pytest.raises(CannotPrepare, match=f"{TWO} cannot be cut: card 0 is being cut"):
            await node.prepare("a", TWO, timeout=0.05)
        await node.prepare("b", "gpu-1-mig-2g-35gb-0", timeout=10)
        other = Node(tmp_path, node.driver)
        other.devices = node.devices
        with pytest.raises(CannotPrepare, match="another process of Tessera cuts the cards of this node"):
            await other.prepare("c", "gpu-1-mig-3g-71gb-4")
        gate.set()
        await node.prepare("a", TWO, timeout=10)
        await node.poll()
        assert cut(cards[0]) == ["2g.35gb at 0"]
        await other.prepare("c", "gpu-1-mig-3g-71gb-4", timeout=10)
        assert cut(cards[1]) == ["2g.35gb at 0", "3g.71gb at 4"]

    run(story)


def test_fault_49_after_a_start_of_the_machine_claims_are_cut_again(tmp_path: Path) -> None:
    """Nothing is there, and what was prepared in the last boot is void; a card that was reset is cut again when the claim is prepared again."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        await node.prepare("a", TWO)
        await node.prepare("gone", THREE)
        card.instances.clear()
        node = Node(tmp_path, node.driver, boot="b")
        await node.poll()
        assert cut(card) == []
        await node.prepare("a", TWO)
        assert (cut(card), node.seen("a")[TWO][0]) == (["2g.35gb at 0"], "NVIDIA_VISIBLE_DEVICES=MIG-0-3-0")
        card.instances.clear()
        await node.prepare("a", TWO)
        assert (cut(card), node.seen("a")[TWO][0]) == (["2g.35gb at 0"], "NVIDIA_VISIBLE_DEVICES=MIG-0-4-0")

    run(story)


def test_fault_50_what_keeps_a_slice_on_its_card_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program uses a slice that no claim holds: each message is logged once, however often the cut is tried."""

    async def story() -> None:
        clock, card = Clock(), FakeCard().add(*layout("2g.35gb@0", "3g.71gb@4"))
        node = Node(tmp_path, FakeDriver(card), clock=clock)
        for in_use in ({1, 2}, {2}):
            card.in_use = in_use
            for _ in range(3):
                clock.now += 60
                await node.poll()
        waits = [
            line
            for line in caplog.messages
            if line.startswith("card 0: not all is cut, will be tried again: ")
        ]
        assert [(line.count("2g.35gb at 0"), line.count("3g.71gb at 4")) for line in waits] == [
            (1, 1),
            (0, 1),
        ]
        assert card.calls.count("destroy_compute") == 3 * 2 + 1 + 3, "the 2g goes once"

    run(story)


def test_fault_49_a_start_of_the_machine_takes_slices_alone(tmp_path: Path) -> None:
    """Slices that were cut are gone; places that were not, and devices of other sources, may still be there."""

    async def story() -> None:
        node = Node(tmp_path, FakeDriver(FakeCard()))
        place = (await node.poll())[TWO]
        cut_slice = replace(place, model=replace(place.model, cut=True))
        listed = replace(cut_slice, cdi_kind="example.com/listed")
        (tmp_path / "state" / "cut" / "boot").write_text("b")
        assert node.source.begin((place, cut_slice, listed)) == (place, listed)

    run(story)


def test_admin_access_cuts_nothing(tmp_path: Path) -> None:
    """It sees the slice of another claim, and a place that is not cut as its card."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, FakeDriver(card))
        await node.poll()
        await node.prepare("a", TWO)
        await node.prepare("monitor", TWO, THREE, admin=True)
        assert node.seen("monitor")[TWO][0] == "NVIDIA_VISIBLE_DEVICES=MIG-0-1-0,GPU-0"
        await node.end("monitor")
        assert cut(card) == ["2g.35gb at 0"]

    run(story)


def test_slices_that_claims_were_given_as_found_are_kept(tmp_path: Path) -> None:
    """A node that was read until now: its claims keep their slices, whatever is cut beside them."""

    async def story() -> None:
        card = FakeCard().add(*layout("2g.35gb@0")).add(*layout("3g.71gb@4"), computes=3)
        node = Node(tmp_path, FakeDriver(card))
        await node.source.refresh()
        node.devices = offer(node.source.on_cards)
        small = next(name for name in node.devices if "1c" in name)
        await node.prepare("a", TWO)
        await node.prepare("b", small)
        await node.poll()
        with pytest.raises(CannotPrepare, match=f"{ONE} is still in use by claim ns/a"):
            await node.prepare("c", ONE)
        with pytest.raises(CannotPrepare, match=f"{THREE} cannot be cut: another slice is in its place"):
            await node.prepare("d", THREE)
        assert card.instances.keys() == {1, 2}

    run(story)


def test_fault_51_a_lost_card(tmp_path: Path) -> None:
    """All its places are unhealthy with NVML's words; a claim on it ends, and its slice goes when the card is back."""

    async def story() -> None:
        cards = [FakeCard(0), FakeCard(1)]
        node = Node(tmp_path, FakeDriver(*cards))
        await node.poll()
        await node.prepare("a", TWO)
        cards[0].lost = "GPU is lost"
        node.source._gpus.invalidate()
        found = await node.poll()
        assert {one.problem for one in found.values()} == {"", "does not answer: GPU is lost"}
        assert all(one.healthy == name.startswith("gpu-1") for name, one in found.items())
        await node.prepare("a", TWO)
        await node.end("a")
        cards[0].lost = ""
        node.source._gpus.invalidate()
        await node.poll()
        assert (cut(cards[0]), node.left) == ([], [])

    run(story)


class Moment:
    """A node between two calls of the kubelet: its cards, its files and what claims hold."""

    def __init__(self, root: Path) -> None:
        self.card, self.root = FakeCard(), root
        self.root.mkdir()
        self.held: dict[str, Instance] = {}
        self.kept: dict[str, int] = {}  # the number of each claim's GPU instance

    def copy(self, root: Path) -> "Moment":
        shutil.copytree(self.root, root)
        copied = copy.copy(self)
        copied.root, copied.card, copied.held, copied.kept = (
            root, self.card.copy(), {**self.held}, {**self.kept},
        )  # fmt: skip
        return copied

    async def do(self, uid: str, place: Instance, at: int = 0) -> str:
        """A process that prepares a claim, or ends one that is held; the call that it was killed at."""
        killed = ""

        def fault(name: str, number: int) -> None:
            nonlocal killed
            if number == at:
                killed = name
                raise Killed

        self.card.fault, self.card.calls = fault, []
        node, name = Node(self.root, FakeDriver(self.card)), slice_name(0, place.profile, place.position)
        try:
            await node.poll()
            await (node.end(uid) if uid in self.held else node.prepare(uid, name))
        except Killed:
            assert self.others(uid).items() <= self.there.items(), killed
        node.killed()
        return killed

    def done(self, uid: str, place: Instance) -> None:
        """What was asked for is so, and nothing is left behind."""
        others = self.others(uid)
        if uid in self.held:
            del self.held[uid], self.kept[uid]
        else:
            self.held[uid] = place
            self.kept[uid] = next(n for n, one in self.there.items() if one == place)
        assert others.items() <= self.there.items()
        assert self.there == self.others("")
        assert self.card.complete
        assert len(Node(self.root, FakeDriver(self.card)).left) == 2 * len(self.held)

    def others(self, uid: str) -> dict[int, Instance]:
        return {number: self.held[one] for one, number in self.kept.items() if one != uid}

    @property
    def there(self) -> dict[int, Instance]:
        return {number: one for number, (one, _) in self.card.instances.items()}


def test_fault_49_killed_at_every_call_of_random_claims(tmp_path: Path) -> None:
    """Whichever call of NVML the driver was killed at, before or after it took effect: no slice of a prepared claim is lost.

    When the kubelet has asked again nothing is left behind, though another program had left something in the place.
    """
    draw, names, numbers = random.Random(27), list[str](), count()

    async def story() -> None:
        now = Moment(tmp_path / "start")
        for number in range(12):
            held, room = now.held, [one for one in PLACES if fits(H200, [*now.held.values()], one)]
            ends = bool(held) and (not room or draw.random() < 0.4)
            uid = draw.choice([*held]) if ends else f"u{number}"
            place = held[uid] if ends else draw.choice(room)
            if not ends and draw.random() < 0.4:
                now.card.add(draw.choice(room))
            before, now = now, now.copy(tmp_path / f"{next(numbers)}")
            assert not await now.do(uid, place)
            calls = [*now.card.calls]
            now.done(uid, place)
            for at, name in enumerate(calls, 1):
                for point in (at,) if name in ("modes", "made") else (at, -at):
                    one = before.copy(tmp_path / f"{next(numbers)}")
                    names.append(await one.do(uid, place, point))
                    await one.do(uid, place)
                    one.done(uid, place)

    run(story)
    assert {*names} == {"modes", "made", "create", "create_compute", "destroy_compute", "destroy"}
    assert len(names) > 100
