"""Growth: the decision against the number of nodes and containers, memory against the number of nodes."""

import time
from functools import partial
from typing import Final

from benchmarks import corpus
from benchmarks.decision import FIRST, LATER, UNIT, first_answer, timed
from benchmarks.results import PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import Stage
from tessera.core.admission.policy import Policy
from tessera.webhook.endpoint import Admission

RUN: Final = "growth"
NODES: Final = (100, 1_000, 10_000)
CONTAINERS: Final = (1, 4, 16)
DIFFERENT: Final = (
    (1_000, False),
    (5_000, False),
    (5_000, True),
)  # nodes, and whether DRA serves their devices
MEMORY: Final = "MiB"
_CALM: Final = 1.5


def case(nodes: int, containers: int) -> str:
    """How a case is called."""
    return f"{nodes:,} nodes, {containers} container{'s' * (containers > 1)}"


def different(nodes: int, *, dra: bool) -> str:
    """How a case is called in which no two nodes are alike."""
    return f"{nodes:,} nodes, all different{', of DRA' * dra}"


def run(stage: Stage, results: Results) -> None:
    """Decisions in process; memory of whole webhooks."""
    for nodes, dra in DIFFERENT:
        unlike = corpus.offers(nodes, dra=dra, different=True)
        _decide(stage, results, different(nodes, dra=dra), 1, Admission(unlike, Policy()))
    for nodes in NODES:
        offers = corpus.offers(nodes)
        for containers in CONTAINERS:
            _decide(stage, results, case(nodes, containers), containers, Admission(offers, Policy()))
    for nodes in NODES:
        with stage.apiserver(nodes=nodes) as apiserver:
            for subject in (TESSERA, USUAL, PARTIAL):
                with stage.webhook(subject, apiserver.kubeconfig) as server:
                    time.sleep(_CALM)
                    results.add(RUN, f"{nodes:,} nodes", MEMORY, subject, [server.process.memory()])
    results.curves["memory"] = _curves(results, MEMORY, (TESSERA, USUAL, PARTIAL))
    results.curves["growth"] = {
        f"{subject.partition(', ')[2]}, {containers} container{'s' * (containers > 1)}": [
            [nodes, one.median]
            for nodes in NODES
            if (one := results.find(RUN, case(nodes, containers), UNIT, subject)) is not None
        ]
        for subject in (FIRST, LATER)
        for containers in CONTAINERS
    }


def _decide(stage: Stage, results: Results, what: str, containers: int, admission: Admission) -> None:
    asks = tuple({"nvidia.com/mig-3g.30gb": "1"} if index % 4 == 0 else {} for index in range(containers))
    body = corpus.review(corpus.Template(asks, {}), 0, kind="same bytes")
    measures = {
        LATER: partial(timed, admission.answer, [body] * 16, stage.effort.seconds / 5),
        FIRST: partial(timed, partial(first_answer, admission), [body] * 16, stage.effort.seconds / 5),
    }
    for subject, found in in_turns(min(stage.effort.rounds, 3), measures).items():
        results.add(RUN, what, UNIT, subject, found[UNIT])


def _curves(results: Results, unit: str, subjects: tuple[str, ...]) -> dict[str, list[list[float]]]:
    return {
        subject: [
            [nodes, one.median]
            for nodes in NODES
            if (one := results.find(RUN, f"{nodes:,} nodes", unit, subject)) is not None
        ]
        for subject in subjects
    }
