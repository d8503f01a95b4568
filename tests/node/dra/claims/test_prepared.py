"""Prepared claims on disk."""

import json
import multiprocessing
from pathlib import Path

import pytest

from tessera.core.devices.device import Device
from tessera.core.errors import TesseraError
from tessera.node.dra.prepared_claims import (
    HeldDevice,
    Phase,
    PreparedClaim,
    PreparedClaims,
    UnreadableEntry,
    in_the_way,
)
from tests.node.dra.samples import card, listed, mig


def held(device: Device, *, admin: bool = False) -> HeldDevice:
    return HeldDevice.of(device, device.id, "gpu", ("x/claim=a",), admin=admin)


def entry(uid: str, *devices: Device, boot: str = "b", phase: Phase = Phase.COMPLETED) -> PreparedClaim:
    return PreparedClaim(uid, "ns", f"claim-{uid}", boot, phase, tuple(map(held, devices)))


def store(folder: Path, boot_id: str = "b") -> PreparedClaims:
    boot = folder / "boot"
    boot.write_text(f"{boot_id}\n")
    return PreparedClaims(folder / "claims", boot)


def test_entries_are_kept(tmp_path: Path) -> None:
    """What is written is read, by another process too; what is removed is gone."""
    one, two = entry("u-1", mig("2g.20gb", 0)), entry("u-2", listed("a"), phase=Phase.STARTED)
    claims = store(tmp_path)
    with claims.locked():
        claims.write(one)
        claims.write(two)
    again = store(tmp_path)
    assert again.readable() == [one, two]
    assert again.get("u-1") == one
    again.remove("u-1")
    again.remove("u-1")
    assert (again.get("u-1"), again.uids()) == (None, {"u-2"})


def test_fields_of_a_later_version_do_no_harm(tmp_path: Path) -> None:
    """A downgrade reads what it knows of an entry."""
    claims = store(tmp_path)
    with claims.locked():
        claims.write(entry("u-1", mig("2g.20gb", 0)))
    path = tmp_path / "claims" / "u-1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"later": {"x": 1}}))
    assert claims.get("u-1") == entry("u-1", mig("2g.20gb", 0))


def test_an_unreadable_entry_may_hold_anything(tmp_path: Path) -> None:
    """It is not skipped where overlaps are looked for; it names its file and its claim."""
    claims = store(tmp_path)
    with claims.locked():
        claims.write(entry("u-1", mig("2g.20gb", 0)))
    (tmp_path / "claims" / "u-2.json").write_text("{")
    with pytest.raises(UnreadableEntry, match=r"u-2\.json"):
        claims.get("u-2")
    assert [error.uid for error in claims.read()[1]] == ["u-2"]
    assert claims.readable() == [entry("u-1", mig("2g.20gb", 0))]
    assert claims.uids() == {"u-1", "u-2"}


def test_an_unreadable_entry_goes_with_its_boot(tmp_path: Path) -> None:
    """It stays for as long as the driver ran in this boot, however often it starts; at the first start in another, it goes."""
    claims, lost = store(tmp_path), tmp_path / "claims" / "u-2.json"
    assert claims.begin() == []
    with claims.locked():
        claims.write(entry("u-1", mig("2g.20gb", 0)))
    lost.write_text("{")
    assert (store(tmp_path).begin(), lost.exists()) == ([], True)
    later = store(tmp_path, "c")
    assert ([one.uid for one in later.begin()], lost.exists()) == (["u-2"], False)
    assert later.readable() == [entry("u-1", mig("2g.20gb", 0))]
    lost.write_text("{")
    assert (store(tmp_path, "c").begin(), lost.exists()) == ([], True)


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".", "-a", "a" * 65, "a\n"])
def test_a_uid_is_no_path(tmp_path: Path, uid: str) -> None:
    """Whatever comes over the socket names a file in the folder, or nothing."""
    with pytest.raises(TesseraError):
        store(tmp_path).get(uid)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (mig("2g.20gb", 0), mig("2g.20gb", 0), True),
        (mig("2g.20gb", 0), mig("2g.20gb", 2), False),
        (mig("2g.20gb", 0), mig("1g.10gb", 1), True),
        (mig("2g.20gb", 0), mig("1g.10gb", 1, number=1), False),
        (card(0), mig("1g.10gb", 6), True),
        (card(0), card(1), False),
        (listed("a"), listed("a"), True),
        (listed("a"), listed("b"), False),
        (listed("a"), listed("a", "other.example.com/x"), False),
        (listed("a"), card(0), False),
    ],
)
def test_overlap_is_by_memory_slices(one: Device, other: Device, overlap: bool) -> None:
    """The same device, or one slice of the same card in both; either way round."""
    assert held(one).overlaps(held(other)) is overlap
    assert held(other).overlaps(held(one)) is overlap
    assert not held(one, admin=True).overlaps(held(other)), "admin access owns nothing"


def test_compute_instances_share_their_slices() -> None:
    """Two compute instances of one GPU instance, as NVML finds them, are two devices that do not exclude each other."""
    from dataclasses import replace

    def shared(name: str) -> Device:
        device = mig("3g.30gb", 0)
        return replace(device, id=name, model=replace(device.model, profile="1c.3g.30gb"))

    assert not held(shared("MIG-a")).overlaps(held(shared("MIG-b")))
    assert held(shared("MIG-a")).overlaps(held(shared("MIG-a")))


def test_what_was_prepared_before_a_reboot_is_in_nobodys_way() -> None:
    """Containers and device files are gone; a claim is never in its own way."""
    wanted = [held(mig("1g.10gb", 1))]
    other = entry("u-1", mig("2g.20gb", 0))
    assert in_the_way([other], "u-2", wanted, "b") == [(wanted[0], other)]
    assert in_the_way([other], "u-1", wanted, "b") == []
    assert in_the_way([other], "u-2", wanted, "after the reboot") == []


def _hold(folder: Path, began, end) -> None:
    claims = store(folder)
    with claims.locked():
        began.set()
        end.wait(30)
        claims.write(entry("u-1", mig("2g.20gb", 0)))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Two processes of the driver never read and write at once."""
    context = multiprocessing.get_context("spawn")
    began, end = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, began, end))
    other.start()
    try:
        assert began.wait(30)
        end.set()
        with store(tmp_path).locked():  # waits for the other one
            assert store(tmp_path).uids() == {"u-1"}
    finally:
        end.set()
        other.join(30)
