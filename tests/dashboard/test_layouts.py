"""MigLayouts, rollouts and the autopilot on the page: what their status says, and nothing that was made up."""

import json
from typing import Any

import pytest

from tessera.dashboard.board import Board
from tessera.dashboard.following import following, show_objects
from tessera.dashboard.layouts_part import MOST_LAYOUTS
from tessera.kube.object_files import objects_in_documents
from tessera.kube.rest.client import Client
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import StatusError
from tests.build import mig_layout_document
from tests.dashboard.objects import node
from tests.kube.apiserver import MisbehavingApiServer, status

AT = "2026-01-01T00:00:00Z"
RECUT = {
    "node": "n1",
    "card": 3,
    "before": "1g.18gb ×7",
    "after": "3g.71gb ×2",
    "serves": {"3g.71gb": 2},
    "takes": {"1g.18gb": 7},
    "gain": 9.0,
    "cost": 4.0,
    "reason": "2 pods wait",
}


def parts(*layouts: dict[str, Any], nodes: tuple[Any, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    board = Board("a test")
    for one in layouts:
        board.put_mig_layout(MigLayout.read(json.dumps(one).encode()))
    for one in nodes:
        board.put_node(one)
    found = board.parts()
    return json.loads(found["miglayouts"]), json.loads(found["rollouts"])


def says(layout: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"], one["text"]) for one in parts(layout)[0]["first"][0]["says"]]


def changing(name: str, phase: Phase = Phase.CORDONED, **more: Any) -> Any:
    record = RolloutRecord(Owner("inference", "u1"), phase, 1.8e9, 1.8e9 + 60, 600.0, "x", **more)
    return node(name, annotations={ROLLOUT: written(record)})


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], [("note", "no controller has looked at it yet")]),
        (
            [("Ready", "True", "Complete", "20 of 20 nodes have the layout"), ("Progressing", "False", "Idle", ""), ("Degraded", "False", "AsExpected", "")],
            [("good", "20 of 20 nodes have the layout")],
        ),
        (
            [("Ready", "False", "Incomplete", "1 of 2 nodes have the layout"), ("Progressing", "True", "RollingOut", "n1: waits for a/b")],
            [("note", "1 of 2 nodes have the layout"), ("note", "rolling out: n1: waits for a/b")],
        ),
        ([("Progressing", "False", "Paused", "paused")], [("note", "no further node begins: paused")]),
        ([("Progressing", "False", "DryRun", "dry run")], []),
        ([("Degraded", "True", "RolloutFailed", "n1: no")], [("bad", "failed: n1: no")]),
        ([("Invalid", "True", "DoesNotFit", "n1: no")], [("bad", "does not fit: n1: no")]),
        ([("Invalid", "True", "NewReason", "words")], [("bad", "invalid: words")]),
    ],
)  # fmt: skip
def test_conditions_in_plain_words(conditions, expected):
    """What holds, what is missing and why nothing goes on; nothing of what is as it should be."""
    assert says(mig_layout_document(conditions=conditions)) == expected


def test_a_change_that_the_controller_has_not_seen():
    """A status of an earlier generation is told as such."""
    ready = ("Ready", "True", "Complete", "2 of 2 nodes have the layout")
    assert says(mig_layout_document(conditions=[ready], observedGeneration=1))[0] == (
        "note",
        "the controller has not looked at its last change yet",
    )


def test_counts_and_the_nodes_without_their_layout():
    """The numbers of the status, its mode, and the reasons of its nodes."""
    one = mig_layout_document(desired=20, current=12, updatingCount=2, failed=1, nodes=[{"name": "n1", "state": "Failed", "reason": "no"}])  # fmt: skip
    (row,) = parts(one)[0]["first"]
    assert {key: row[key] for key in ("name", "mode", "selector", "desired", "current", "updating", "failed", "autopilot")} == {
        "name": "inference", "mode": "Fixed", "selector": "pool=inference", "desired": 20, "current": 12, "updating": 2, "failed": 1, "autopilot": None,
    }  # fmt: skip
    assert row["nodes"] == [{"name": "n1", "state": "Failed", "reason": "no"}]


def test_what_was_written_by_somebody_else_is_bounded():
    """A status with thousands of entries and endless texts stays small; one that cannot be read is told, and the others are shown."""
    much = [{"name": f"n{n}", "state": "x" * 2000, "reason": "y " * 2000} for n in range(200)]
    odd = mig_layout_document("odd", desired="many")
    found, _ = parts(
        mig_layout_document("long", nodes=much, conditions=[("Ready", "False", "z" * 9000, "w" * 9000)]), odd
    )
    assert len(json.dumps(found)) < 20_000
    assert found["first"][1]["says"][0]["text"].startswith(
        "its status cannot be read: status: Expected `int`"
    )


def test_many_are_counted_and_some_are_shown():
    """The first by name."""
    found, _ = parts(*(mig_layout_document(f"l{n:03}") for n in range(MOST_LAYOUTS + 5)))
    assert (found["count"], len(found["first"]), found["first"][0]["name"]) == (
        MOST_LAYOUTS + 5,
        MOST_LAYOUTS,
        "l000",
    )


def test_rollouts_under_way():
    """Which node, how far, since when, for whom, and what it waits for: the controller's words where it has some."""
    told = mig_layout_document(nodes=[{"name": "a", "state": "Updating", "reason": "waits for ml/train"}, {"name": "b", "state": "Updating", "reason": "Written"}])  # fmt: skip
    nodes = (changing("b", Phase.WRITTEN), changing("a"), changing("c", Phase.PUTTING_BACK, reason="the node said no"), node("d"))  # fmt: skip
    _, found = parts(told, nodes=nodes)
    assert found["count"] == 3
    a, b, c = found["first"]
    assert (a["node"], a["phase"], a["owner"], a["since"]) == ("a", "Cordoned", "MigLayout inference", "2027-01-15T08:00:00Z")  # fmt: skip
    assert a["words"] == "waits for ml/train"
    assert b["words"] == "the new layout is written; the node is to show it"
    assert (c["kind"], c["reason"]) == ("failed", "the node said no")


def test_rollouts_come_and_go():
    """A rollout that ended is gone, and so is that of a node that was deleted; the node's summary says that one is under way."""
    board = Board("a test")
    for name in ("a", "b"):
        board.put_node(changing(name))
    assert "rollout under way" in json.loads(board.parts()["node/a"])["notes"]
    board.put_node(node("a"))
    board.remove_node("b")
    assert json.loads(board.parts()["rollouts"]) == {"count": 0, "first": []}


@pytest.mark.parametrize("text", ["nonsense", "{}", '{"owner": {"name": "<b>"}}'])
def test_a_record_that_cannot_be_read(text):
    """The node is shown with the reason."""
    _, found = parts(nodes=(node("a", annotations={ROLLOUT: text}),))
    assert found["first"][0]["words"].startswith("annotation tessera.dev/rollout: ")


def test_times_that_are_none():
    """A record with an impossible time is shown without it."""
    far = RolloutRecord(Owner("x"), Phase.CORDONED, 1e300, -5.0, 1.0, "x")
    _, found = parts(nodes=(node("a", annotations={ROLLOUT: written(far)}),))
    assert (found["first"][0]["since"], found["first"][0]["until"]) == ("", "")


def auto(**autopilot: Any) -> dict[str, Any]:
    return mig_layout_document(spec={"mode": "Auto"}, autopilot=autopilot)


def test_the_autopilot_s_plan():
    """The plan with its reasons, what it serves and takes, refusals, and that it is a dry run."""
    given = auto(
        dryRun=True,
        summary="1 card would be cut",
        demand=[{"profile": "3g.71gb", "waiting": 2, "forecast": 1.5}],
        recuts=[{**RECUT, "waits": "dry run"}],
        refusals=[{"profile": "7g.141gb", "number": 1, "why": "budget", "reason": "20 cards were cut"}],
    )
    (row,) = parts(given)[0]["first"]
    found = row["autopilot"]
    assert (row["mode"], found["dryRun"], found["summary"]) == ("Auto", True, "1 card would be cut")
    (recut,) = found["recuts"]
    words = "serves 2 × 3g.71gb, takes 7 × 1g.18gb (idle); gain 9, cost 4"
    assert recut["says"] == [words, "2 pods wait", ""], "the page says dry run once"
    assert found["refusals"] == [{"what": "1 × 7g.141gb", "reason": "20 cards were cut"}]
    assert (found["demand"][0]["waiting"], found["demand"][0]["forecast"]) == (2, 1.5)


@pytest.mark.parametrize(
    ("result", "told", "kind", "words"),
    [
        ("DryRun", "", "offers", "dry run: nothing was changed"),
        ("Done", "", "success", "done"),
        ("Failed", "NVML said no", "failed", "failed, the old layout is back: NVML said no"),
        ("Strange", "", "offers", "Strange"),
    ],
)
def test_the_autopilot_s_last_decisions(result, told, kind, words):
    """Each with when, what became of it, and why."""
    past = {key: RECUT[key] for key in ("node", "card", "before", "after", "serves", "reason")}
    given = auto(dryRun=False, history=[{**past, "at": AT, "result": result, "told": told}])
    (one,) = parts(given)[0]["first"][0]["autopilot"]["history"]
    assert (one["when"], one["kind"], one["says"]) == (AT, kind, [words, "for 2 × 3g.71gb: 2 pods wait"])


def test_an_autopilot_that_has_not_looked_yet():
    """It is a dry run until its status says otherwise."""
    found = parts(mig_layout_document(spec={"mode": "Auto"}))[0]["first"][0]["autopilot"]
    assert (found["dryRun"], found["summary"]) == (True, "it has not looked yet")


@pytest.mark.parametrize("case", ["there", "absent", "forbidden", "forbidden and absent"])
async def test_a_cluster_with_and_without_them(case):
    """Where the cluster has no MigLayouts nothing is shown, and no error; where they may not be read, the page says so."""
    server, board = MisbehavingApiServer(), Board("a test")
    prefix = kinds.MIG_LAYOUTS.prefix
    no = StatusError(403, "Forbidden", "you may not")
    if "forbidden" in case:
        server.intercept = lambda request: status(no) if request.path == f"{prefix}/miglayouts" else None
    server.store.create(kinds.MIG_LAYOUTS, mig_layout_document())
    if "absent" in case:
        del server.kinds[prefix, "miglayouts"]
    async with await server.start(), Client(server.cluster) as client, following(client, board):
        found = json.loads(board.parts()["miglayouts"])
    assert found["count"] == (1 if case == "there" else 0)
    assert ("you may not" in found["unseen"]) is (case == "forbidden")
    assert not json.loads(board.parts()["about"])["trouble"]


def test_files():
    """MigLayouts among saved objects are shown as in a cluster."""
    board = Board("a test")
    show_objects(board, list(objects_in_documents([mig_layout_document()], "test")))
    assert json.loads(board.parts()["miglayouts"])["first"][0]["name"] == "inference"
