"""The answer about a MigLayout: its first line, its parts, and what to do next."""

import json
from typing import Any

import msgspec
import pytest

from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.diagnosis.layouts.layout_diagnosis import LayoutDiagnosis, diagnose_layout
from tessera.inventory.presence import Presence
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import Owner, Phase, RolloutRecord
from tests.diagnosis.layouts.objects import AT, MISSING, PAST, READY, RECUT, auto, mig_layout

NOW = 1.8e9
AWAY = Presence(
    "tessera controller", "there is no Lease gpu-webhook/tessera-controller", None, "it runs", "look"
)
FAILED = {"name": "n1", "state": "Failed", "reason": "no; the old layout is back"}
STOPPED = ("Progressing", "False", "Stopped", "nobody knows")
DEGRADED = ("Degraded", "True", "RolloutFailed", "n1: no; the old layout is back")
PATCH = "kubectl patch miglayout inference --type merge -p '{\"spec\": %s}'"
EDIT = "kubectl edit miglayout inference"


def answer(document: dict[str, Any], **seen: Any) -> LayoutDiagnosis:
    given: dict[str, Any] = {
        "now": NOW,
        "selected": 2,
        "controller": Presence("tessera controller"),
        "namespace": "gpu-webhook",
    }
    return diagnose_layout(LayoutEvidence(MigLayout.read(json.dumps(document).encode()), **(given | seen)))


def record(phase: Phase = Phase.CORDONED, **more: Any) -> RolloutRecord:
    return RolloutRecord(Owner("inference", "u1"), phase, NOW - 60, NOW + 60, 600.0, "x", **more)


@pytest.mark.parametrize(
    ("document", "cause", "says"),
    [
        (mig_layout(READY), "complete", " is complete: 2 of 2 nodes have the layout"),
        (
            mig_layout(MISSING, ("Progressing", "True", "RollingOut", "n1: waits for a/b")),
            "rolling-out",
            " is being rolled out: 1 of 2 nodes have the layout; n1: waits for a/b",
        ),
        (mig_layout(), "not-observed", ": no controller has looked at it yet"),
        (
            mig_layout(READY, observedGeneration=1),
            "not-observed",
            ": the controller has not looked at its last change yet",
        ),
        (
            mig_layout(MISSING, spec={"paused": True}),
            "paused",
            " is paused, no further node begins: 1 of 2 nodes have the layout",
        ),
        (
            mig_layout(MISSING, DEGRADED, ("Progressing", "False", "Stopped", "the rollout failed on n1")),
            "failed",
            " failed on a node: n1: no; the old layout is back; no further node begins",
        ),
        (
            mig_layout(MISSING, ("Degraded", "True", "Conflict", "n1: MigLayout old keeps it, which is older")),
            "conflict",
            " does not keep all nodes that it selects: n1: MigLayout old keeps it, which is older",
        ),
        (
            mig_layout(MISSING, ("Invalid", "True", "DoesNotFit", "n1: no room")),
            "invalid",
            " does not fit: n1: no room",
        ),
        (
            mig_layout(MISSING, ("Invalid", "True", "BadSpec", "spec.rollout: no")),
            "invalid",
            " cannot be carried out: spec.rollout: no",
        ),
        (mig_layout(READY, desired="many"), "unreadable", ": its status cannot be read: status: Expected `int`, got `str` - at `$.desired`"),
        (
            auto(dryRun=True, summary="Dry run: 1 card would be re-cut."),
            "dry-run",
            " follows demand, in a dry run. 1 card would be re-cut.",
        ),
        (auto(), "dry-run", " follows demand, in a dry run. It has not looked yet."),
        (auto(dryRun=False), "not-observed", " follows demand. It has not looked yet."),
        (auto(dryRun=False, summary="Nothing is wanted."), "complete", " follows demand. Nothing is wanted."),
        (
            auto(dryRun=False, summary="Soon.", recuts=[RECUT]),
            "rolling-out",
            " follows demand. Soon.",
        ),
        (
            auto(dryRun=False, summary="No room.", refusals=[{"profile": "p", "number": 1, "why": "x", "reason": "y"}]),
            "no-room",
            " follows demand. No room.",
        ),
        (
            auto(READY, STOPPED, dryRun=False, summary="Nobody knows. Nothing is re-cut.", recuts=[RECUT]),
            "stopped",
            " follows demand. Nobody knows. Nothing is re-cut.",
        ),
        (
            auto(spec={"paused": True}, dryRun=False, summary="Paused: 1 card would be re-cut."),
            "paused",
            " is paused, no further node begins. 1 card would be re-cut.",
        ),
    ],
)  # fmt: skip
def test_the_first_line(document: dict[str, Any], cause: str, says: str) -> None:
    """What matters most, in one sentence; and one word for programs."""
    found = answer(document)
    assert (found.cause, found.answer) == (cause, f"MigLayout inference{says}")


@pytest.mark.parametrize(
    ("part", "says", "commands"),
    [
        (
            AWAY,
            "tessera controller is unavailable: there is no Lease gpu-webhook/tessera-controller",
            ["helm upgrade tessera charts/tessera -n gpu-webhook --reset-then-reuse-values --set controller.enabled=true --set layouts.enabled=true", "look"],
        ),
        (
            Presence("tessera controller", "its Lease has not been renewed by one", NOW - 60, "it runs again", "look"),
            "tessera controller has been unavailable for 1 min (since 2027-01-15 07:59:00 UTC): its Lease has not been renewed by one",
            ["look"],
        ),
    ],
)  # fmt: skip
def test_a_controller_that_is_not_at_work(part: Presence, says: str, commands: list[str]) -> None:
    """It comes first, with what was known last, and how to turn it on."""
    found = answer(mig_layout(READY), controller=part)
    last = "when it was last looked at: 2 of 2 nodes have the layout"
    assert found.answer == f"MigLayout inference is kept by nobody: {says}; {last}"
    assert (found.cause, list(found.remedies[0].commands)) == ("controller-away", commands)
    assert answer(mig_layout(READY), controller=None).cause == "complete", "its Lease may not be read"


def test_no_node_has_its_labels() -> None:
    """The labels are named, and what gives them to nodes."""
    labels = {"pool": "in ference", "zone": "a"}
    found = answer(mig_layout(READY, desired=0, spec={"nodeSelector": labels}), selected=0)
    assert found.cause == "no-nodes"
    assert found.answer == "MigLayout inference has no nodes: no node has the labels pool=in ference,zone=a"
    assert found.remedies[0].commands == ("kubectl label node NODE 'pool=in ference' zone=a", EDIT)


@pytest.mark.parametrize(
    ("document", "steps"),
    [
        (mig_layout(READY), []),
        (mig_layout(), [("wait", "kubectl logs -n gpu-webhook -l app=tessera-controller")]),
        (mig_layout(READY, spec={"paused": True}), [("change", PATCH % '{"paused": false}')]),
        (mig_layout(MISSING, ("Invalid", "True", "BadSpec", "no")), [("change", EDIT)]),
        (mig_layout(MISSING, ("Degraded", "True", "Conflict", "no")), [("change", "kubectl get miglayouts")]),
        (
            mig_layout(MISSING, DEGRADED, nodes=[FAILED, {**FAILED, "name": "x; reboot"}]),
            [("change", "kubectl annotate node n1 tessera.dev/rollout-result-"), ("change", EDIT)],
        ),
        (
            mig_layout(MISSING, updatingCount=1, desired=3, current=1),
            [("wait", ""), ("limit", EDIT)],
        ),
        (auto(READY, STOPPED, dryRun=False), [("wait", "kubectl logs -n gpu-webhook -l app=tessera-controller")]),
        (auto(dryRun=True), [("wait", ""), ("change", PATCH % '{"autopilot": {"dryRun": false}}')]),
        (
            auto(dryRun=True, history=[{**PAST, "at": AT, "result": "DryRun"}]),
            [("change", PATCH % '{"autopilot": {"dryRun": false}}')],
        ),
    ],
)  # fmt: skip
def test_what_to_do_next(document: dict[str, Any], steps: list[tuple[str, str]]) -> None:
    """Commands that can be copied; no name that Kubernetes would not give a node gets into one."""
    found = answer(document)
    assert [(one.kind, one.commands[0] if one.commands else "") for one in found.remedies] == steps


def test_an_annotation_that_cannot_be_read() -> None:
    """It is removed by hand, and the node uncordoned; the result's annotation is not what keeps it."""
    document = mig_layout(MISSING, DEGRADED, nodes=[FAILED, {**FAILED, "name": "n2"}])
    found = answer(document, rollouts={"n1": "annotation tessera.dev/rollout: not JSON"})
    commands = [step.commands for step in found.remedies]
    assert commands[0] == ("kubectl annotate node n1 tessera.dev/rollout-", "kubectl uncordon n1")
    assert commands[1] == ("kubectl annotate node n2 tessera.dev/rollout-result-",)


@pytest.mark.parametrize(
    ("why", "kind", "text"),
    [
        (
            "budget",
            "limit",
            "raise spec.autopilot.recutsPerHour (20 now), or wait: cards are counted for an hour",
        ),
        ("cool-down", "limit", "lower spec.autopilot.coolDown (10m now), or wait until it is over"),
        ("minimum", "limit", "lower spec.autopilot.minimum (8 × 1g.18gb now)"),
        ("maximum", "limit", "raise spec.autopilot.maximum (none now)"),
        ("keep-whole", "limit", "lower spec.autopilot.keepWhole (4 now)"),
        (
            "no-room",
            "wait",
            "it gets room when pods end, when nodes can be cut that are left alone now, or when the MigLayout selects more",
        ),
        (
            "share",
            "limit",
            "raise spec.autopilot.recutsPerHour (20 now), or find out why pods of their namespaces do not take what is cut for them",
        ),
        ("not-worth-it", "wait", "nothing more: it is cut once it is worth more than what goes for it"),
        ("unheard-of", None, None),
    ],
)
def test_which_limit_to_raise(why: str, kind: str | None, text: str | None) -> None:
    """By why something gets no room: what is alike is one step, with what the limit is now."""
    refusals = [{"profile": one, "number": 2, "why": why, "reason": "r"} for one in ("7g.141gb", "3g.71gb")]
    limits = {"minimum": {"1g.18gb": 8}, "keepWhole": 4}
    found = answer(
        auto(dryRun=False, summary="No room.", refusals=refusals, limits={"dryRun": False, **limits})
    )
    expected = [] if kind is None else [(kind, f"for 2 × 7g.141gb, 2 × 3g.71gb: {text}")]
    assert [(one.kind, one.text) for one in found.remedies] == expected


def test_nodes_with_the_same_reason_are_one_group() -> None:
    """In the controller's order; nodes whose reasons the status does not have are counted."""
    nodes = [FAILED, *({"name": f"n{n}", "state": "Pending", "reason": "it is cordoned"} for n in (2, 3))]
    nodes += [{"name": "n4", "state": "Pending", "reason": ""}]
    found = answer(mig_layout(MISSING, nodes=nodes, desired=30, current=10))
    assert [(one.state, one.reason, one.nodes) for one in found.nodes] == [
        ("Failed", "no; the old layout is back", ("n1",)),
        ("Pending", "it is cordoned", ("n2", "n3")),
        ("Pending", "waits for its turn", ("n4",)),
    ]
    assert found.more == 16


def test_rollouts_under_way() -> None:
    """What stands on nodes, the longest first, in the controller's words; then slots without one. Pods that are waited for may be evicted."""
    told = [{"name": "n1", "state": "Updating", "reason": "waits for a/b"}]
    document = mig_layout(MISSING, nodes=told, updating=["n1", "n9"], updatingCount=2, current=1, desired=6)
    found = answer(document, rollouts={"n1": record(), "n0": "annotation: no", "n2": record(Phase.WRITTEN)})
    assert [(one.node, one.phase, one.words) for one in found.rollouts] == [
        ("n0", "", "annotation: no"),
        ("n1", "Cordoned", "waits for a/b"),
        ("n2", "Written", "the new layout is written; the node is to show it"),
        ("n9", "", "it has a slot; no rollout stands on the node"),
    ]
    assert found.rollouts[1].since == moment(NOW - 60)
    assert [(one.text, one.commands) for one in found.remedies] == [
        ("nothing more: it goes on by itself, once the pods end that are waited for", ()),
        ("have pods evicted that hold devices which go, on the nodes that begin from now on", (PATCH % '{"rollout": {"whenInUse": "Drain"}}',)),
        ("more nodes at a time: raise spec.rollout.maxUnavailable (1 now)", (EDIT,)),
    ]  # fmt: skip
    blind = answer(document, selected=None)
    assert blind.rollouts[1].words == "it has a slot; its node could not be read"


def test_what_its_mode_means() -> None:
    """The mode, what limits it, and whether it acts."""
    limits = {"dryRun": False, "minimum": {"1g.18gb": 8}, "maximum": {"7g.141gb": 16}, "keepWhole": 8}
    assert answer(auto(limits=limits)).about == (
        "Auto: idle devices are re-cut for what pods want; it acts",
        "nodes at a time: 1; cards an hour: 20; cool-down 10m",
        "at least 8 × 1g.18gb; at most 16 × 7g.141gb; cards that stay whole: 8",
    )
    assert answer(mig_layout(READY, spec={"paused": True})).about == (
        "Fixed: nodes get the layouts that it has",
        "nodes at a time: 1; pods that hold devices which go: Wait",
        "paused: no further node begins",
    )


EVIL = "\x1b]0;gone\x07\x9b2J\u202e\r\n  $ reboot" + "y" * 500


def test_whatever_stands_in_a_status_or_an_annotation() -> None:
    """No part of an answer has a character that a terminal would obey, none is endless, and none is a command."""
    recut = {**RECUT, "node": EVIL, "before": EVIL, "serves": {EVIL: 1}, "reason": EVIL, "waits": EVIL}
    past = {"at": EVIL, "node": EVIL, "card": 1, "before": EVIL, "after": EVIL, "serves": {EVIL: 1}, "reason": EVIL, "result": EVIL, "told": EVIL}  # fmt: skip
    document = auto(
        ("Ready", EVIL, EVIL, EVIL),
        ("Degraded", "True", EVIL, EVIL),
        spec={"nodeSelector": {EVIL: EVIL}, "rollout": {"maxUnavailable": EVIL, "whenInUse": EVIL}},
        limits={"coolDown": EVIL, "minimum": {EVIL: 1}},
        dryRun=False,
        summary=EVIL,
        demand=[{"profile": EVIL}] * 400,
        recuts=[recut] * 400,
        refusals=[{"profile": EVIL, "number": 1, "why": "budget", "reason": EVIL}] * 400,
        history=[past] * 400,
    )
    document["status"] |= {
        "nodes": [{"name": f"{n}{EVIL}", "state": "Failed", "reason": EVIL} for n in range(400)],
        "updating": [f"{n}{EVIL}" for n in range(400)],
    }
    part = Presence("tessera controller", EVIL, None, "it runs", "look")
    for controller in (part, None):
        found = answer(document, rollouts={EVIL: EVIL, "n": record(reason=EVIL)}, unseen={EVIL: EVIL}, controller=controller)  # fmt: skip
        texts = list(_texts(msgspec.to_builtins(found)))
        assert all(one.isprintable() for one in texts)
        assert max(map(len, texts)) < 2000
        assert sum(map(len, texts)) < 500_000
        assert not [one for step in found.remedies for one in step.commands if "annotate" in one]


def _texts(value: Any) -> Any:
    match value:
        case str():
            yield value
        case list() | tuple():
            for one in value:
                yield from _texts(one)
        case dict():
            for key, one in value.items():
                yield key
                yield from _texts(one)
