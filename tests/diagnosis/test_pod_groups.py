"""Pods that wait, in groups: what is one group, which come first, and that their answers are those of single pods."""

import json
from typing import Any

import pytest

from tessera.core.admission.policy import POLICY_ANNOTATION
from tessera.diagnosis.diagnosis import diagnose
from tessera.diagnosis.evidence import SeenPod
from tessera.diagnosis.gather import Gatherer, seen_pod
from tessera.diagnosis.pod_groups import groups as pod_groups
from tessera.diagnosis.pod_groups.groups import PodGroups, explain_groups
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.protocol.kubernetes.pod import decode_pod
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import StatusError
from tessera.solver import highs
from tests.diagnosis.clusters import QUOTAS, node, pod
from tests.kube.apiserver import MisbehavingApiServer, status


def waiting(name: str, asks: dict[str, int], *, created: int = 0, owner: str = "", **more: Any) -> SeenPod:
    """A pod that waits since `created` minutes after nine."""
    owners = [{"kind": "Job", "name": owner, "uid": owner, "controller": True}] if owner else []
    metadata = {"creationTimestamp": f"2026-11-15T09:{created:02}:00Z", "ownerReferences": owners}
    raw = json.dumps(pod(name, asks, metadata=metadata, **more)).encode()
    return seen_pod(decode_pod(raw), raw, "team")


def collect(*pods: SeenPod) -> PodGroups:
    groups = PodGroups()
    for one in pods:
        groups.add(one)
    return groups


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        ({}, {}, 1),
        ({"owner": "a"}, {"owner": "a"}, 1),
        ({"owner": "a"}, {"owner": "b"}, 2),
        ({"asks": {"1g.10gb": 2}}, {}, 2),
        ({"spec": {"nodeSelector": {"pool": "a"}}}, {}, 2),
        ({"spec": {"schedulingGates": [{"name": "queue"}]}}, {}, 2),
        ({"annotations": {POLICY_ANNOTATION: "never"}}, {}, 2),
        ({"annotations": {"index": "1"}}, {"annotations": {"index": "2"}}, 1),
    ],
)
def test_what_is_alike(first: dict[str, Any], second: dict[str, Any], number: int) -> None:
    """Pods are one group if they have one owner and one answer; other annotations do not matter."""
    pods = (waiting(name, **{"asks": {"1g.10gb": 1}, **more}) for name, more in (("p", first), ("q", second)))
    assert len(collect(*pods)) == number


def test_order() -> None:
    """The group that wants most devices comes first, then the one that waits longest; a group is as old as its oldest pod."""
    groups = collect(
        waiting("late", {"1g.10gb": 1}, created=30, owner="a"),
        waiting("early", {"1g.10gb": 1}, created=10, owner="a"),
        waiting("alone", {"1g.10gb": 2}, created=20),
        waiting("large", {"1g.10gb": 3}, created=40),
        waiting("plain", {}, created=0),
    )
    assert [(group.oldest.pod.name, group.pods) for group in groups.first()] == [
        ("large", 1),
        ("early", 2),
        ("alone", 1),
        ("plain", 1),
    ]


def test_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups beyond the first are counted, and so are the pods of groups that are not kept."""
    monkeypatch.setattr(pod_groups, "MOST_GROUPS", 2)
    monkeypatch.setattr(pod_groups, "_MOST_KEPT", 3)
    groups = collect(*(waiting(f"p{at}", {"1g.10gb": 1}, owner=f"job-{at % 5}") for at in range(10)))
    assert (groups.pods, len(groups), len(groups.first())) == (10, 3, 2)
    groups.clear()
    assert (groups.pods, len(groups)) == (0, 0)


async def test_answers_are_those_of_single_pods() -> None:
    """The headline of a group is that of its oldest pod; pods that run, end or have ended are in no group."""
    server = MisbehavingApiServer()
    server.kinds[QUOTAS.prefix, QUOTAS.plural] = QUOTAS
    server.store.create(kinds.NAMESPACES, {"metadata": {"name": "team"}}, "")
    for document in (
        node("a", {"1g.10gb": 2}),
        node("b", {"2g.20gb": 1}, taints=[{"key": "x", "effect": "NoSchedule"}]),
    ):
        server.store.create(kinds.NODES, document, "")
    asked: list[dict[str, int]] = [{"1g.10gb": 1}, {"1g.10gb": 3}, {"2g.20gb": 1}, {"7g.80gb": 1}, {}]
    pods = [pod(f"p{at}", asks) for at, asks in enumerate(asked)]
    pods += [pod("h", {"1g.10gb": 2}, on="a"), pod("over", {"1g.10gb": 1}, status={"phase": "Failed"})]
    for document in pods:
        server.store.create(kinds.PODS, document, "team")
    async with await server.start(), Client(server.cluster) as client:
        decides_by = PolicySource(given=UsedPolicy())
        found = explain_groups(*await Gatherer(client, "", decides_by=decides_by).gather_waiting())
        assert len(server.asked("/api/v1/nodes")) == 1, "one gathering for all groups"
        assert {group.oldest for group in found.groups} == {f"p{at}" for at in range(len(asked))}
        for group in found.groups:
            gatherer = Gatherer(client, "team", decides_by=decides_by)
            single = diagnose(*await gatherer.gather("pod", group.oldest), highs)
            assert f"pod team/{group.oldest} waits: {group.answer}" == single.answer
            assert group.cause == single.cause


async def test_with_few_rights() -> None:
    """Who may read the pods of one namespace alone gets its groups in the scheduler's words, and hears what could not be read."""
    server = MisbehavingApiServer()
    server.store.create(kinds.PODS, pod("p", {"1g.10gb": 1}), "team")
    own = "/api/v1/namespaces/team/pods"
    refusal = status(StatusError(403, "Forbidden", "forbidden"))
    server.intercept = lambda request: None if request.path == own else refusal
    async with await server.start(), Client(server.cluster) as client:
        decides_by = PolicySource(given=UsedPolicy())
        found = explain_groups(*await Gatherer(client, "team", decides_by=decides_by).gather_waiting())
        (group,) = found.groups
        assert (group.cause, group.answer) == ("unseen", "the scheduler says: 0/1 nodes are available")
        assert (found.unseen["nodes"], found.unseen["pods"]) == ("forbidden", "forbidden")
        with pytest.raises(ApiError):
            await Gatherer(client, "", decides_by=decides_by).gather_waiting()
