"""Why a pod waits, was changed or was never created: prepared situations, each with its first line."""

import copy
from typing import Any

import pytest

from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Denied
from tessera.core.admission.policy import Policy
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.diagnosis.admission import by_policy
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.reading import NoSuchObject, parse_target
from tessera.diagnosis.remedy import NodeOpened, PodsEnd
from tessera.protocol.kubernetes.controllers import LONGEST_MESSAGE
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane import kinds
from tessera.webhook.offline import admit_again
from tests.build import MIG, Document, container, offers, policy
from tests.build import node as core_node
from tests.build import pod as core_pod
from tests.diagnosis.clusters import QUOTAS, REPLICA_SETS, node, pod, refused, why
from tests.diagnosis.layouts.objects import mig_layout

POLICY = "gpu-webhook.k8s.io/fallback-policy"
MINIMUM = "gpu-webhook.k8s.io/min-memory"
LAYOUT = """\
version: v1
mig-configs:
  selected:
  - devices: all
    mig-enabled: true
    mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]
"""
H200 = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/gpu.memory": "71680",
    "nvidia.com/gpu.count": "1",
}
PENDING = {**H200, "nvidia.com/mig.config.state": "pending"}
FAILED = {**H200, "nvidia.com/mig.config.state": "failed"}
WISHED = {"run.ai/mig.config": LAYOUT, "nvidia.com/mig.config.reason": "1g.10gb is in use"}
TAINT = {"key": "team", "value": "other", "effect": "NoSchedule"}

SITUATIONS: dict[str, tuple[list[Any], list[Any], str, str]] = {
    "full": (
        [node("a", {"1g.10gb": 1})],
        [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"1g.10gb": 1})],
        "taken",
        "1 × 1g.10gb is taken on node a (1g.10gb: 1 of 1 in use)",
    ),
    "missing": (
        [node("a", {"1g.10gb": 1}), node("plain", {})],
        [pod("p", {"3g.30gb": 1})],
        "missing",
        "no node offers 1 × 3g.30gb",
    ),
    "too few on one node": (
        [node("a", {"1g.10gb": 1}), node("b", {"1g.10gb": 1})],
        [pod("p", {"1g.10gb": 2})],
        "too-few",
        "no node has 2 × 1g.10gb together (1g.10gb: it has 1, the pod needs 2 on one node on nodes a, b)",
    ),
    "taint": (
        [node("a", {"1g.10gb": 1}, taints=[TAINT])],
        [pod("p", {"1g.10gb": 1})],
        "closed",
        "1 × 1g.10gb is only on node a, not for this pod (taint team=other:NoSchedule is not tolerated)",
    ),
    "cordoned": (
        [
            node(
                "a",
                {"1g.10gb": 1},
                taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
            )
        ],
        [pod("p", {"1g.10gb": 1})],
        "closed",
        (
            "1 × 1g.10gb is only on node a, not for this pod "
            "(taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated)"
        ),
    ),
    "pending layout": (
        [node("a", {"1g.10gb": 7}, labels=PENDING, annotations=WISHED)],
        [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"2g.20gb": 1})],
        "layout-pending",
        (
            "1 × 2g.20gb comes with a layout that node a has not taken yet "
            "(its layout with 2g.20gb is pending: 1g.10gb is in use)"
        ),
    ),
    "failed layout": (
        [node("a", {"1g.10gb": 7}, labels=FAILED, annotations=WISHED)],
        [pod("p", {"2g.20gb": 1})],
        "layout-failed",
        (
            "no node offers 1 × 2g.20gb, and the layout of node a failed "
            "(no 1 × 2g.20gb; its layout failed: 1g.10gb is in use)"
        ),
    ),
    "ill device": (
        [node("a", {"1g.10gb": 1}, capacity={"1g.10gb": 2})],
        [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"1g.10gb": 1})],
        "ill-devices",
        "devices of node a are unhealthy (1g.10gb: 1 of 2 are unhealthy, 1 in use)",
    ),
    "plugin away": (
        [node("a", {"1g.10gb": 0}, capacity={"1g.10gb": 2})],
        [pod("p", {"1g.10gb": 1})],
        "plugin-away",
        (
            "the device plugin of node a is unavailable "
            "(1g.10gb: 0 of 2 are offered: its device plugin is unavailable, or all its devices are unhealthy)"
        ),
    ),
    "plugin long away": (
        [node("a", {"1g.10gb": 0})],
        [pod("p", {"1g.10gb": 1})],
        "plugin-away",
        (
            "the device plugin of node a is unavailable "
            "(1g.10gb: 0 of 0 are offered: its device plugin is unavailable, or all its devices are unhealthy)"
        ),
    ),
    "cpu": (
        [node("a", {"1g.10gb": 1}, cpu="2")],
        [pod("p", {"1g.10gb": 1}, cpu="4")],
        "other-resource",
        "1 × 1g.10gb is free on node a, but not all else that it asks for (cpu: 2 of 2 free, the pod needs 4)",
    ),
    "room": (
        [node("a", {"1g.10gb": 1})],
        [pod("p", {"1g.10gb": 1})],
        "room",
        "node a has room for it, and the scheduler says: 0/1 nodes are available",
    ),
    "no nodes": ([], [pod("p", {"1g.10gb": 1})], "missing", "there are no nodes"),
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_first_line(situation: str):
    """Each situation has its own first line, and its word for programs."""
    nodes, pods, cause, answer = SITUATIONS[situation]
    found = await why("p", {kinds.NODES: nodes, kinds.PODS: pods})
    assert (found.cause, found.answer) == (cause, f"pod team/p waits: {answer}")


def refused_at(name: str, made: str, refused: str = "", **more: Any) -> Document:
    """A pod that was made at this minute after eleven, and that the scheduler has refused since that minute."""
    one = pod(name, {"1g.10gb": 1}, metadata={"creationTimestamp": f"2026-11-15T11:{made}Z"}, **more)
    if refused:
        one["status"]["conditions"][0]["lastTransitionTime"] = f"2026-11-15T11:{refused}Z"
    else:
        one["status"] = {}
    return one


@pytest.mark.parametrize(
    ("waits", "other", "cause", "says"),
    [
        (refused_at("p", "59:00", "59:30"), None, "room", "it waits for something else: look at its volumes"),
        (refused_at("p", "59:00", "59:31"), None, "room", "scheduler says: 0/1 nodes are available"),
        (refused_at("p", "59:30"), refused_at("o", "59:31", "59:59"), "silent", "it waits for something else"),
        (refused_at("p", "59:31"), refused_at("o", "59:32", "59:59"), "room", "not said anything yet"),
        (refused_at("p", "00:00"), refused_at("o", "00:00", "59:59"), "room", "not said anything yet"),
        (refused_at("p", "00:00"), None, "room", "not said anything yet"),
        (refused_at("p", "00:00", spec={"schedulerName": "volcano"}), refused_at("o", "01:00", "02:00"), "room", "not said anything yet"),
    ],
)  # fmt: skip
async def test_a_pod_that_waits_for_something_else(waits, other, cause, says):
    """A device is in reach, or the scheduler does not look at it, for 30 s by its times: the answer says so, and not before."""
    pods = [waits, *([other] if other else [])]
    found = await why("p", {kinds.NODES: [node("a", {"1g.10gb": 2})], kinds.PODS: pods})
    assert (found.cause, says in found.answer) == (cause, True)
    assert (found.cause == "silent") == any(
        "kubectl describe pod" in one for remedy in found.remedies for one in remedy.commands
    )


CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


async def test_a_full_node_that_is_cordoned():
    """A node that is full and cordoned helps only when both end: the answer says both, and so does the remedy."""
    nodes = [node("a", {"1g.10gb": 1}, taints=[CORDONED])]
    pods = [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"1g.10gb": 1})]
    found = await why("p", {kinds.NODES: nodes, kinds.PODS: pods})
    assert (found.cause, found.answer) == (
        "closed",
        (
            "pod team/p waits: 1 × 1g.10gb is only on node a, not for this pod "
            "(taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated; 1g.10gb: 1 of 1 in use)"
        ),
    )
    (remedy,) = found.remedies
    assert (remedy.kind, remedy.text, remedy.commands) == (
        "change",
        (
            "the pod may go to node a: taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated, "
            "and a pod ends on node a: team/h (1 × 1g.10gb, for 3 h)"
        ),
        ("kubectl uncordon a",),
    )
    assert remedy.changes == (NodeOpened("a"), PodsEnd(("team/h",)))


async def test_a_cordon_without_its_taint():
    """A node that was cordoned a moment ago has no taint yet, and takes no pod either."""
    one = node("a", {"1g.10gb": 1})
    one["spec"]["unschedulable"] = True
    found = await why("p", {kinds.NODES: [one], kinds.PODS: [pod("p", {"1g.10gb": 1})]})
    assert found.cause == "closed"
    assert [remedy.commands for remedy in found.remedies] == [("kubectl uncordon a",)]


@pytest.mark.parametrize(
    ("owner", "fields", "kind", "commands"),
    [
        (Owner("inference", "u1"), {}, "wait", ("tessera why miglayout/inference",)),
        (Owner("ann"), {}, "wait", ()),
        (Owner("x; reboot", "u1"), {}, "wait", ()),
        # it stays so when the rollout ends
        (Owner("inference", "u1"), {"cordoned": True}, "change", ("kubectl uncordon a",)),
        (Owner("ann"), {"cordons": False}, "change", ("kubectl uncordon a",)),
    ],
)
async def test_a_node_that_a_rollout_has_cordoned(owner, fields, kind, commands):
    """Whoever uncordons it lets pods on a node whose cards are being cut: its rollout does that, at its end."""
    record = RolloutRecord(owner, Phase.WRITTEN, 1.8e9, 1.8e9, 60.0, "x", **fields)
    one = node("a", {"1g.10gb": 1}, annotations={ROLLOUT: written(record)})
    one["spec"]["unschedulable"] = True
    found = await why("p", {kinds.NODES: [one], kinds.PODS: [pod("p", {"1g.10gb": 1})]})
    assert found.cause == "closed"
    (remedy,) = found.remedies
    assert (remedy.kind, remedy.commands) == (kind, commands)
    ends = (
        f"when its rollout ends ({owner}): taint node.kubernetes.io/unschedulable:NoSchedule is not tolerated"
    )
    assert remedy.text.endswith(ends) is (kind == "wait")


@pytest.mark.parametrize(
    ("notes", "asks", "first"),
    [
        ({}, {"1g.10gb": 2}, "asks for nvidia.com/mig-3g.30gb: 2 (container main)"),
        (
            {
                "gpu-webhook.k8s.io/asked": '{"main":{"nvidia.com/mig-3g.30gb":"1","nvidia.com/mig-2g.20gb":"1"}}'
            },
            {"1g.10gb": 2},
            "asks for nvidia.com/mig-3g.30gb: 1 (container main)",
        ),
    ],
)
async def test_a_record_is_undone_as_by_admit(notes: Any, asks: Any, first: str):
    """A record in which several became the same is undone by the one rule: what was asked where it is known, else the largest."""
    notes = {"gpu-webhook.k8s.io/fallback": "3g.30gb->1g.10gb,2g.20gb->1g.10gb", **notes}
    one = pod("p", asks, annotations=notes)
    found = await why("p", {kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.PODS: [one]})
    assert found.admission[1] == first
    again = admit_again(
        {"apiVersion": "v1", "kind": "Pod", **one}, offers(core_node("a", **{"1g.10gb": 1})), policy("")
    )
    (reviewed,) = again.reviewed.values()
    assert isinstance(reviewed.would, Denied)
    assert found.admission[-1] == f"created now it would be rejected: {reviewed.would.message}"


async def test_mended_goes_before_the_end_of_a_pod():
    """A node that would have room if it were well is told before one that is full."""
    nodes = [
        node("full", {"1g.10gb": 1}),
        node("ill", {"1g.10gb": 0, "2g.20gb": 1}, capacity={"1g.10gb": 1, "2g.20gb": 1}),
    ]
    found = await why(
        "p", {kinds.NODES: nodes, kinds.PODS: [pod("h", {"1g.10gb": 1}, on="full"), pod("p", {"1g.10gb": 1})]}
    )
    assert found.cause == "ill-devices"
    assert [one.kind for one in found.remedies] == ["mend", "pod-ends"]


async def test_who_holds_it_and_since_when():
    """The fewest pods whose end makes room, with what they hold and since when."""
    nodes = [node("a", {"1g.10gb": 2}), node("b", {"1g.10gb": 2})]
    pods = [
        pod("a1", {"1g.10gb": 1}, on="a"),
        pod("a2", {"1g.10gb": 1}, on="a"),
        pod("b1", {"1g.10gb": 2}, on="b"),
        pod("p", {"1g.10gb": 2}),
    ]
    found = await why("p", {kinds.NODES: nodes, kinds.PODS: pods})
    assert [(one.pod, one.node, dict(one.holds)) for one in found.holders] == [
        ("team/b1", "b", {MIG + "1g.10gb": 2}),
        ("team/a1", "a", {MIG + "1g.10gb": 1}),
        ("team/a2", "a", {MIG + "1g.10gb": 1}),
    ]
    assert [(one.kind, one.text) for one in found.remedies] == [
        ("pod-ends", "a pod ends on node b: team/b1 (2 × 1g.10gb, for 3 h)")
    ]


async def test_layout_that_the_planner_proposes():
    """Where a card can be cut for the pod beside what others hold, that is told; no pod has to end."""
    mapping = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb, 1g.10gb, 3g.30gb]")
    one = node("a", {"1g.10gb": 3, "3g.30gb": 1}, labels=H200, annotations={"run.ai/mig.config": mapping})
    found = await why(
        "p", {kinds.NODES: [one], kinds.PODS: [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"2g.20gb": 1})]}
    )
    assert found.answer == "pod team/p waits: no node offers 1 × 2g.20gb"
    assert [(one.kind, one.text, one.commands) for one in found.remedies if one.kind == "layout"] == [
        (
            "layout",
            "node a is re-cut (card 0: 3 × 1g.10gb + 1 × 2g.20gb); pods that run keep what they hold",
            ("tessera mig plan -o runai",),
        )
    ]


async def test_a_layout_that_a_mig_layout_keeps():
    """`mig apply` refuses such a node: the oldest MigLayout that selects it is named, and what it says of itself. Another one's nodes are as ever."""
    text = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb, 1g.10gb, 3g.30gb]")
    labels, annotations = {**H200, "pool": "inference"}, {"run.ai/mig.config": text}
    one = node("a", {"1g.10gb": 3, "3g.30gb": 1}, labels=labels, annotations=annotations)
    pods = [pod("h", {"1g.10gb": 1}, on="a"), pod("p", {"2g.20gb": 1})]
    young, old = mig_layout(), mig_layout()
    young["metadata"] |= {"name": "young", "creationTimestamp": "2026-11-15T10:00:00Z"}
    old["metadata"] |= {"creationTimestamp": "2026-11-15T09:00:00Z"}
    for kept, keeper in (([young, old], "inference"), ([young], "young"), ([], "")):
        found = await why("p", {kinds.NODES: [one], kinds.PODS: pods, kinds.MIG_LAYOUTS: kept})
        (remedy,) = (one for one in found.remedies if one.kind == "layout")
        says = f"; MigLayout {keeper} keeps its layout" if keeper else ""
        assert remedy.text.endswith(f"pods that run keep what they hold{says}")
        command = f"tessera why miglayout/{keeper}" if keeper else "tessera mig plan -o runai"
        assert remedy.commands == (command,)


async def test_pods_that_must_end_before_a_card_can_be_cut():
    """Where all of a card is held, the fewest pods whose end lets it be cut are named."""
    whole = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[7g.70gb]")
    one = node("a", {"7g.70gb": 1}, labels=H200, annotations={"run.ai/mig.config": whole})
    found = await why(
        "p", {kinds.NODES: [one], kinds.PODS: [pod("h", {"7g.70gb": 1}, on="a"), pod("p", {"1g.10gb": 1})]}
    )
    assert [(one.text, one.commands) for one in found.remedies if one.kind == "layout"] == [
        ("a pod ends (team/h on a), and the node is re-cut", ("tessera mig defragment 1g.10gb=1",))
    ]


async def test_a_full_card_of_the_very_slices_that_are_asked_for():
    """Where the pods that must end hold what is asked for, no card is to be cut: their end is all that is needed."""
    full = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", f"[{', '.join(['1g.10gb'] * 7)}]")
    one = node("a", {"1g.10gb": 7}, labels=H200, annotations={"run.ai/mig.config": full})
    pods = [pod(f"h{number}", {"1g.10gb": 1}, on="a") for number in range(7)]
    found = await why("p", {kinds.NODES: [one], kinds.PODS: [*pods, pod("p", {"1g.10gb": 1})]})
    assert found.answer == "pod team/p waits: 1 × 1g.10gb is taken on node a (1g.10gb: 7 of 7 in use)"
    assert [(one.kind, one.text) for one in found.remedies] == [
        ("pod-ends", "a pod ends on node a: team/h0 (1 × 1g.10gb, for 3 h)")
    ]


@pytest.mark.parametrize(
    ("annotations", "namespace", "config", "text"),
    [
        ({POLICY: "never"}, {}, "", f"the pod's annotation {POLICY} is removed"),
        ({}, {POLICY: "never"}, "", f"the annotation {POLICY} of namespace team is removed"),
        (
            {POLICY: "never"},
            {POLICY: "never"},
            "",
            "the annotations gpu-webhook.k8s.io/… of the pod and of namespace team are removed",
        ),
        ({}, {}, "fallback: {downgrades: false}", "fallback.downgrades: true in the webhook's configuration"),
    ],
)
async def test_policy_that_is_in_the_way(annotations: Any, namespace: Any, config: str, text: str):
    """The one setting without which the pod would get something else is named, with what it would get."""
    objects = {
        kinds.NODES: [node("a", {"1g.10gb": 1})],
        kinds.PODS: [pod("p", {"2g.20gb": 1}, annotations=annotations)],
    }
    found = await why("p", objects, namespace=namespace, policy=policy(config))
    (remedy,) = [one for one in found.remedies if one.kind == "policy"]
    assert remedy.text == f"{text}: it gets 1g.10gb in place of 2g.20gb when it is created again"
    if annotations or namespace:
        assert found.cause == "policy"
        assert "fallback-policy is `never`, so it gets exactly this or waits" in found.answer


@pytest.mark.parametrize(
    ("owner", "command"),
    [
        ((), "kubectl get pod -n team p -o yaml | kubectl replace --force -f -"),
        (({"kind": "ReplicaSet", "name": "r", "controller": True},), "kubectl delete pod -n team p"),
    ],
)
async def test_a_pod_that_was_created_without_the_webhook(owner: Any, command: str):
    """It has to be created again: the webhook is at work now, and gives it what nodes have. A changed pod has that already."""
    webhook = {
        "metadata": {"name": "gpu-webhook", "namespace": "gpu-webhook"},
        "spec": {"replicas": 1},
        "status": {"readyReplicas": 1},
    }
    without = pod("p", {"2g.20gb": 1}, metadata={"ownerReferences": list(owner)})
    objects = {kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.PODS: [without]}
    text = "the webhook decides about it anew: it gets 1g.10gb in place of 2g.20gb when it is created again"
    installed = {**objects, kinds.DEPLOYMENTS: [webhook]}
    assert [(one.text, one.commands) for one in (await why("p", installed)).remedies] == [(text, (command,))]
    webhook["status"] = {}
    for nobody in (objects, {**objects, kinds.DEPLOYMENTS: [webhook]}):
        assert (await why("p", nobody)).remedies == ()
    webhook["status"] = {"readyReplicas": 1}
    changed = pod("p", {"1g.10gb": 1}, annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"})
    nowhere = {kinds.NODES: [node("a", {"1g.10gb": 1}, taints=[CORDONED])], kinds.PODS: [changed]}
    found = await why("p", {**nowhere, kinds.DEPLOYMENTS: [webhook]})
    assert not [one for one in found.remedies if one.text.startswith("the webhook")]


@pytest.mark.parametrize(
    ("config", "has", "holds", "text"),
    [
        ("fallback: {when: full}", "2g.20gb", ["2g.20gb"], "1g.10gb in place of 2g.20gb is free for it"),
        ("fallback: {when: full}", "2g.20gb", ["2g.20gb", "1g.10gb"], ""),
        ("fallback: {when: full}", "1g.10gb", ["1g.10gb"], "2g.20gb in place of 1g.10gb is free for it"),
        ("fallback: {patience: 5m}", "1g.10gb", ["1g.10gb"], "2g.20gb in place of 1g.10gb is free for it"),
        ("fallback: {patience: 5m}", "2g.20gb", ["2g.20gb"], ""),
        ("", "2g.20gb", ["2g.20gb"], ""),
    ],
)
async def test_a_bare_pod_for_which_something_has_come_free(config: str, has: str, holds: Any, text: str):
    """No controller creates it again: `why` says what it would get, and what to type."""
    webhook = {
        "metadata": {"name": "gpu-webhook", "namespace": "gpu-webhook"},
        "spec": {"replicas": 1},
        "status": {"readyReplicas": 1},
    }
    annotations = {"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"} if has == "1g.10gb" else {}
    taken = [pod(f"holds-{number}", {one: 1}, on="a") for number, one in enumerate(holds)]
    objects = {
        kinds.NODES: [node("a", {"1g.10gb": 1, "2g.20gb": 1})],
        kinds.PODS: [pod("p", {has: 1}, annotations=annotations), *taken],
        kinds.DEPLOYMENTS: [webhook],
    }
    found = await why("p", objects, policy=policy(config))
    told = [(one.text, one.commands) for one in found.remedies if one.kind == "policy"]
    again = f"{text} now: it gets that when you create it again as you first wrote it"
    assert told == ([(again, ("kubectl delete pod -n team p",))] if text else [])


def test_looking_for_a_policy_in_the_way_leaves_the_view_alone():
    """A variant of the namespace is tried beside the view, not in it: another decision never sees it."""
    space = Namespace("team", annotations={POLICY: "never"})
    view = offers(core_node("a", **{"1g.10gb": 1}), namespaces=(space,))
    asks = core_pod(container(**{"2g.20gb": 1}), namespace="team")
    before = view.version
    (remedy,) = by_policy(Evidence(offers=view), asks)
    assert remedy.text.startswith(f"the annotation {POLICY} of namespace team is removed: it gets 1g.10gb")
    assert (view.version, view.namespaces) == (before, {"team": space})


async def test_rejected_pods_of_a_controller():
    """A ReplicaSet whose pods the webhook rejects: its words first, then what admission says now and what would help."""
    message = 'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: not offered'
    objects = refused(message, {"2g.20gb": 1}, annotations={POLICY: "larger"})
    found = await why("rs/web", {**objects, kinds.NODES: [node("a", {"1g.10gb": 1})]})
    assert (found.cause, found.answer) == (
        "rejected",
        "replicaset team/web has 0 of 2 pods: the webhook rejects them: not offered",
    )
    assert any(line.startswith("created now it would be rejected: ") for line in found.admission)
    assert [one.kind for one in found.remedies] == ["policy"]
    again = await why("rs/web", {**objects, kinds.NODES: [node("a", {"2g.20gb": 1})]})
    assert [one.text for one in again.remedies] == [
        "nothing more: by now it is admitted (what it asks for is offered), and its controller tries again"
    ]


async def test_a_reason_that_is_too_long_to_be_kept():
    """Of an Event's message the beginning is kept: the webhook's own decision says the rest, and it is said once."""
    annotations = {MINIMUM: "15Gi", POLICY: "smaller"}
    profiles = {f"{number}g.{10 * number}gb": 1 for number in (1, 2, 3, 4, 7)}
    has = {f"1g.{number}gb": 1 for number in range(100, 160)}
    asks = core_pod(container(**profiles), namespace="team", annotations=annotations)
    reason = getattr(decide(asks, offers(core_node("a", **has)), Policy()), "message", "")
    assert len(reason) > LONGEST_MESSAGE
    message = f'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: {reason}'
    objects = {**refused(message, profiles, annotations=annotations), kinds.NODES: [node("a", has)]}
    found = await why("rs/web", objects)
    assert found.answer == f"replicaset team/web has 0 of 2 pods: the webhook rejects them: {reason}"
    assert found.admission[-1] == "created now it would be rejected for the same reason"
    another = await why("rs/web", refused("another webhook says " + "no, " * 500, profiles))
    assert another.answer.endswith("no, no, …")


async def test_quota_is_exceeded():
    """The message of the API server's own check is understood: which quota, how much, and what to type."""
    name = f"requests.{MIG}1g.10gb"
    message = f'Error creating: pods "web-x" is forbidden: exceeded quota: gpus, requested: {name}=1, used: {name}=2, limited: {name}=2'
    status = {"hard": {name: "2", "pods": "9"}, "used": {name: "2", "pods": "1"}}
    quota = {"metadata": {"name": "gpus"}, "status": status}
    found = await why("replicaset/web", {**refused(message, {"1g.10gb": 1}), QUOTAS: [quota]})
    assert 'rule: replacements within the quota "gpus" (1g.10gb 2 of 2 used)' in found.admission
    assert (found.cause, found.answer) == (
        "quota",
        f"replicaset team/web has 0 of 2 pods: quota gpus is exceeded ({name}: 2 of 2 used, each pod needs 1)",
    )
    (remedy,) = found.remedies
    assert (
        remedy.text
        == f"quota gpus is raised: {name} from 2 to 3; or pods of namespace team that hold these end"
    )
    assert remedy.commands == (
        f'kubectl patch resourcequota -n team gpus --type=merge -p \'{{"spec": {{"hard": {{"{name}": "3"}}}}}}\'',
    )


def quota(used: int, hard: int = 2) -> dict[str, Any]:
    name = f"requests.{MIG}1g.10gb"
    return {
        "metadata": {"name": "gpus"},
        "status": {"hard": {name: str(hard)}, "used": {name: str(used)}},
    }


@pytest.mark.parametrize(
    ("used", "now"),
    [
        (1, "created now it would be changed: 2g.20gb is not offered, 1g.10gb is the first that is"),
        (2, 'created now it would be rejected: asked for nvidia.com/mig-2g.20gb: 1, and no node that this pod can use offers it; tried 1g.10gb (over the quota "gpus": 2 used and 1 needed of 2)'),
    ],
)  # fmt: skip
async def test_quotas_are_decided_with(used: int, now: str):
    """What a pod would get now is what its namespace's quota leaves, and more room there would help."""
    objects = {kinds.NODES: [node("a", {"1g.10gb": 4})], kinds.PODS: [pod("p", {"2g.20gb": 1})]}
    found = await why("p", {**objects, QUOTAS: [quota(used)]})
    assert f'rule: replacements within the quota "gpus" (1g.10gb {used} of 2 used)' in found.admission
    assert found.admission[-1].startswith(now)
    assert [(one.kind, one.text) for one in found.remedies] == (
        []
        if used < 2
        else [
            ("quota", "a quota of namespace team (gpus) leaves room for 1g.10gb: it gets 1g.10gb in place of 2g.20gb when it is created again")
        ]
    )  # fmt: skip


async def test_a_pods_own_use_does_not_count_against_it():
    """A pod that holds the last of its quota would get the same again."""
    one = pod("p", {"1g.10gb": 1}, on="a", annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"})
    found = await why("p", {kinds.NODES: [node("a", {"1g.10gb": 4})], kinds.PODS: [one], QUOTAS: [quota(2)]})
    assert found.admission[-1].startswith("created now it would be changed: 2g.20gb is not offered, 1g.10gb")


OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]}


async def test_a_siblings_use_counts_against_the_next_pod():
    """Of a workload whose next pod a full quota keeps out, the pods that run count: it is rejected still, and more room helps."""
    over = 'over the quota "gpus": 1 used and 1 needed of 1'
    message = f'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: {over}'
    first = pod("web-1", {"1g.10gb": 1}, on="a", metadata=copy.deepcopy(OWNED))
    first["metadata"]["annotations"] = {"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"}
    nodes = [node("a", {"1g.10gb": 4})]
    objects = {**refused(message, {"2g.20gb": 1}), kinds.NODES: nodes, kinds.PODS: [first]}
    found = await why("rs/web", {**objects, QUOTAS: [quota(1, 1)]}, uid="u")
    assert found.answer == f"replicaset team/web has 1 of 2 pods: the webhook rejects them: {over}"
    assert 'rule: replacements within the quota "gpus" (1g.10gb 1 of 1 used)' in found.admission
    assert f"tried 1g.10gb ({over})" in found.admission[-1]
    assert [(one.kind, one.text) for one in found.remedies] == [
        ("quota", "a quota of namespace team (gpus) leaves room for 1g.10gb: it gets 1g.10gb in place of 2g.20gb when it is created again")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("annotations", "config", "text"),
    [
        ({MINIMUM: "20Gi"}, "", f"the pod's annotation {MINIMUM} is removed"),
        ({}, "fallback: {minMemory: 20Gi}", "a smaller fallback.minMemory in the webhook's configuration"),
        (
            {},
            "fallback: {minMemoryFraction: 0.75}",
            "a smaller fallback.minMemoryFraction in the webhook's configuration",
        ),
        (
            {},
            "fallback: {minMemory: 20Gi, minMemoryFraction: 0.75}",
            "smaller fallback.minMemory and fallback.minMemoryFraction in the webhook's configuration",
        ),
        (
            {MINIMUM: "20Gi"},
            "fallback: {minMemoryFraction: 0.75}",
            f"no annotation {MINIMUM}, and smaller fallback.minMemory and fallback.minMemoryFraction in the webhook's configuration",
        ),
    ],
)
async def test_pods_below_a_minimum(annotations: Any, config: str, text: str):
    """The minimum that keeps a workload's pods out is named as what would help, and the webhook's reason is said once."""
    nodes, given = [node("a", {"1g.10gb": 1})], policy(config)
    asks = core_pod(container(**{"2g.20gb": 1}), namespace="team", annotations=annotations)
    reason = getattr(decide(asks, offers(core_node("a", **{"1g.10gb": 1})), given), "message", "")
    assert "below the minimum" in reason
    message = f'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: {reason}'
    objects = {**refused(message, {"2g.20gb": 1}, annotations=annotations), kinds.NODES: nodes}
    found = await why("rs/web", objects, policy=given)
    assert found.answer == f"replicaset team/web has 0 of 2 pods: the webhook rejects them: {reason}"
    assert found.admission[-1] == "created now it would be rejected for the same reason"
    assert not any(reason in line for line in found.admission)
    assert [one.text for one in found.remedies] == [
        f"{text}: it gets 1g.10gb in place of 2g.20gb when it is created again"
    ]


async def test_a_layout_for_pods_that_are_rejected():
    """Where a card can be cut for pods that the webhook rejects, that is told as for pods that wait; the command counts them."""
    message = 'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: not offered'
    mapping = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[3g.30gb, 1g.10gb, 1g.10gb, 1g.10gb]")
    one = node("a", {"1g.10gb": 3, "3g.30gb": 1}, labels=H200, annotations={"run.ai/mig.config": mapping})
    objects = refused(message, {"2g.20gb": 1}, annotations={MINIMUM: "40Gi"})
    del objects[REPLICA_SETS][0]["spec"]["template"]["metadata"]["name"]
    holder = pod("h", {"3g.30gb": 1}, on="a")
    found = await why("rs/web", {**objects, kinds.NODES: [one], kinds.PODS: [holder]})
    assert [(one.kind, one.text, one.commands) for one in found.remedies][-1] == (
        "layout",
        "node a is re-cut (card 0: 1 × 1g.10gb + 1 × 2g.20gb + 1 × 3g.30gb); pods that run keep what they hold",
        ("tessera mig plan -o runai",),
    )


async def test_what_a_layout_does_not_get_admitted():
    """Pods that the webhook rejects for an annotation are not told to have a card cut."""
    message = f'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: annotation {MINIMUM}: bad'
    one = node("a", {"3g.30gb": 2}, labels=H200, annotations={"run.ai/mig.config": LAYOUT})
    objects = refused(message, {"2g.20gb": 1}, annotations={MINIMUM: "bad"})
    found = await why("rs/web", {**objects, kinds.NODES: [one]})
    assert (found.cause, [one.kind for one in found.remedies if one.kind == "layout"]) == ("rejected", [])


async def test_pods_that_another_webhook_rejects():
    """Another webhook's words are not taken for Tessera's."""
    message = 'admission webhook "validate.kyverno.svc-fail" denied the request: images must be signed'
    found = await why(
        "rs/web", {**refused(message, {"1g.10gb": 1}), kinds.NODES: [node("a", {"1g.10gb": 1})]}
    )
    assert (found.cause, found.answer, found.remedies) == (
        "not-created",
        f"replicaset team/web has 0 of 2 pods: they cannot be created: {message}",
        (),
    )


async def test_a_condition_says_why_where_events_may_not_be_read():
    """A ReplicaSet's own condition has the reason, too."""
    message = 'admission webhook "gpu-allocation.k8s.io" denied the request: not offered'
    objects = refused("unread", {"2g.20gb": 1}, annotations={POLICY: "larger"})
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    objects[REPLICA_SETS][0]["status"] = {"conditions": [condition]}
    nodes = {kinds.NODES: [node("a", {"1g.10gb": 1})]}
    found = await why("rs/web", {**objects, **nodes}, forbidden=frozenset({"events"}))
    assert (found.cause, found.answer) == (
        "rejected",
        "replicaset team/web has 0 of 2 pods: the webhook rejects them: not offered",
    )
    assert "events" in found.unseen


@pytest.mark.parametrize(
    ("labels", "config", "by"),
    [
        ({"gpu-webhook": "observe"}, "", "namespace team, label gpu-webhook=observe"),
        ({}, "mode: observe", "the configuration's mode"),
    ],
)
async def test_observe_mode_is_said(labels: Any, config: str, by: str):
    """A pod that waits because the webhook only observes is told so, and what acting would give it."""
    objects = {kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.PODS: [pod("p", {"2g.20gb": 1})]}
    found = await why("p", objects, policy=policy(config), labels=labels)
    assert (found.cause, found.answer) == (
        "observed",
        f"pod team/p waits: no node offers 1 × 2g.20gb, and the webhook only observes here ({by})",
    )
    assert found.admission[-2:] == (
        f"the webhook only observes here ({by}): it reports what it would do, and changes nothing",
        "enforced, it would be changed: 2g.20gb is not offered, 1g.10gb is the first that is",
    )
    (remedy,) = found.remedies
    assert (remedy.text, remedy.commands) == (
        "the webhook acts in namespace team: it gets 1g.10gb in place of 2g.20gb when it is created again",
        ("kubectl label --overwrite namespace team gpu-webhook=enforce",),
    )


async def test_observe_mode_that_changes_nothing():
    """Where acting would not help either, the nodes are the reason."""
    objects = {kinds.NODES: [node("a", {"3g.30gb": 1})], kinds.PODS: [pod("p", {"2g.20gb": 1})]}
    found = await why(
        "p", objects, policy=policy("{mode: observe, fallback: {upgrades: false, wholeGPU: false}}")
    )
    assert (found.cause, found.answer) == ("missing", "pod team/p waits: no node offers 1 × 2g.20gb")
    assert found.remedies == ()


async def test_pods_of_a_decided_template():
    """They came as they are: nothing is undone, and what was decided holds."""
    notes = {"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb", "gpu-webhook.k8s.io/decided": "template"}
    objects = {
        kinds.NODES: [node("a", {"2g.20gb": 1})],
        kinds.PODS: [pod("p", {"1g.10gb": 1}, annotations=notes)],
    }
    found = await why("p", objects)
    assert (found.cause, found.answer) == (
        "policy",
        (
            "pod team/p waits: no node offers 1 × 1g.10gb; this was decided when its workload was created, "
            "so it gets exactly this or waits"
        ),
    )
    assert f"asks for {MIG}1g.10gb: 1 (container main)" in found.admission
    assert "rule: decided when its workload was created" in found.admission


@pytest.mark.parametrize(
    ("spec", "status", "cause", "answer"),
    [
        ({}, {"conditions": [{"type": "Complete", "status": "True"}]}, "over", "has ended (Complete)"),
        ({"suspend": True}, {}, "not-created", "has no pods: it is suspended"),
        ({"parallelism": 0}, {}, "not-created", "has no pods: it wants no pods"),
        ({}, {}, "not-created", "has no pods: its controller has made no pod yet, and reported no reason"),
    ],
)
async def test_jobs_without_pods(spec: Any, status: Any, cause: str, answer: str):
    """A Job that has ended, is suspended or wants none is told from one whose pods are missing."""
    template = {"spec": pod("x", {"1g.10gb": 1})["spec"]}
    job = {"metadata": {"name": "night"}, "spec": {**spec, "template": template}, "status": status}
    found = await why("job/night", {kinds.JOBS: [job]})
    assert (found.cause, found.answer) == (cause, f"job team/night {answer}")


async def test_deployment_names_the_pod_that_waits():
    """Of a ReplicaSet's pods the one that waits is told of, whatever the others do."""
    objects = refused("", {"1g.10gb": 1})
    pods = [
        pod("web-1", {"1g.10gb": 1}, on="a", metadata=copy.deepcopy(OWNED)),
        pod("web-2", {"1g.10gb": 1}, metadata=copy.deepcopy(OWNED)),
    ]
    found = await why(
        "rs/web",
        {REPLICA_SETS: objects[REPLICA_SETS], kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.PODS: pods},
        uid="u",
    )
    assert found.answer == (
        "replicaset team/web: pod team/web-2 waits: 1 × 1g.10gb is taken on node a (1g.10gb: 1 of 1 in use)"
    )


async def test_what_admission_did():
    """A pod that fell back: what it asked for, what it got, and what would come of it now."""
    one = pod("p", {"1g.10gb": 1}, on="a", annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"})
    found = await why("p", {kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.PODS: [one]})
    assert found.answer == "pod team/p runs on node a with 1 × 1g.10gb (asked for 2g.20gb)"
    assert found.admission == (
        "changed when it was created: 2g.20gb → 1g.10gb",
        f"asks for {MIG}2g.20gb: 1 (container main)",
        "created now it would be changed: 2g.20gb is not offered, 1g.10gb is the first that is",
    )


@pytest.mark.parametrize(
    ("given", "cause", "answer"),
    [
        ({"spec": {"schedulingGates": [{"name": "kueue"}]}}, "gated", "waits: a controller must remove its scheduling gate kueue"),
        ({"status": {"phase": "Failed", "message": "no more"}}, "over", "has ended (Failed: no more)"),
        ({"metadata": {"deletionTimestamp": "2026-11-15T11:00:00Z"}}, "ending", "is ending"),
        (
            {"metadata": {"deletionTimestamp": "2026-11-15T11:00:00Z", "finalizers": ["x/y"]}},
            "ending",
            "is ending: a controller must remove its finalizer x/y",
        ),
        (
            {"on": "a", "metadata": {"deletionTimestamp": "2026-11-15T12:00:12Z"}},
            "ending",
            "is ending on node a: its containers have 12 s left to end",
        ),
        (
            {"on": "a", "metadata": {"deletionTimestamp": "2026-11-15T11:59:00Z", "finalizers": ["x/y"]}},
            "ending",
            "is ending on node a: its containers' time has been over for 1 min, and the kubelet has not reported their end",
        ),
        (
            {"on": "dark", "metadata": {"deletionTimestamp": "2026-11-15T11:00:00Z"}},
            "ending",
            "is ending on node dark: its containers' time has been over for 1 h, and the kubelet has not reported their end; the node is not ready",
        ),
        (
            {"on": "a", "status": {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}]}},
            "starts",
            "has node a with 1 × 1g.10gb, and a container waits: ErrImagePull",
        ),
        ({"on": "a", "status": {"phase": "Pending"}}, "starts", "has node a with 1 × 1g.10gb and starts"),
    ],
)  # fmt: skip
async def test_pods_that_do_not_wait_for_a_node(given: Any, cause: str, answer: str):
    """Gated, ended, ending and starting pods are told from those that wait; one that ends is told what it waits for."""
    dark = node("dark", {"1g.10gb": 1})
    dark["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    objects = {
        kinds.NODES: [node("a", {"1g.10gb": 1}), dark],
        kinds.PODS: [pod("p", {"1g.10gb": 1}, **given)],
    }
    found = await why("p", objects)
    assert (found.cause, found.answer) == (cause, f"pod team/p {answer}")


async def test_what_may_not_be_read_is_said():
    """Without a right nothing is guessed: the scheduler's words stand, and what could not be read is named."""
    objects = {kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.PODS: [pod("p", {"1g.10gb": 1})]}
    blind = await why("p", objects, forbidden=frozenset({"nodes"}))
    assert blind.answer == "pod team/p waits: the scheduler says: 0/1 nodes are available"
    assert blind.unseen is not None
    assert blind.unseen["nodes"] == "nodes is forbidden"
    half = await why("p", objects, forbidden=frozenset({"all pods"}))
    assert half.answer == (
        "pod team/p waits: who holds 1 × 1g.10gb could not be read; the scheduler says: 0/1 nodes are available"
    )
    assert half.remedies == ()


async def test_no_such_object():
    """A name that is not there is an error, not an answer."""
    with pytest.raises(NoSuchObject, match="namespace team has no pod x"):
        await why("x", {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("train", ("pod", "train")),
        ("po/train", ("pod", "train")),
        ("deployments.apps/web", ("deployment", "web")),
        ("RS/x", ("replicaset", "x")),
        ("jobs/night", ("job", "night")),
        ("sts/db", ("statefulset", "db")),
        ("miglayout/a", ("miglayout", "a")),
        ("MigLayouts/a", ("miglayout", "a")),
        ("mig/a", ("miglayout", "a")),
        ("miglayouts.tessera.dev/a", ("miglayout", "a")),
        ("miglayouts.v1alpha1.tessera.dev/a", ("miglayout", "a")),
    ],
)
def test_targets(text: str, found: tuple[str, str]):
    """Kinds are named as for kubectl."""
    assert parse_target(text) == found


KINDS = "use pod, deploy, rs, sts, ds, rc, job, node or miglayout"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("svc/x", f'unknown kind "svc"; {KINDS}'),
        ("/", f'unknown kind ""; {KINDS}'),
        ("deploy/", '"deploy/": the name is empty; write deploy/NAME'),
    ],
)
def test_no_targets(text: str, message: str):
    """What has no pods is refused, with the kinds there are; so is a kind alone."""
    with pytest.raises(InvalidInput) as refused:
        parse_target(text)
    assert str(refused.value) == message
