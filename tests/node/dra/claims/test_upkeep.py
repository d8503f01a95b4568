"""Entries of claims, rebuilt from what else knows them."""

from pathlib import Path

import pytest

from tessera.core.devices.device import Device
from tessera.node.cdi import ClaimFiles
from tessera.node.dra.claim_objects import GivenDevice, held_by
from tessera.node.dra.prepared_claims import Phase, PreparedClaim, PreparedClaims
from tessera.node.dra.slice_documents import offer
from tessera.node.dra.upkeep import repair
from tessera.protocol.kubelet.dra_messages import ClaimName
from tests.node.dra.samples import mig

TWO, ONE = mig("2g.20gb", 0), mig("1g.10gb", 4)
DEVICES = offer([TWO, ONE])
NAMES = {device.key: name for name, device in DEVICES.items()}
CLAIM = ClaimName("ns", "train", "u-1")


def given(*devices: Device, admin: bool = False) -> tuple[GivenDevice, ...]:
    return tuple(GivenDevice("gpu", NAMES[device.key], admin) for device in devices)


def entry(claim: ClaimName, *found: GivenDevice) -> PreparedClaim:
    held = tuple(held_by(one, DEVICES[one.device], claim) for one in found)
    return PreparedClaim(claim.uid, claim.namespace, claim.name, "b", Phase.COMPLETED, held)


@pytest.fixture
def store(tmp_path: Path) -> PreparedClaims:
    """A store with one entry that cannot be read."""
    (tmp_path / "boot").write_text("b")
    store = PreparedClaims(tmp_path / "claims", tmp_path / "boot")
    with store.locked():
        store.write(entry(CLAIM, *given(TWO)))
        store.write(entry(ClaimName("ns", "other", "u-2"), *given(ONE)))
    path = tmp_path / "claims" / "u-1.json"
    path.write_bytes(path.read_bytes()[:-9])
    return store


@pytest.fixture
def files(tmp_path: Path) -> ClaimFiles:
    return ClaimFiles(tmp_path / "cdi")


@pytest.mark.parametrize("admin", [False, True])
def test_fault_59_as_the_api_server_has_it(store: PreparedClaims, files: ClaimFiles, admin: bool) -> None:
    """The entry is what it was, whether its CDI spec is there or not."""
    found = given(TWO, admin=admin)
    repair(store, files, {CLAIM: found}, DEVICES)
    assert store.get("u-1") == entry(CLAIM, *found)
    assert store.read()[1] == []
    assert len(store.readable()) == 2


def test_fault_59_as_its_spec_has_it(store: PreparedClaims, files: ClaimFiles) -> None:
    """The claim is gone from the API server, and its container may run: its devices are those of its spec."""
    files.write("u-1", [("gpu", NAMES[TWO.key], TWO)])
    repair(store, files, {}, DEVICES)
    found = store.get("u-1")
    assert found is not None
    assert (found.phase, found.claim) == (Phase.COMPLETED, ClaimName("", "u-1", "u-1"))
    assert [(one.device, one.id, one.parent, one.start, one.size) for one in found.devices] == [
        (NAMES[TWO.key], TWO.id, "GPU-0", 0, 2)
    ]


def test_fault_59_what_either_says_is_held(store: PreparedClaims, files: ClaimFiles) -> None:
    """The spec has a device more than the API server says: both are held."""
    files.write("u-1", [("gpu", NAMES[ONE.key], ONE)])
    repair(store, files, {CLAIM: given(TWO)}, DEVICES)
    found = store.get("u-1")
    assert found is not None
    assert {one.id for one in found.devices} == {TWO.id, ONE.id}


@pytest.mark.parametrize("spec", [None, b"{", b'{"kind": 3}'])
def test_fault_59_what_nothing_knows_stays_unreadable(
    store: PreparedClaims, files: ClaimFiles, tmp_path: Path, spec: bytes | None
) -> None:
    """Neither claim nor spec, or a device that the node cannot have: nothing is made up."""
    if spec is not None:
        (tmp_path / "cdi").mkdir()
        (tmp_path / "cdi" / "gpu.tessera.dev-claim-u-1.json").write_bytes(spec)
    repair(store, files, {}, DEVICES)
    repair(store, files, {CLAIM: (GivenDevice("gpu", "gpu-7"),)}, DEVICES)
    assert [error.uid for error in store.read()[1]] == ["u-1"]
