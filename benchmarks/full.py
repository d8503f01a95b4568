"""A decision by what is free (`fallback.when: full`) beside one by what is offered, nothing remembered: in process, on several clusters.

Every decision is that of a template's first pod. The two kinds are measured in turns, so their ratio counts. Between two decisions either
nothing happens but that the room of the pod before is given back, or a pod with a device ends and comes again besides. What such
changes leave to do before the next decision counts as a part of it.
"""

import gc
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

from benchmarks import corpus
from benchmarks.corpus import busy, varied
from benchmarks.corpus.documents import encoded
from benchmarks.decision import UNIT
from benchmarks.results import TESSERA, Results, in_turns
from benchmarks.stage import Stage
from tessera.core.admission.view.free import RESERVED
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, ViewedPod, gpus_of
from tessera.core.resources import is_any_gpu
from tessera.kube.view.live import read_node
from tessera.protocol.admission.viewed_pod import read_viewed_pod
from tessera.protocol.configuration import webhook as config
from tessera.webhook.endpoint import Admission

RUN: Final = "full"
FULL, MISSING = f"{TESSERA}, full", f"{TESSERA}, missing"
CHANGING: Final = "a change before each"
_POLICIES: Final = {
    MISSING: config.parse("").policy,
    FULL: config.parse("fallback: {when: full}\n").policy,
}
_PODS: Final = {"one profile": corpus.TEMPLATES, "two profiles": corpus.TWO_PROFILES}
MOST: Final = 2  # times what a decision by what is offered takes, in every corpus
WORST: Final = "the worst of these"
RATIO: Final = "µs of full by µs of missing"
_CHANGES: Final = 101  # pods that end and come again, in turn
_SHORT, _LONG = 12, 40  # passes over all reviews in a round


@dataclass(frozen=True, slots=True)
class ClusterCase:
    """A cluster of the corpus."""

    name: str
    nodes: int
    waiting: int = 0
    full: bool = False
    different: bool = False
    dra: bool = False
    busy: bool = False  # the controller's: pods of many priorities wait for large slices


CLUSTERS: Final = (
    ClusterCase("100 nodes", 100),
    ClusterCase("100 nodes, full", 100, full=True),
    ClusterCase("5,000 nodes", 5_000),
    ClusterCase("5,000 nodes, full", 5_000, full=True),
    ClusterCase("5,000 nodes, 10,000 pods wait", 5_000, waiting=10_000),
    ClusterCase("5,000 nodes, all different", 5_000, different=True),
    ClusterCase("5,000 nodes, all different, of DRA", 5_000, different=True, dra=True),
    ClusterCase("400 nodes of the controller's cluster", 400, busy=True),
)


def case(cluster: ClusterCase, pods: str, *, changing: bool) -> str:
    """How a case is called."""
    return f"{cluster.name}; {pods}" + (f"; {CHANGING}" if changing else "")


CASES: Final = tuple(
    case(cluster, pods, changing=changing)
    for cluster in CLUSTERS
    for pods in _PODS
    for changing in (False, True)
)


class _Clock:
    """A time at which all rooms of admitted pods are given back when it is set forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(stage: Stage, results: Results) -> None:
    """Measure both kinds of decisions on every cluster, for pods of one profile and of two."""
    for cluster in CLUSTERS:
        offers, pods = _cluster(cluster)
        offers.follow_pods().replace_pods(pods.items(), 0.0)
        for _ in offers.prepare():
            pass
        clock = _Clock()
        for name, templates in _PODS.items():
            bodies = corpus.reviews(templates=templates)
            for changing in (False, True):
                measures = {
                    subject: partial(
                        _decide,
                        Admission(offers, policy, clock),
                        clock,
                        bodies,
                        pods if changing else {},
                        stage,
                    )
                    for subject, policy in _POLICIES.items()
                }
                for subject, found in in_turns(stage.effort.rounds, measures, warm=True).items():
                    results.add(RUN, case(cluster, name, changing=changing), UNIT, subject, found[UNIT])
    worst = max(CASES, key=lambda one: median(results.rounds(RUN, one, UNIT, FULL, MISSING)))
    results.add(RUN, WORST, RATIO, TESSERA, results.rounds(RUN, worst, UNIT, FULL, MISSING))
    results.note(f"{RUN}: load average {os.getloadavg()[0]:.1f} at the end")


def _cluster(cluster: ClusterCase) -> tuple[Offers, dict[str, ViewedPod]]:
    if cluster.busy:
        offers = Offers(
            read_node(encoded(varied.node(number)), is_any_gpu) for number in range(cluster.nodes)
        )
        documents = (encoded(pod) for number in range(cluster.nodes) for pod in busy.pods_of(number))
        read = map(read_viewed_pod, documents)
        return offers, {key: pod for key, pod in read if pod is not None}
    offers = corpus.offers(cluster.nodes, dra=cluster.dra, different=cluster.different)
    return offers, dict(corpus.pods_on(offers, full=cluster.full, waiting=cluster.waiting))


def _decide(
    admission: Admission,
    clock: _Clock,
    bodies: Sequence[bytes],
    changing: Mapping[str, ViewedPod],
    stage: Stage,
) -> dict[str, float]:
    """Microseconds of processor time of a decision: of each review the quickest of all passes, since what is added to it is not ours."""
    free = admission.view.free
    assert free is not None
    holding = [key for key, pod in changing.items() if isinstance(pod, BoundPod) and gpus_of(pod.usage)]
    ending = holding[:: 1 + len(holding) // _CHANGES]
    best = [float("inf")] * len(bodies)
    gc.collect()
    gc.disable()
    try:
        for _ in range(_SHORT if stage.effort.short else _LONG):
            for number, body in enumerate(bodies):
                admission.memory.forget()
                clock.now += RESERVED
                free.expire(clock.now)
                for key in ending[number : number + 1]:
                    free.remove_pod(key)
                    free.put_pod(key, changing[key], clock.now)
                begun = time.process_time()
                admission.answer(body)
                best[number] = min(best[number], time.process_time() - begun)
    finally:
        gc.enable()
    return {UNIT: sum(best) / len(bodies) * 1e6}
