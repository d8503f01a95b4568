"""Reading what the answer about a MigLayout needs."""

from typing import Any

import pytest

from tessera.core.errors import TesseraError
from tessera.diagnosis.layouts.gather import LayoutEvidence, gather_layout
from tessera.diagnosis.layouts.layout_diagnosis import diagnose_layout
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.apiserver import ApiServer, Target
from tessera.simulation.control_plane.store import StatusError, Store
from tests.diagnosis.clusters import NOW, node
from tests.diagnosis.in_process import client_of
from tests.diagnosis.layouts.objects import READY, mig_layout
from tests.kube.clock import FakeClock

RECORD = written(RolloutRecord(Owner("inference", "u1"), Phase.CORDONED, 1.8e9, 1.8e9, 60.0, "x"))


def lease(reconcilers: str | None = "claims,layouts") -> dict[str, Any]:
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2026-11-15T11:59:59.000000Z"}
    said = {} if reconcilers is None else {"annotations": {"tessera.dev/reconcilers": reconcilers}}
    return {"metadata": {"name": "tessera-controller", "namespace": "gpu-webhook", **said}, "spec": spec}


class Guarded(ApiServer):
    """Refuses some kinds to everybody, as RBAC does: whether there are such, or not."""

    forbidden: frozenset[str] = frozenset()

    def target(self, path: str) -> Target:
        for plural in self.forbidden:
            if f"/{plural}" in path:
                raise StatusError(403, "Forbidden", f"{plural} is forbidden")
        return super().target(path)


def server(*leases: dict[str, Any], forbidden: str = "", absent: bool = False) -> Guarded:
    found = Guarded(Store(lambda: NOW))
    found.forbidden = frozenset(filter(None, [forbidden]))
    found.store.create(kinds.MIG_LAYOUTS, mig_layout(READY))
    pool = {"pool": "inference"}
    for one in (
        node("n1", {}, labels=pool, annotations={ROLLOUT: RECORD}),
        node("n2", {}, labels=pool, annotations={ROLLOUT: "nonsense"}),
        node("n3", {}, labels=pool),
        node("other", {}, labels={"pool": "training"}, annotations={ROLLOUT: RECORD}),
    ):
        found.store.create(kinds.NODES, one)
    for one in leases:
        found.store.create(kinds.LEASES, one, "gpu-webhook")
    if absent:
        del found.kinds[kinds.MIG_LAYOUTS.prefix, kinds.MIG_LAYOUTS.plural]
    return found


async def gathered(on: ApiServer, name: str = "inference") -> LayoutEvidence:
    clock = FakeClock(wall=NOW.timestamp(), auto=True)
    return await gather_layout(client_of(on), name, "gpu-webhook", clock)


async def test_its_nodes_and_their_rollouts() -> None:
    """The nodes that it selects, and no others; a record that cannot be read is kept as the reason."""
    found = await gathered(server(lease()))
    assert (found.selected, sorted(found.rollouts), found.unseen) == (3, ["n1", "n2"], {})
    assert str(found.rollouts["n2"]).startswith("annotation tessera.dev/rollout: ")
    assert found.controller is not None
    assert found.controller.at_work


@pytest.mark.parametrize(
    ("leases", "why", "remedy"),
    [
        ([], "there is no Lease gpu-webhook/tessera-controller", "tessera controller runs (the chart's values controller.enabled and layouts.enabled: true)"),
        ([lease("claims")], "its Lease gpu-webhook/tessera-controller says that it keeps no layouts", "it runs with --layouts, and has its rights (with the chart: layouts.enabled)"),
        ([lease(None)], "its Lease gpu-webhook/tessera-controller says that it keeps no layouts", "it runs with --layouts, and has its rights (with the chart: layouts.enabled)"),
    ],
)  # fmt: skip
async def test_a_controller_that_keeps_no_layouts(
    leases: list[dict[str, Any]], why: str, remedy: str
) -> None:
    """The Lease says what its holder does; one of before says nothing, and keeps none."""
    found = diagnose_layout(await gathered(server(*leases)))
    assert (found.cause, why in found.answer, found.remedies[0].text) == ("controller-away", True, remedy)


@pytest.mark.parametrize(("forbidden", "what"), [("nodes", "nodes"), ("leases", "the controller's Lease")])
async def test_what_may_not_be_read_is_said(forbidden: str, what: str) -> None:
    """The answer stands without it."""
    found = diagnose_layout(await gathered(server(lease(), forbidden=forbidden)))
    assert (found.cause, found.unseen) == ("complete", {what: f"{forbidden} is forbidden"})


NO_API = (
    "the cluster has no MigLayouts: the API tessera.dev/v1alpha1 is not installed; "
    "the chart brings it with its values controller.enabled and layouts.enabled"
)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        (server(), "there is no MigLayout nope; the cluster has inference"),
        (server(absent=True), NO_API),
        (server(forbidden="miglayouts"), "MigLayout nope may not be read: miglayouts is forbidden"),
        (server(forbidden="miglayouts", absent=True), NO_API),
    ],
)
async def test_one_sentence_where_there_is_none(on: ApiServer, message: str) -> None:
    """No such object, no such API, and no right to read it are told apart."""
    with pytest.raises(TesseraError) as raised:
        await gathered(on, "nope")
    assert str(raised.value) == message


async def test_an_object_that_is_none() -> None:
    """A MigLayout that no API server would have taken is named, with what is wrong."""
    odd = server()
    odd.store.create(kinds.MIG_LAYOUTS, {"metadata": {"name": "odd"}, "spec": {"paused": "\x1b[2J"}})
    with pytest.raises(
        TesseraError, match=r"^MigLayout odd cannot be read: spec.paused: expected bool, got str$"
    ):
        await gathered(odd, "odd")
