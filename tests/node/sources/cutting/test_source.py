"""The real cards of a node as a whole, on a driver in memory: layouts are carried out, and pods keep what they hold."""

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import count, pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tessera.core.devices.device import Device, Transition, transition
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import Strategy
from tessera.node.metrics import Metrics
from tessera.node.polling import NotPublished
from tessera.node.sources import SourceFailed
from tessera.node.sources.cutting.port import DriverRefused, RefusedForGood
from tessera.node.sources.cutting.source import CutSource
from tessera.node.sources.layout import NodeLayoutStatus, State
from tessera.node.sources.nvml import NvmlSource
from tessera.node.sources.nvml_card import NvmlCard
from tessera.protocol.configuration.devices import NvmlCards
from tests.node.sources.cutting.fake import FakeCard, FakeDriver
from tests.node.sources.cutting.test_card import FIRST, SEVEN, layout
from tests.node.sources.test_hanging import Patience
from tests.node.sources.test_nvml import Clock

STORY = "2g.35gb=2,3g.71gb=1"
ONES = "1g.18gb=7"
SUCCESS = NodeLayoutStatus(State.SUCCESS)


class Node:
    """A node with real cards, and a plugin that does what ours does."""

    started: ClassVar[list[CutSource]] = []

    def __init__(self, folder: Path, *cards: FakeCard) -> None:
        self.folder = folder
        self.file = folder / "layout.yaml"
        self.boot = folder / "boot_id"
        self.boot.write_text("a")
        self.driver = FakeDriver(*cards)
        self.clock = Clock()
        self.devices: tuple[Device, ...] = ()
        self.held: dict[tuple[str, str], str] = {}
        self.source = self.start()

    def start(self, **options: Any) -> CutSource:
        """A new process."""
        configuration = NvmlCards(Strategy.MIXED, "", "tessera.nvml/gpu", described_by_us=True)
        self.source = CutSource(
            NvmlSource(self.driver, configuration, host_root=self.folder, clock=self.clock),
            self.driver,
            node="node-1",
            state_dir=self.folder / "state",
            metrics=Metrics(),
            layout_file=self.file,
            clock=self.clock,
            boot_id=self.boot,
            **options,
        )
        self.started.append(self.source)
        self.devices = self.source.begin(self.devices)
        return self.source

    def end(self) -> None:
        """The process ends: whatever it had locked is free."""
        self.source._lock.release()

    async def poll(self, seconds: float = 0.0, waits_for: str = "GPU") -> Transition:
        """One look of the plugin, and the end of the cuts that it began on these cards."""
        self.clock.now += seconds
        wanted = await self.source.devices()
        change = transition(self.devices, wanted, self.held)
        self.devices = change.devices
        self.source.report(change)
        for job in [one for uuid, one in self.source._cuts._jobs.items() if uuid.startswith(waits_for)]:
            await asyncio.to_thread(job.join, 5.0)
        return change

    async def settle(self) -> NodeLayoutStatus | None:
        """Poll until a change is carried out: what goes is unpublished, removed after the grace, and then the rest comes."""
        for _ in range(4):
            await self.poll(3.1)
        return self.source.status

    async def lay_out(self, text: str) -> NodeLayoutStatus | None:
        self.file.write_text(text)
        return await self.settle()

    @property
    def offered(self) -> Mapping[str, int]:
        counted = Counter(one.resource.removeprefix("nvidia.com/") for one in self.devices if one.healthy)
        return dict(sorted(counted.items()))

    def give(self, resource: str) -> Device:
        """A pod gets a device."""
        device = next(
            one for one in self.devices if one.resource.endswith(resource) and one.key not in self.held
        )
        self.held[device.key] = f"default/pod-{len(self.held)}"
        return device


def run(test: Callable[[], Awaitable[None]]) -> None:
    try:
        asyncio.run(asyncio.wait_for(test(), 60))
    finally:
        for source in Node.started:
            source._lock.release()
        Node.started.clear()


def test_the_first_story(tmp_path: Path) -> None:
    """2 × 2g + 1 × 3g, then 7 × 1g: the devices follow; a pod that holds a slice keeps it, and the rest waits with its name."""

    async def story() -> None:
        node = Node(tmp_path, FakeCard())
        assert await node.lay_out(STORY) == SUCCESS
        assert node.offered == {"mig-2g.35gb": 2, "mig-3g.71gb": 1}
        held = node.give("mig-3g.71gb")
        status = await node.lay_out(ONES)
        assert status == NodeLayoutStatus(
            State.PENDING, "3 to come after 1 × 3g.71gb, kept for default/pod-0"
        )
        assert node.offered == {"mig-1g.18gb": 4}
        assert [one.id for one in node.devices if one.leaving] == [held.id]
        node.held.clear()
        assert await node.settle() == SUCCESS
        assert node.offered == {"mig-1g.18gb": 7}
        assert not any(node.driver.open_at_cut)

    run(story)


def test_without_a_layout_no_card_is_touched(tmp_path: Path) -> None:
    """What others cut is offered as it is, and may be cut by them again; the same after a layout was taken back."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        await node.settle()
        assert node.offered == {"mig-2g.35gb": 2, "mig-3g.71gb": 1}
        card.instances.clear()
        card.add(*SEVEN.instances)
        await node.poll(10)
        assert node.offered == {"mig-1g.18gb": 7}
        await node.lay_out("1g.18gb=2")
        assert node.offered == {"mig-1g.18gb": 2}
        node.file.unlink()
        await node.settle()
        assert node.offered == {"mig-1g.18gb": 2}

    run(story)


def test_what_others_cut_stays_where_the_layout_has_it_too(tmp_path: Path) -> None:
    """A layout without places takes the slices that are there, wherever they lie."""

    async def story() -> None:
        card = FakeCard().add(*layout("3g.71gb@0"))
        node = Node(tmp_path, card)
        assert await node.lay_out("3g.71gb=1,2g.35gb=1") == SUCCESS
        assert card.cut.instances == layout("3g.71gb@0", "2g.35gb@4")
        assert 1 in card.instances

    run(story)


def test_nothing_goes_while_the_kubelet_may_still_choose_it(tmp_path: Path) -> None:
    """A slice that the layout takes is removed only when it can no longer come back for a pod."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        await node.settle()
        node.file.write_text(ONES)
        await node.poll(1)
        await node.poll(2.9)
        assert card.cut == FIRST
        node.devices = (*node.devices, *[one for one in node.source.possible() if "3g" in one.resource])
        node.held = {one.key: "default/late" for one in node.devices}
        await node.poll(0.2)
        await node.settle()
        assert 3 in card.instances
        assert len(card.instances) == 5

    run(story)


def test_fault_50_nvml_refuses(tmp_path: Path) -> None:
    """`failed` with NVML's words, the card as it was and offered as it was; another layout is tried again."""

    async def story() -> None:
        def refuse(name: str, number: int) -> None:
            if name == "create" and number > 0 and next(creations) == 2:
                raise DriverRefused("nvmlDeviceCreateGpuInstanceWithPlacement: Unknown Error")

        creations = count()

        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card, FakeCard(1))
        await node.lay_out(STORY)
        card.fault = refuse
        status = await node.lay_out(ONES)
        assert status == NodeLayoutStatus(
            State.FAILED, "card 0: nvmlDeviceCreateGpuInstanceWithPlacement: Unknown Error"
        )
        assert card.cut == FIRST
        assert node.offered == {"mig-1g.18gb": 7, "mig-2g.35gb": 2, "mig-3g.71gb": 1}
        card.fault = lambda name, number: None
        assert await node.lay_out("1g.18gb=6") == SUCCESS
        assert node.offered == {"mig-1g.18gb": 12}

    run(story)


@pytest.mark.parametrize(
    ("refusal", "delays"),
    [(DriverRefused, [60, 120, 240, 480, 960, 1800, 1800]), (RefusedForGood, [])],
    ids=["passing", "lasting"],
)
def test_fault_50_what_nvml_refused_is_tried_again(
    tmp_path: Path, refusal: type[DriverRefused], delays: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """After a minute, then ever more seldom, at last every half an hour; not what it would refuse every time."""

    async def story() -> None:
        words = "nvmlDeviceCreateGpuInstanceWithPlacement: Unknown Error"
        tried = [0.0]

        def refuse(name: str, number: int) -> None:
            """The first slice of every try; what was there before can be made again."""
            if name == "create" and number > 0 and tried[-1] < node.clock.now:
                tried.append(node.clock.now)
                raise refusal(words)

        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        await node.lay_out(STORY)
        card.fault = refuse
        assert await node.lay_out(ONES) == NodeLayoutStatus(State.FAILED, f"card 0: {words}")
        for _ in range(100):
            await node.poll(60)
            assert card.cut == FIRST
        assert [int(found) for found in re.findall(r"tried again in (\d+) s", caplog.text)] == delays
        gaps = [after - before for before, after in pairwise(tried[1:])]
        assert all(gap >= delay for gap, delay in zip(gaps, delays, strict=False))
        assert len(gaps) == max(0, len(delays) - 1)
        card.fault = lambda name, number: None
        for _ in range(40):
            await node.poll(60)
        if refusal is DriverRefused:
            assert node.source.status == SUCCESS
            assert node.offered == {"mig-1g.18gb": 7}
        else:
            assert node.source.status == NodeLayoutStatus(State.FAILED, f"card 0: {words}")
            assert node.offered == {"mig-2g.35gb": 2, "mig-3g.71gb": 1}

    run(story)


def test_fault_50_another_layout_does_not_wait_for_an_earlier_one(tmp_path: Path) -> None:
    """NVML refuses a cut that is at work when another layout comes: that layout is carried out at once."""
    hangs, release = threading.Event(), threading.Event()

    async def story() -> None:
        def refuse(name: str, number: int) -> None:
            if name == "create" and not hangs.is_set():
                hangs.set()
                release.wait(30)
                raise DriverRefused("nvmlDeviceCreateGpuInstanceWithPlacement: Unknown Error")

        node = Node(tmp_path, card := FakeCard())
        await node.lay_out(STORY)
        card.fault = refuse
        node.file.write_text(ONES)
        for _ in range(2):
            await node.poll(3.1, waits_for="no card")
        assert await asyncio.to_thread(hangs.wait, 30)
        node.file.write_text("1g.18gb=6")
        await node.poll(waits_for="no card")
        release.set()
        await node.poll()
        assert await node.settle() == SUCCESS
        assert node.offered == {"mig-1g.18gb": 6}

    try:
        run(story)
    finally:
        release.set()


def test_fault_50_a_program_that_is_no_pod(tmp_path: Path) -> None:
    """`pending` with NVML's words, tried again after 5 s, then ever more seldom, until the program is gone."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        card.in_use = {3}
        node = Node(tmp_path, card)
        await node.settle()
        status = await node.lay_out(ONES)
        assert status is not None
        assert status.state is State.PENDING
        assert "card 0 will be tried again: 3g.71gb at 4: nvmlComputeInstanceDestroy: In use" in status.reason
        tries = card.calls.count("destroy_compute")
        await node.poll(5)
        await node.poll(5)
        assert card.calls.count("destroy_compute") == tries + 1
        card.in_use = set()
        for _ in range(3):
            await node.poll(60)
        assert node.source.status == SUCCESS

    run(story)


def test_a_layout_that_does_not_fit_what_nvml_offers(tmp_path: Path) -> None:
    """`failed` with the reason; the card stays as it is."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        status = await node.lay_out("1g.10gb=7")
        assert status is not None
        assert status.state is State.FAILED
        assert "1g.10gb" in status.reason
        assert card.cut == FIRST
        assert node.offered == {"mig-2g.35gb": 2, "mig-3g.71gb": 1}

    run(story)


def test_mig_mode_is_switched_only_where_that_is_allowed(tmp_path: Path) -> None:
    """Without `switchMode` it is said; with it, only when no pod has the card."""

    async def story() -> None:
        card = FakeCard(mig=False)
        node = Node(tmp_path, card)
        status = await node.lay_out(ONES)
        assert status == NodeLayoutStatus(
            State.PENDING, "card 0 has MIG mode off, and nvml.switchMode is not set"
        )
        assert node.offered == {"gpu": 1}
        node.end()
        node.start(switch_mode=True)
        node.give("gpu")
        status = await node.settle()
        assert status is not None
        assert status.reason == "7 to come after 1 × gpu, kept for default/pod-0"
        assert not card.mig
        node.held.clear()
        assert await node.settle() == SUCCESS
        assert node.offered == {"mig-1g.18gb": 7}

    run(story)


def test_fault_50_a_reset_is_said_and_not_done(tmp_path: Path) -> None:
    """MIG mode is set; the card is cut after a person has reset it."""

    async def story() -> None:
        card = FakeCard(mig=False, reset_needed=True)
        node = Node(tmp_path, card)
        node.end()
        node.start(switch_mode=True)
        status = await node.lay_out(ONES)
        assert status is not None
        assert status.state is State.PENDING
        assert (
            "after a reset of the card (nvidia-smi --gpu-reset) or a reboot, which is left to you"
            in status.reason
        )
        card.mig, card.after_reset, card.reset_needed = True, None, False
        for _ in range(3):
            await node.poll(60)
        assert node.source.status == SUCCESS

    run(story)


def test_a_card_that_needs_no_cut_any_more(tmp_path: Path) -> None:
    """A person resets a card whose MIG mode is to be off: the layout holds, and the node says so."""

    async def story() -> None:
        card = FakeCard(reset_needed=True)
        node = Node(tmp_path, card)
        node.end()
        node.start(switch_mode=True)
        document = "version: v1\nmig-configs:\n  selected:\n  - devices: all\n    mig-enabled: false\n"
        await node.lay_out(document)
        await node.poll()
        status = node.source.status
        assert status is not None
        assert "after a reset of the card" in status.reason
        card.mig, card.after_reset, card.reset_needed = False, None, False
        for _ in range(3):
            await node.poll(120)
        assert node.source.status == SUCCESS

    run(story)


def test_fault_49_after_a_reboot_the_cards_are_cut_before_anything_is_published(tmp_path: Path) -> None:
    """Slices and journal of the last boot are void: the first devices are those of the layout, and no pod keeps an old one."""

    async def story() -> None:
        card = FakeCard()
        node = Node(tmp_path, card)
        await node.lay_out(STORY)
        node.give("mig-3g.71gb")
        node.end()
        card.instances.clear()
        node.boot.write_text("b")
        node.start()
        assert node.devices == ()
        await node.poll()
        assert node.offered == {"mig-2g.35gb": 2, "mig-3g.71gb": 1}
        assert card.cut == FIRST

    run(story)


def test_fault_51_a_lost_card_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """It is said; the other card is cut."""

    async def story() -> None:
        cards = FakeCard(0), FakeCard(1)
        cards[1].lost = "GPU is lost"
        node = Node(tmp_path, *cards)
        status = await node.lay_out(ONES)
        assert status == NodeLayoutStatus(State.PENDING, "card 1 does not answer: GPU is lost")
        assert cards[0].cut == SEVEN

    run(story)


def test_fault_50_a_call_that_hangs_holds_up_its_card_alone(tmp_path: Path) -> None:
    """It is reported after 30 s; the other card is cut, and nothing waits for the one that hangs."""
    hangs, release = threading.Event(), threading.Event()

    async def story() -> None:
        cards = FakeCard(0).add(*FIRST.instances), FakeCard(1)
        node = Node(tmp_path, *cards)
        await node.lay_out(STORY)

        def hang(name: str, number: int) -> None:
            if name == "destroy":
                hangs.set()
                release.wait(30)

        cards[0].fault = hang
        node.file.write_text(ONES)
        for seconds in (3.1, 3.1, 3.1, 3.1):
            await node.poll(seconds, waits_for="GPU-1")
        assert await asyncio.to_thread(hangs.wait, 30)
        await node.poll(31, waits_for="GPU-1")
        assert cards[1].cut == SEVEN
        status = node.source.status
        assert status is not None
        assert status.state is State.PENDING
        assert "card 0 waits for destroy, which has not come back for more than 30 s" in status.reason

    try:
        run(story)
    finally:
        release.set()


def test_fault_50_a_card_that_does_not_say_how_it_can_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NVML does not come back with that, the other card is cut; this one is, when it has."""
    release = threading.Event()

    async def story() -> None:
        cards = FakeCard(0), FakeCard(1)
        node = Node(tmp_path, *cards)
        threads = set[int]()
        product = node.driver.product

        def nvmlProfiles(uuid: str) -> Product:  # noqa: N802 # as NVML's are named
            if uuid == "GPU-0":
                threads.add(threading.get_ident())
                release.wait(30)
            return product(uuid)

        patience = Patience(threads.__contains__)
        patience.clock = node.clock
        monkeypatch.setattr(node.driver, "product", nvmlProfiles)
        node.source._cards._asker = asker = patience.asker()
        status = await node.lay_out(ONES)
        assert status == NodeLayoutStatus(
            State.PENDING, "card 0 has not answered for more than 10 s, in nvmlProfiles"
        )
        assert (cards[0].cut.instances, cards[1].cut) == ((), SEVEN)
        release.set()
        while asker.at_work:
            await asyncio.sleep(0.001)
        assert await node.settle() == SUCCESS
        assert cards[0].cut == SEVEN

    try:
        run(story)
    finally:
        release.set()


def test_fault_50_a_card_that_hung_at_the_start_is_put_back_when_it_answers(tmp_path: Path) -> None:
    """What a killed process had begun on it is undone where no layout is wanted, as it is at a start."""

    async def story() -> None:
        card = FakeCard(1).add(*layout("2g.35gb@0"))
        node = Node(tmp_path, FakeCard(0), card)
        node.source._journal.begin("GPU-1", FIRST)
        hung = NvmlCard(1, "", "", 0, minor=1, problem="has not answered for more than 10 s, in nvmlX")
        node.driver.instead = {"GPU-1": hung}
        await node.settle()
        assert card.cut.instances == layout("2g.35gb@0")
        node.driver.instead = {}
        await node.poll(10)
        await node.settle()
        assert card.cut == FIRST

    run(story)


def test_a_second_process_only_reads(tmp_path: Path) -> None:
    """While another one has the lock, the layout is refused with that reason."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        await node.settle()
        first, _ = node.source, node.start()
        status = await node.lay_out(ONES)
        assert status == NodeLayoutStatus(
            State.FAILED, "another process of Tessera cuts the cards of this node"
        )
        assert card.cut == FIRST
        first._lock.release()
        assert await node.settle() == SUCCESS

    run(story)


def test_what_could_not_be_published_is_not_removed(tmp_path: Path) -> None:
    """A disk that is full: the kubelet still offers the old slices, so they stay."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        await node.settle()
        node.file.write_text(ONES)
        for _ in range(4):
            node.clock.now += 5
            await node.source.devices()
            node.source.report(NotPublished("No space left on device"))
        assert card.cut == FIRST
        assert node.source.status is not None
        assert node.source.status.state is State.PENDING

    run(story)


def test_random_layouts_pods_and_restarts(tmp_path: Path) -> None:
    """Whatever is desired while pods come and go and processes end: a slice that a pod holds is never touched, and in the end all is as desired."""

    async def story() -> None:
        random_ = random.Random(29)
        cards = FakeCard(0), FakeCard(1)
        node = Node(tmp_path, *cards)
        texts = [STORY, ONES, "7g.141gb=1", "3g.71gb=2", "1g.18gb+me=1,2g.35gb=2", "4g.71gb=1,1g.35gb=1", ""]
        for _ in range(60):
            node.file.write_text(random_.choice(texts))
            for _ in range(random_.randrange(6)):
                if random_.random() < 0.3:
                    node.end()
                    node.start()
                await node.poll(random_.choice([0.5, 3.1]))
                healthy = [one for one in node.devices if one.healthy and one.key not in node.held]
                if healthy and random_.random() < 0.5:
                    node.held[random_.choice(healthy).key] = "default/pod"
                if node.held and random_.random() < 0.4:
                    node.held.pop(random_.choice([*node.held]))
                there = {card.uuid_of(number) for card in cards for number in card.instances}
                there |= {card.uuid for card in cards}
                assert {name for _, name in node.held} <= there
        node.held.clear()
        assert await node.lay_out(ONES) == SUCCESS
        assert node.offered == {"mig-1g.18gb": 14}

    run(story)


def test_a_layout_that_is_not_known_yet(tmp_path: Path) -> None:
    """Before the node was seen nothing is said, and nothing is cut."""

    async def story() -> None:
        node = Node(tmp_path, FakeCard())
        node.source.link = type("Silent", (), {"synced": False, "silent": False})()
        with pytest.raises(SourceFailed, match="not known yet"):
            await node.source.devices()
        node.source.report(NotPublished("x"))
        assert node.source.status is None

    run(story)


def test_room_on_the_cards(tmp_path: Path) -> None:
    """Of a lost card nothing is reported; of the others what is cut, and what pods hold."""

    async def story() -> None:
        cards = FakeCard(0), FakeCard(1)
        node = Node(tmp_path, *cards)
        await node.lay_out(STORY)
        held = next(one for one in node.devices if one.place and one.place.card.index == 1)
        (first, second) = node.source.use({held.key})
        assert (first.used, len(second.used)) == ((), 1)
        cards[0].lost = "GPU is lost"
        node.end()
        node.start()
        await node.settle()
        (only,) = node.source.use({held.key})
        assert len(only.used) == 1

    run(story)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The cards are offered as they are, and the state says why they are not cut."""

    async def story() -> None:
        card = FakeCard().add(*FIRST.instances)
        node = Node(tmp_path, card)
        node.end()
        (tmp_path / "state" / "cut" / "boot").unlink()
        (tmp_path / "state" / "cut").rmdir()
        (tmp_path / "state" / "cut").touch()
        node.start()
        status = await node.lay_out(ONES)
        assert status is not None
        assert status.state is State.FAILED
        assert "cannot be written, and without it no card is cut" in status.reason
        assert (card.cut, node.offered) == (FIRST, {"mig-2g.35gb": 2, "mig-3g.71gb": 1})

    run(story)
