"""Pods that wait, as the page lists them."""

import json
from dataclasses import replace

import pytest

from tessera.core.errors import TesseraError
from tessera.dashboard.board import Board
from tessera.dashboard.observed import read_pod
from tessera.dashboard.pending_pods import groups_of, pending_part
from tessera.dashboard.reasons import Reasons
from tests.dashboard.objects import pod
from tests.protocol.dra.samples import raw


def waiting(name, owner, minute=0, why="0/5 nodes are available.", **asks):
    one = pod(name, **(asks or {"p2g_20gb": 1}))
    return replace(one, owner=owner, why=why, use=replace(one.use, created=f"2026-01-01T00:{minute:02d}:00Z"))


def rows(pods, reasons=None):
    found = pending_part(pods, reasons or {})
    return [(row["owner"], row["pod"], row["count"], row["asks"], row["why"]) for row in found["longest"]]


def test_twelve_hundred_pods_of_a_job_are_one_row():
    """Named by the pod that waits longest, wherever it stands; all are counted."""
    many = [waiting(f"night-{number}", "Job night", minute=number % 60) for number in range(1, 1201)]
    found = pending_part([*many, waiting("alone", "alone", minute=30)], {})
    assert (found["count"], found["groups"]) == (1201, 2)
    assert rows([*many, waiting("alone", "alone", minute=30)]) == [
        ("Job night", "night-1020", 1200, "2g.20gb ×1", "0/5 nodes are available."),
        ("alone", "alone", 1, "2g.20gb ×1", "0/5 nodes are available."),
    ]


def test_what_differs_stays_apart():
    """Another owner, another request, or another reason is another row."""
    pods = [
        waiting("a", "Job x"), waiting("b", "Job y"), waiting("c", "Job x", p3g_30gb=1), waiting("d", "Job x", why="gated"),
        waiting("e", "Job x"), waiting("f", "Job x", p2g_20gb=2),
    ]  # fmt: skip
    assert [(owner, count) for owner, _, count, _, _ in rows(pods)] == [
        ("Job x", 2), ("Job y", 1), ("Job x", 1), ("Job x", 1), ("Job x", 1),
    ]  # fmt: skip


def test_the_reason_that_is_known_joins_what_the_scheduler_said_differently():
    """The diagnosis' sentence stands in place of the scheduler's words, which change with every node."""
    pods = [waiting("a", "Job x", why="0/5 nodes"), waiting("b", "Job x", why="0/6 nodes")]
    assert [row[-1] for row in rows(pods)] == ["0/5 nodes", "0/6 nodes"]
    first, second = groups_of(pods)
    assert [row[-1] for row in rows(pods, {first: "2g.20gb is taken"})] == ["2g.20gb is taken", "0/6 nodes"]
    taken = dict.fromkeys((first, second), "2g.20gb is taken")
    assert rows(pods, taken) == [("Job x", "a", 2, "2g.20gb ×1", "2g.20gb is taken")]


def test_the_page_stays_small():
    """Thousands of owners: the groups that wait longest are shown, all are counted."""
    pods = [waiting(f"p-{number}", f"Job {number}", minute=59 - number % 60) for number in range(3000)]
    found = pending_part(pods, {})
    assert (found["count"], found["groups"], len(found["longest"])) == (3000, 3000, 200)
    assert found["longest"][0]["since"] == "2026-01-01T00:00:00Z"


class Asked:
    """A diagnosis that knows one sentence, and counts."""

    def __init__(self):
        self.pods: list[set[object]] = []
        self.spent = 0.0
        self.fails = False

    async def __call__(self, pods):
        self.pods.append(set(pods))
        self.spent += 0.4
        if self.fails:
            raise TesseraError("the API server is silent")
        return dict.fromkeys(pods, "2g.20gb is taken on node n")


async def test_the_diagnosis_is_asked_seldom():
    """Once for all groups while somebody looks, again when something changed; it rests 50 times as long as it worked."""
    one, asked, watched = Board("a test"), Asked(), [False]
    reasons = Reasons(one, asked, lambda: watched[0], lambda: asked.spent)
    for number in range(200):
        one.put_pod(waiting(f"p-{number}", f"Job {number % 60}", minute=number % 60))

    def said():
        return {row["why"] for row in json.loads(one.parts()["pending"])["longest"]}

    assert (await reasons.once(), asked.pods) == (5.0, []), "nobody looks"
    watched[0] = True
    assert said() == {"0/5 nodes are available."}
    assert await reasons.once() == pytest.approx(20.0)
    assert [len(pods) for pods in asked.pods] == [50]
    assert said() == {"2g.20gb is taken on node n", "0/5 nodes are available."}
    assert (await reasons.once(), len(asked.pods)) == (5.0, 1), "nothing changed"
    one.sample()
    assert (await reasons.once(), len(asked.pods)) == (5.0, 1), "time passed, and nothing changed"
    asked.fails = True
    one.put_pod(waiting("another", "Job 1"))
    assert (await reasons.once(), len(asked.pods)) == (5.0, 2)
    assert "2g.20gb is taken on node n" in said(), "what was known stays"


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"ownerReferences": [{"kind": "Job", "name": "night", "controller": True}], "generateName": "night-"}, "Job night"),
        ({"ownerReferences": [{"kind": "Thing", "name": "x"}], "generateName": "train-"}, "train-*"),
        ({}, "p"),
    ],
)  # fmt: skip
def test_whose_a_pod_is(metadata, owner):
    """Its controller's, else one of those whose names begin alike, else its own; of a pod with a node nobody asks."""
    document = {"metadata": {"name": "p", "namespace": "ml", **metadata}}
    assert read_pod(raw(document)).owner == owner
    assert read_pod(raw({**document, "spec": {"nodeName": "n"}})).owner == ""
