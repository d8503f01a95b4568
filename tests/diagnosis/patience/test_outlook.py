"""What `why` says of patience is what the controller's own plan does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tessera.controller.patience.judge import ViewJudge
from tessera.controller.patience.plan import PassedOver, plan
from tessera.controller.patience.successors import Successors
from tessera.core.admission.policy import FallbackPolicy, Mode, Policy, When
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, usage_of
from tessera.core.kubernetes.node import Namespace
from tessera.core.resources import short
from tessera.diagnosis.evidence import Evidence, SeenPod
from tessera.diagnosis.gather import seen_pod
from tessera.diagnosis.patience.history import Doubt, History, Tries
from tessera.diagnosis.patience.pending_pods import WORDS, Job, PendingPod, outlook
from tessera.inventory.presence import Presence, Presences
from tessera.protocol.admission.viewed_pod import read_viewed_pod
from tessera.protocol.kubernetes.controllers import EventIn
from tessera.protocol.kubernetes.pod import decode_pod
from tests.build import container, node, pod
from tests.controller.patience.objects import MIG_1G, MIG_2G, NOW, UNSCHEDULABLE, document, owned
from tests.kube.clock import FakeClock

RULES = Path(__file__).parents[3] / "src" / "tessera" / "diagnosis" / "patience"
FULL = Policy(FallbackPolicy(when=When.FULL, patience=300.0))
IGNORES = Job("j", (((("DisruptionTarget", "True"),), "Ignore"),))
JOB = owned("j", "Job", "batch/v1")
FREE = "1g.10gb in place of 2g.20gb is free for it"
SOON = f"evicted and decided about again soon: 10 a minute at most, one of an owner at a time (fallback.patience: 5m): {FREE} now"


def seen(one: dict[str, Any], *, small: int = 1, policy: Policy = FULL, **more: Any) -> tuple[Evidence, SeenPod]:  # fmt: skip
    """A node with a 2g that another pod holds, and some 1g; and a pod that waits."""
    offers = Offers([node("n", **{"2g.20gb": 1, "1g.10gb": small})])
    offers.put_namespace(Namespace("a", **more.pop("namespace", {})))
    raw = json.dumps(one).encode()
    key, viewed = read_viewed_pod(raw)
    held = pod(container(**{short(MIG_2G): 1}))
    free = offers.follow_pods()
    free.replace_pods([("b/held", BoundPod("n", usage_of(held), None)), *([(key, viewed)] if viewed else [])], 0.0)  # fmt: skip
    if more.pop("by_times", False):
        free.block_by_times(NOW)
    presences = Presences(patience=more.pop("presence", Presence("patience")))
    asked = seen_pod(decode_pod(raw), raw)
    job, events = more.pop("job", None), more.pop("events", ())
    asked = SeenPod(asked.pod, asked.state, raw, events, job)
    return Evidence(NOW, offers=offers, policy=policy, presences=presences, **more), asked


def planned(evidence: Evidence, one: SeenPod) -> str:
    """What the controller does with this pod now."""
    found = PendingPod.read(one.raw)
    history, successors, clock = evidence.history or History(), Successors(), FakeClock(wall=NOW)
    successors.restore(history.doubts, clock.now(), NOW)
    judge = ViewJudge(evidence.offers, clock, 30.0, 5.0)
    judge.policy = evidence.policy
    judge.begin(successors)
    judge.put_job(found, one.job)
    made = plan([found], judge, history, frozenset(), PassedOver(), now=NOW, most=10, window=60.0)
    (state,) = made.states or ("waits",)
    return state


def doubting(*namespaces: str, seconds: float = 300.0) -> History:
    """Five minutes ago a pod of each namespace came without the webhook's decision; `seconds`: that this counts for others."""
    until = NOW + seconds + (3000.0 if seconds > 0 else 0.0)
    return History(doubts={one: Doubt("back", NOW - 300, until, NOW + seconds) for one in namespaces})


@pytest.mark.parametrize(
    ("one", "more", "state"),
    [
        (document(), {}, "evicted"),
        (document(), {"small": 0}, "nothing_free"),
        (document(owner=JOB), {"job": IGNORES}, "evicted"),
        (document(owner=JOB), {"job": Job("j")}, "job"),
        (document(owner=JOB), {}, "job"),
        (document(owner=None), {}, "bare"),
        (document(owner=owned("r", "RayCluster", "ray.io/v1")), {}, "owner"),
        (document(spec={"schedulingGates": [{"name": "x"}]}), {}, "gated"),
        (document(spec={"schedulerName": "volcano"}), {}, "scheduler"),
        (document(status={"nominatedNodeName": "n", "conditions": [UNSCHEDULABLE]}), {}, "nominated"),
        (document(metadata={"annotations": {"gpu-webhook.k8s.io/decided": "template"}}), {}, "template"),
        (document(metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}}), {}, "kueue"),
        (document(metadata={"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}}), {}, "gang"),
        (document(), {"namespace": {"labels": {"gpu-webhook": "disabled"}}}, "exempt"),
        (document(), {"namespace": {"labels": {"gpu-webhook": "observe"}}}, "observed"),
        (document(), {"policy": Policy(FULL.fallback, mode=Mode.OBSERVE)}, "observed"),
        (document(metadata={"annotations": {"gpu-webhook.k8s.io/patience": "off"}}), {}, "waits"),
        (document(metadata={"annotations": {"gpu-webhook.k8s.io/patience": "2h"}}), {}, "waits"),
        (document(), {"namespace": {"annotations": {"gpu-webhook.k8s.io/patience": "2h"}}}, "waits"),
        (document(), {"history": History(owners={"rs": Tries(5, NOW - 60, 300.0)})}, "waits"),
        (document(status={"conditions": []}), {}, "waits"),
        (document(asks=MIG_1G), {"by_times": True}, "blocked"),
        (document(), {"by_times": True}, "evicted"),
        (document(), {"history": doubting("a")}, "webhook"),
        (document(), {"history": doubting("b")}, "evicted"),
        (document(), {"history": doubting("b", "c")}, "elsewhere"),
        (document(), {"history": doubting("a", "b")}, "webhook"),
        (document(), {"history": doubting("a", "b", seconds=-1.0)}, "evicted"),
        (document(owner=None), {"history": doubting("a")}, "bare"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_why_says_what_the_plan_does(one, more, state):
    """A pod that the plan evicts is said to be evicted, one that it leaves alone to be left alone, for the plan's reason."""
    evidence, asked = seen(one, **more)
    said, *_ = outlook(evidence, asked)  # first: the plan keeps room for what it evicts
    assert planned(evidence, asked) == state
    match state:
        case "evicted":
            assert said == SOON
        case "nothing_free":
            assert said == (
                "evicted and decided about again soon: 10 a minute at most, one of an owner at a time, if something else is free "
                "for it then (fallback.patience: 5m); nothing else is free for it now"
            )
        case "waits":
            assert said.startswith(("not evicted: ", "evicted and decided about again in about "))
        case _:
            assert said == f"left alone: {WORDS[state]}"


@pytest.mark.parametrize(
    ("one", "more", "lines"),
    [
        (document(owner=None), {}, [f"left alone: {WORDS['bare']}", f"{FREE}: delete it, and create it again as you first wrote it"]),
        (document(metadata={"annotations": {"gpu-webhook.k8s.io/patience": "off"}}), {}, ["not evicted: the pod's annotation patience is off"]),
        (document(metadata={"annotations": {"gpu-webhook.k8s.io/patience": "61m"}}), {}, [f"evicted and decided about again in about 1m (the pod's annotation patience: 1h1m): {FREE} now"]),
        (document(), {"namespace": {"annotations": {"gpu-webhook.k8s.io/patience": "2h"}}}, [f"evicted and decided about again in about 1h (the annotation patience of namespace a: 2h): {FREE} now"]),
        (document(), {"history": History(owners={"rs": Tries(4, NOW - 60, 300.0)})}, [f"evicted and decided about again in about 20m (fallback.patience: 5m, 1h20m by now: evictions did not help): {FREE} now"]),
        (document(status={"conditions": []}), {}, ["not evicted: the scheduler has not called it unschedulable (fallback.patience: 5m)"]),
        (document(), {"presence": Presence("patience", "there is no Lease")}, ["nobody evicts it: patience is unavailable: there is no Lease"]),
        (document(), {"events": (EventIn(reason="TriggeredScaleUp", last_timestamp="2027-01-15T07:50:00Z"),)}, [f"left alone: {WORDS['scale_up']}"]),
        (document(), {"events": (EventIn(reason="TriggeredScaleUp", last_timestamp="2027-01-15T07:40:00Z"),)}, [SOON]),
        (document(), {"policy": Policy(FallbackPolicy(when=When.FULL))}, []),
        (document(metadata={"annotations": {"gpu-webhook.k8s.io/patience": "10m"}}), {"policy": Policy(FallbackPolicy(when=When.FULL))}, [SOON.replace("fallback.patience: 5m", "the pod's annotation patience: 10m")]),
        (document(asks="cpu"), {}, []),
        (document(), {"history": doubting("a")}, [f"left alone: {WORDS['webhook']}", "pod back came back without it; no pod of the namespace is evicted until one of them has the webhook's mark, or for 55m"]),
        (document(), {"history": doubting("b", "c")}, [f"left alone: {WORDS['elsewhere']}", "pods b/back, c/back came back without it; no pod is evicted until one has the webhook's mark, or for 5m"]),
        (document(asks=MIG_1G), {"small": 2}, ["evicted and decided about again soon: 10 a minute at most, one of an owner at a time, if something else is free for it then (fallback.patience: 5m); nothing else is free for it now"]),
    ],
)  # fmt: skip
def test_words(one, more, lines):
    """When it is evicted, by whose patience, what it would get; or why it is not. Nothing where nobody says a patience."""
    assert list(outlook(*seen(one, **more))) == lines


def test_every_reason_has_words():
    """Whatever a pod is left alone for, `why` can say it: the words are of reasons that the rules give, and of all of them."""
    text = (RULES / "pending_pods.py").read_text().partition("def outlook")[0]
    assert all(text.count(f'"{reason}"') >= 2 for reason in WORDS)
    given = re.findall(
        r'^        "(\w+)": .*,', text.partition("reasons = {")[2].partition("}")[0], re.MULTILINE
    )
    assert len(given) == 9
    assert {*given, *re.findall(r'(?:return|else) "(\w+)"', text)} <= {*WORDS}


def test_what_cannot_be_read_is_said():
    """Where pods could not be read, nobody knows what is free."""
    evidence, asked = seen(document())
    evidence.offers.free = None
    (said,) = outlook(evidence, asked)
    assert said.endswith("; what is free could not be read")
