"""Preparing and ending claims, whatever goes wrong on the way."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera.core.devices.device import Device, Edits
from tessera.kube.errors import ApiError, Unreachable
from tessera.node.cdi import ClaimFiles
from tessera.node.dra import preparing
from tessera.node.dra.claim_objects import GivenDevice, WrongClaim
from tessera.node.dra.prepared_claims import Phase, PreparedClaims
from tessera.node.dra.preparing import CannotPrepare, Claims
from tessera.node.dra.slice_documents import offer
from tessera.node.metrics import DraMetrics
from tessera.protocol.kubelet.dra_messages import ClaimName, PreparedDevice
from tests.node.dra.samples import POOL, listed, mig

TWO, ONE, SIX = mig("2g.20gb", 0), mig("1g.10gb", 1), mig("1g.10gb", 6)
OTHER_CARD = mig("1g.10gb", 1, number=1)
STEPS = (
    "prepare: claim read",
    "prepare: started is on disk",
    "prepare: slices are cut",
    "prepare: CDI spec is on disk",
    "prepare: completed is on disk",
    "unprepare: begun",
    "unprepare: CDI spec is gone",
    "unprepare: entry is gone",
)


class Killed(BaseException):
    """As a process that is ended with SIGKILL: nothing runs after it."""


class Node:
    """A node's claims, over the same folders as those of another process."""

    def __init__(self, root: Path, *devices: Device, boot: str = "b") -> None:
        self.root = root
        self.devices = offer(devices or (TWO, ONE, SIX, OTHER_CARD))
        self.given: dict[str, Sequence[GivenDevice]] = {}
        self.failures: list[Exception] = []
        (root / f"boot-{boot}").write_text(boot)
        self.store = PreparedClaims(root / "claims", root / f"boot-{boot}")
        self.files = ClaimFiles(root / "cdi")
        self.claims = Claims(
            pool=POOL,
            store=self.store,
            files=self.files,
            read=self._read,
            offered=lambda: self.devices,
            metrics=DraMetrics(),
        )

    def claim(self, uid: str, *devices: Device, request: str = "gpu", admin: bool = False) -> ClaimName:
        """A claim that was given these."""
        names = {device.key: name for name, device in self.devices.items()}
        self.given[uid] = [GivenDevice(request, names[device.key], admin) for device in devices]
        return ClaimName("ns", uid, uid)

    async def _read(self, claim: ClaimName) -> Sequence[GivenDevice]:
        if self.failures:
            raise self.failures.pop(0)
        return self.given[claim.uid]

    @property
    def specs(self) -> list[str]:
        return sorted(path.name for path in (self.root / "cdi").glob("*"))

    def spec(self, uid: str) -> Any:
        return json.loads((self.root / "cdi" / f"gpu.tessera.dev-claim-{uid}.json").read_text())


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_claim_is_prepared_and_ended(tmp_path: Path) -> None:
    """The spec and the entry are there when the kubelet is answered, and gone when the claim has ended."""

    async def story() -> None:
        node = Node(tmp_path)
        claim = node.claim("u-1", TWO, request="gpu/smaller")
        name = "gpu-0-mig-2g-20gb-0"
        expected = [PreparedDevice("gpu/smaller", POOL, name, (f"gpu.tessera.dev/claim=u-1-{name}",))]
        assert await node.claims.prepare(claim) == expected
        assert node.spec("u-1") == {
            "cdiVersion": "0.3.0",
            "kind": "gpu.tessera.dev/claim",
            "devices": [
                {
                    "name": f"u-1-{name}",
                    "containerEdits": {
                        "env": ["TESSERA_DEVICE_0000_00=2g.20gb", "NVIDIA_VISIBLE_DEVICES=MIG-0-2g.20gb-0"]
                    },
                }
            ],
        }
        assert [(one.uid, one.phase) for one in node.store.readable()] == [("u-1", Phase.COMPLETED)]
        assert await node.claims.prepare(claim) == expected, "twice is once"
        await node.claims.unprepare(claim)
        assert (node.specs, node.store.readable()) == ([], [])
        await node.claims.unprepare(claim)

    run(story)


def test_devices_of_a_request_are_listed_together(tmp_path: Path) -> None:
    """Every device of a request names all of them: a container gets the whole request, and no other."""

    async def story() -> None:
        node = Node(tmp_path)
        claim = node.claim("u-1", TWO, SIX)
        node.given["u-1"] = [*node.given["u-1"], GivenDevice("other", "gpu-1-mig-1g-10gb-1")]
        await node.claims.prepare(claim)
        listed_in = {
            one["name"]: [text for text in one["containerEdits"]["env"] if "VISIBLE" in text]
            for one in node.spec("u-1")["devices"]
        }
        both = ["NVIDIA_VISIBLE_DEVICES=MIG-0-2g.20gb-0,MIG-0-1g.10gb-6"]
        assert listed_in == {
            "u-1-gpu-0-mig-2g-20gb-0": both,
            "u-1-gpu-0-mig-1g-10gb-6": both,
            "u-1-gpu-1-mig-1g-10gb-1": ["NVIDIA_VISIBLE_DEVICES=MIG-1-1g.10gb-1"],
        }

    run(story)


def test_devices_that_another_vendor_describes(tmp_path: Path) -> None:
    """nvidia-ctk's spec describes the device: its name is handed on, beside ours with the list of devices."""

    async def story() -> None:
        theirs = replace(TWO, edits=Edits(), cdi_kind="nvidia.com/gpu")
        node = Node(tmp_path, theirs)
        [prepared] = await node.claims.prepare(node.claim("u-1", theirs))
        ours = "gpu.tessera.dev/claim=u-1-gpu-0-mig-2g-20gb-0"
        assert prepared.cdi_names == (ours, "nvidia.com/gpu=MIG-0-2g.20gb-0")
        edits = node.spec("u-1")["devices"][0]["containerEdits"]
        assert edits == {"env": ["NVIDIA_VISIBLE_DEVICES=MIG-0-2g.20gb-0"]}
        await node.claims.unprepare(ClaimName("ns", "u-1", "u-1"))

        bare = replace(theirs, env_list="")
        node = Node(tmp_path, bare)
        [prepared] = await node.claims.prepare(node.claim("u-2", bare))
        assert prepared.cdi_names == ("nvidia.com/gpu=MIG-0-2g.20gb-0",)
        assert node.specs == [], "nothing of ours to say"
        assert await node.claims.prepare(node.claim("u-2", bare)) == [prepared]

    run(story)


def test_a_claim_without_our_devices_is_no_trouble(tmp_path: Path) -> None:
    """Claims of several drivers are passed to each of them."""

    async def story() -> None:
        node = Node(tmp_path)
        assert await node.claims.prepare(node.claim("u-1")) == []
        assert (node.specs, node.store.uids()) == ([], set()), "a spec without devices is none"
        await node.claims.unprepare(ClaimName("ns", "u-1", "u-1"))
        assert (node.specs, node.store.readable()) == ([], [])

    run(story)


@pytest.mark.parametrize("wanted", [TWO, ONE])
def test_overlapping_slices_wait_for_each_other(tmp_path: Path, wanted: Device) -> None:
    """The same slice, or another one on its memory: prepared when the first claim has ended, and never before."""

    async def story() -> None:
        node = Node(tmp_path)
        first, second = node.claim("u-1", TWO), node.claim("u-2", wanted)
        await node.claims.prepare(first)
        waiting = asyncio.create_task(node.claims.prepare(second))
        await node.claims.prepare(node.claim("u-3", SIX))  # what is not in the way does not wait
        await asyncio.sleep(0)
        assert not waiting.done()
        assert "u-2" not in node.store.uids()
        await node.claims.unprepare(first)
        assert len(await waiting) == 1
        assert node.store.uids() == {"u-2", "u-3"}

    run(story)


def test_waiting_ends_with_a_reason(tmp_path: Path) -> None:
    """The kubelet gets an error in time for a claim that has to wait, and names the device and the claim that has it."""

    async def story() -> None:
        node = Node(tmp_path)
        await node.claims.prepare(node.claim("u-1", TWO))
        with pytest.raises(CannotPrepare, match="gpu-0-mig-1g-10gb-1 is still in use by claim ns/u-1"):
            await node.claims.prepare(node.claim("u-2", ONE), timeout=0.0)
        assert node.store.uids() == {"u-1"}

    run(story)


def test_admin_access_owns_nothing(tmp_path: Path) -> None:
    """It sees a device that another claim has, and keeps none from one."""

    async def story() -> None:
        node = Node(tmp_path)
        await node.claims.prepare(node.claim("u-1", TWO))
        assert len(await node.claims.prepare(node.claim("u-2", ONE, admin=True), timeout=0.0)) == 1
        await node.claims.unprepare(ClaimName("ns", "u-1", "u-1"))
        assert len(await node.claims.prepare(node.claim("u-3", ONE), timeout=0.0)) == 1

    run(story)


def test_ill_devices_are_not_handed_out(tmp_path: Path) -> None:
    """Unless the claim tolerates it, or has the device already."""

    async def story() -> None:
        node = Node(tmp_path, TWO, listed("a"))
        held = node.claim("u-1", TWO)
        await node.claims.prepare(held)
        node.devices = {name: one.unhealthy("XID 79") for name, one in node.devices.items()}
        assert len(await node.claims.prepare(held, timeout=0.0)) == 1
        node.files.remove("u-1")
        assert len(await node.claims.prepare(held, timeout=0.0)) == 1, "its spec is put in place again"
        with pytest.raises(CannotPrepare, match="a is unhealthy: XID 79"):
            await node.claims.prepare(node.claim("u-2", listed("a")), timeout=0.0)
        node.given["u-2"] = [GivenDevice("gpu", "a", tolerates_unhealthy=True)]
        assert len(await node.claims.prepare(ClaimName("ns", "u-2", "u-2"), timeout=0.0)) == 1

    run(story)


def test_the_api_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet would try only after a minute: what passes is waited for inside the call."""
    monkeypatch.setattr(preparing, "_POLL", 0.01)

    async def story() -> None:
        node = Node(tmp_path)
        claim = node.claim("u-1", TWO)
        node.failures = [Unreachable("refused", "no API server"), ApiError(500, "", "etcd")]
        assert len(await node.claims.prepare(claim)) == 1
        node.failures = [ApiError(404, "NotFound", "no such claim")]
        with pytest.raises(WrongClaim, match="claim ns/u-1 is gone"):
            await node.claims.prepare(claim)
        node.failures = [WrongClaim("not allocated")]
        with pytest.raises(WrongClaim, match="not allocated"):
            await node.claims.prepare(claim)

    run(story)


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is answered before it is on disk; when there is room again the claim is prepared."""
    monkeypatch.setattr(preparing, "_POLL", 0.01)

    async def story() -> None:
        node = Node(tmp_path)
        write, tries = node.store.write, []

        def full_twice(entry) -> None:
            tries.append(entry)
            if len(tries) < 3:
                raise OSError(28, "No space left on device")
            write(entry)

        monkeypatch.setattr(node.store, "write", full_twice)
        assert len(await node.claims.prepare(node.claim("u-1", TWO))) == 1
        assert len(tries) == 4, "twice in vain, then started and completed"

    run(story)


def test_a_cancelled_call_does_not_stop_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet gives up while a claim is begun: it is not called completed, and the next call goes on from there."""

    async def story() -> None:
        node = Node(tmp_path)
        claim = node.claim("u-1", TWO)
        call: asyncio.Task[Any] | None = None

        def cancel(step: str) -> None:
            if step == "prepare: started is on disk":
                assert call is not None
                call.cancel()

        monkeypatch.setattr(preparing, "reached", cancel)
        call = asyncio.create_task(node.claims.prepare(claim))
        with pytest.raises(asyncio.CancelledError):
            await call
        await node.claims.drained()
        assert [one.phase for one in node.store.readable()] == [Phase.STARTED]
        assert len(node.specs) == 1
        monkeypatch.setattr(preparing, "reached", lambda step: None)
        assert len(await node.claims.prepare(claim)) == 1
        assert [one.phase for one in node.store.readable()] == [Phase.COMPLETED]

    run(story)


def test_a_claim_that_ends_while_it_is_prepared_leaves_nothing(tmp_path: Path) -> None:
    """The kubelet cancels its call when the pod is deleted, and ends the claim at once: the end comes last."""

    async def story() -> None:
        node = Node(tmp_path)
        claim = node.claim("u-1", TWO)
        async with node.claims.changing:  # the attempt waits before it has written anything
            call = asyncio.create_task(node.claims.prepare(claim))
            for _ in range(10):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            end = asyncio.create_task(node.claims.unprepare(claim))
            await asyncio.wait([end], timeout=0.1)
        await end
        await node.claims.drained()
        assert (node.specs, node.store.readable()) == ([], [])
        assert len(await node.claims.prepare(node.claim("u-2", TWO))) == 1, "the device is free"

    run(story)


def test_a_claim_that_ends_while_it_waits_gets_nothing(tmp_path: Path) -> None:
    """The kubelet ends the claim of a pod that was deleted by force, and does not cancel its call: it never ends it again."""

    async def story() -> None:
        node = Node(tmp_path)
        first, second = node.claim("u-1", TWO), node.claim("u-2", TWO)
        await node.claims.prepare(first)
        waiting = asyncio.create_task(node.claims.prepare(second))
        await asyncio.sleep(0)
        await node.claims.unprepare(second)
        await node.claims.unprepare(first)
        with pytest.raises(CannotPrepare, match="claim ns/u-2 was ended while it waited"):
            await waiting
        assert (node.specs, node.store.readable()) == ([], [])
        assert len(await node.claims.prepare(second)) == 1, "the claim of another pod may be the same"

    run(story)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Another process takes over from what is on disk: no other claim got the device, and nothing is left when it has ended."""

    async def killed() -> None:
        def kill(reached: str) -> None:
            if reached == step:
                raise Killed

        node = Node(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(preparing, "reached", kill)
            claim = node.claim("u-1", TWO)
            await node.claims.prepare(claim)
            await node.claims.unprepare(claim)

    async def next_process() -> None:
        node = Node(tmp_path)
        claim, other = node.claim("u-1", TWO), node.claim("u-2", ONE)
        began = "u-1" in node.store.uids()
        if began:
            with pytest.raises(CannotPrepare):
                await node.claims.prepare(other, timeout=0.0)
        assert len(await node.claims.prepare(claim, timeout=0.0)) == 1
        assert len(node.specs) == 1
        await node.claims.unprepare(claim)
        assert len(await node.claims.prepare(other, timeout=0.0)) == 1
        await node.claims.unprepare(other)
        assert (node.specs, node.store.readable()) == ([], [])

    with pytest.raises(Killed):
        asyncio.run(killed())
    run(next_process)


def test_after_a_reboot_nothing_is_believed(tmp_path: Path) -> None:
    """The claim that was prepared is prepared again; another may have its device."""

    async def story() -> None:
        before = Node(tmp_path)
        await before.claims.prepare(before.claim("u-1", TWO))
        before.files.remove("u-1")  # /var/run is empty after a reboot
        node = Node(tmp_path, boot="next")
        assert len(await node.claims.prepare(node.claim("u-1", TWO), timeout=0.0)) == 1
        assert len(node.specs) == 1
        assert [one.boot for one in node.store.readable()] == ["next"]

    run(story)


def test_an_unreadable_entry_stops_preparing_and_not_ending(tmp_path: Path) -> None:
    """It may hold any device. When its claim has ended, everything goes on."""

    async def story() -> None:
        node = Node(tmp_path)
        await node.claims.prepare(node.claim("u-1", TWO))
        (tmp_path / "claims" / "u-1.json").write_text("not JSON")
        with pytest.raises(CannotPrepare, match=r"u-1\.json does not say"):
            await node.claims.prepare(node.claim("u-2", SIX), timeout=0.0)
        await node.claims.unprepare(ClaimName("ns", "u-1", "u-1"))
        assert len(await node.claims.prepare(node.claim("u-2", SIX), timeout=0.0)) == 1

    run(story)


def test_fault_59_its_own_unreadable_entry_is_in_no_claims_way(tmp_path: Path) -> None:
    """A claim whose own entry cannot be read is prepared again, with what the API server gave it; admin access needs no proof."""

    async def story() -> None:
        node = Node(tmp_path)
        claim = node.claim("u-1", TWO)
        before = await node.claims.prepare(claim)
        (tmp_path / "claims" / "u-1.json").write_text("not JSON")
        watcher = node.claim("u-2", SIX, admin=True)
        assert len(await node.claims.prepare(watcher, timeout=0.0)) == 1
        assert await node.claims.prepare(claim, timeout=0.0) == before
        assert [one.uid for one in node.store.readable()] == ["u-1", "u-2"]

    run(story)


def test_another_allocation_of_the_same_claim_waits(tmp_path: Path) -> None:
    """A claim that was prepared with other devices has to be ended first."""

    async def story() -> None:
        node = Node(tmp_path)
        await node.claims.prepare(node.claim("u-1", TWO))
        with pytest.raises(CannotPrepare, match="prepared with other devices"):
            await node.claims.prepare(node.claim("u-1", SIX), timeout=0.0)

    run(story)


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    """The reason says how many there are; the device may come."""

    async def story() -> None:
        node = Node(tmp_path)
        claim = ClaimName("ns", "u-1", "u-1")
        node.given["u-1"] = [GivenDevice("gpu", "gpu-9")]
        with pytest.raises(CannotPrepare, match=r"gpu-9 is not on this node now \(4 devices in all\)"):
            await node.claims.prepare(claim, timeout=0.0)
        waiting = asyncio.create_task(node.claims.prepare(claim))
        await asyncio.sleep(0)
        node.devices["gpu-9"] = listed("x")
        node.claims.notify()
        assert len(await waiting) == 1

    run(story)


def test_many_claims_at_once(tmp_path: Path) -> None:
    """Forty claims for four devices, each ended as soon as it is prepared: never two on one slice."""

    async def story() -> None:
        node = Node(tmp_path)
        devices = (TWO, ONE, SIX, OTHER_CARD)

        async def live(number: int) -> None:
            claim = node.claim(f"u-{number}", devices[number % 4])
            await node.claims.prepare(claim)
            held = [one for entry in node.store.readable() for one in entry.devices]
            assert not any(a is not b and a.overlaps(b) for a in held for b in held)
            await node.claims.unprepare(claim)

        await asyncio.gather(*(live(number) for number in range(40)))
        assert (node.specs, node.store.readable()) == ([], [])

    run(story)
