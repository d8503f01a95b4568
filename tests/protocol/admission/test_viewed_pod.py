"""Pods as the view of what is free reads them."""

import gc
import json
import tracemalloc

import pytest

from tessera.core.admission.view.pods import BoundPod, Origin, WaitingPod
from tessera.core.kubernetes.scheduling import Toleration
from tessera.protocol.admission import review
from tessera.protocol.admission.viewed_pod import forget_templates, read_viewed_pod
from tessera.protocol.kubernetes.objects import InvalidObject
from tests.build import MIG, pod_document
from tests.build import review as review_of

ONE = 10**9
SLICE = {"limits": {MIG + "1g.10gb": "1"}, "requests": {"cpu": "500m"}}
TAKEN = ((MIG + "1g.10gb", ONE), ("cpu", ONE // 2), ("pods", ONE))
OWNERS = [
    {"kind": "X", "name": "x", "uid": "u0"},
    {"kind": "ReplicaSet", "name": "web", "uid": "u1", "controller": True},
]


def pod(*resources, status=None, init=(), metadata=None, **spec):
    document = pod_document(*resources or (SLICE,), init=init, namespace="team", **metadata or {})
    document["spec"].update(spec)
    return {**document, "status": status or {"phase": "Pending"}}


def read(document):
    key, viewed = read_viewed_pod(json.dumps(document).encode())
    assert key == "team/p"
    return viewed


def unschedulable(message, reason="Unschedulable"):
    conditions = [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]
    return {"phase": "Pending", "conditions": conditions}


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        (pod(nodeName="a"), TAKEN),
        (pod(SLICE, SLICE, nodeName="a"), tuple((name, 2 * n) for name, n in TAKEN[:2]) + TAKEN[2:]),
        (pod({}, nodeName="a", status={"phase": "Running"}), (("pods", ONE),)),
        (
            pod({"requests": {"cpu": 1}}, nodeName="a", overhead={"cpu": "1"}, init=({"resources": SLICE},)),
            ((MIG + "1g.10gb", ONE), ("cpu", 2 * ONE), ("pods", ONE)),
        ),
        (
            pod(
                {"requests": {"cpu": 1}},
                nodeName="a",
                init=({"resources": {"requests": {"cpu": 2}}, "restartPolicy": "Always"},),
            ),
            (("cpu", 3 * ONE), ("pods", ONE)),
        ),
        (
            pod({"requests": {"cpu": 1}}, nodeName="a", resources={"requests": {"cpu": 4}}),
            (("cpu", 4 * ONE), ("pods", ONE)),
        ),
        (
            pod(
                {"requests": {"cpu": 1}},
                nodeName="a",
                status={
                    "phase": "Running",
                    "conditions": [{"type": "PodResizeInProgress", "status": "True"}],
                    "containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": 3}}}],
                },
            ),
            (("cpu", 3 * ONE), ("pods", ONE)),
        ),
        (pod(nodeName="a", metadata={"deletionTimestamp": "2026-11-15T09:30:00Z"}), TAKEN),
    ],
)
def test_what_a_bound_pod_takes(document, usage):
    """As the scheduler counts, until the pod is gone: init containers, sidecars, overhead, the whole pod, a resize under way."""
    viewed = read(document)
    assert isinstance(viewed, BoundPod)
    assert (viewed.node, viewed.usage) == ("a", usage)


@pytest.mark.parametrize(
    "document",
    [
        pod(nodeName="a", status={"phase": "Succeeded"}),
        pod(nodeName="a", status={"phase": "Failed"}),
        pod({"requests": {"cpu": "1"}}),
        pod(metadata={"deletionTimestamp": "2026-11-15T09:30:00Z"}),
    ],
)
def test_what_does_not_count(document):
    """Pods that are over; and without a node those that ask for no GPU, and those that get no node any more."""
    assert read(document) is None


def test_a_pod_that_waits():
    """Where it may go, what it takes there, its place in the order, and the scheduler's words."""
    viewed = read(
        pod(
            nodeSelector={"zone": "a"},
            tolerations=[{"key": "x", "operator": "Exists"}],
            priority=7,
            schedulerName="default-scheduler",
            metadata={
                "generateName": "web-",
                "ownerReferences": OWNERS,
                "creationTimestamp": "2026-11-15T09:30:00Z",
            },
            status=unschedulable("0/1 nodes are available"),
        )
    )
    assert isinstance(viewed, WaitingPod)
    assert viewed.shape.usage == TAKEN
    assert viewed.shape.placement.node_selector == {"zone": "a"}
    assert viewed.shape.placement.tolerations == (Toleration("x", "Exists"),)
    assert viewed.origin == Origin("team", "u1", "web-")
    assert (viewed.priority, viewed.created) == (7, 1794735000.0)
    assert (viewed.verdict, viewed.held) == ("0/1 nodes are available", False)


@pytest.mark.parametrize(
    ("document", "verdict", "held"),
    [
        (pod(), "", False),
        (pod(status=unschedulable("gated", "SchedulingGated")), "", False),
        (pod(schedulingGates=[{"name": "x"}]), "", True),
        (pod(schedulingGates=[]), "", False),
        (pod(schedulerName="volcano"), "", True),
    ],
)
def test_whom_the_scheduler_looks_at(document, verdict, held):
    """Not at pods with gates, and not at those of another scheduler."""
    viewed = read(document)
    assert isinstance(viewed, WaitingPod)
    assert (viewed.verdict, viewed.held) == (verdict, held)


def test_what_pods_have_alike_is_kept_once():
    """Two pods of one template have the very same shape, usage and origin."""
    metadata = {"generateName": "web-", "ownerReferences": OWNERS}
    one, two = (read(pod(metadata=metadata, nodeSelector={"zone": "a"})) for _ in range(2))
    assert isinstance(one, WaitingPod)
    assert isinstance(two, WaitingPod)
    assert one.shape is two.shape
    assert one.origin is two.origin
    there = read(pod(nodeName="a"))
    assert isinstance(there, BoundPod)
    assert there.usage is one.shape.usage


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "", "generateName": "web-", "ownerReferences": OWNERS},
        {"name": "web-0", "generateName": "web-", "ownerReferences": OWNERS},
        {"name": "p"},
        {"name": "p", "ownerReferences": OWNERS[:1]},
    ],
)
def test_a_pod_that_was_admitted_is_known_again(metadata):
    """From its review, where it may have no name yet, and as it is there later."""
    admitted = review.decode(review_of(pod_document(SLICE, **metadata), namespace="team")).origin()
    there = pod_document(SLICE, **{**metadata, "name": metadata["name"] or "web-x7k2p", "namespace": "team"})
    _, viewed = read_viewed_pod(json.dumps(there).encode())
    assert viewed is not None
    assert viewed.origin == admitted


def test_a_pod_that_cannot_be_read():
    """It is named, and so is the place."""
    broken = pod({"requests": {"cpu": "many"}}, nodeName="a")
    with pytest.raises(InvalidObject, match=r"^pod team/p: spec.containers\[0\].resources.requests\[cpu\]"):
        read(broken)


INVENTED: dict[str, str] = {f"ex.io/invented-{number}": "1" for number in range(9000)}


def test_fault_70_a_bound_pod_with_invented_resources_takes_what_matters():
    """Its slices, cpu and memory count, and all that nodes state; of what it invents a few resources are kept."""
    resources = {**INVENTED, MIG + "1g.10gb": "2", "cpu": "4", "memory": "1Gi", "rdma/hca": "3"}
    document = json.dumps(pod({"limits": resources}, nodeName="a")).encode()
    _, viewed = read_viewed_pod(document, frozenset({"rdma/hca"}))
    assert isinstance(viewed, BoundPod)
    assert viewed.is_partial
    taken = dict(viewed.usage)
    assert taken[MIG + "1g.10gb"] == 2 * ONE
    assert (taken["cpu"], taken["memory"], taken["rdma/hca"], taken["pods"]) == (
        4 * ONE,
        2**30 * ONE,
        3 * ONE,
        ONE,
    )
    assert len(taken) < 40
    assert viewed.origin is not None
    assert viewed.usage[0][0] == MIG + "1g.10gb", "GPUs come first"


@pytest.mark.parametrize(
    "document",
    [
        pod({"limits": {**INVENTED, MIG + "1g.10gb": "1"}}),
        pod(nodeSelector={f"key-{number}": "value" for number in range(8000)}),
        pod(tolerations=[{"key": f"key-{number}", "operator": "Exists"} for number in range(8000)]),
    ],
)
def test_fault_70_a_waiting_pod_beyond_the_bounds_gets_no_room(document):
    """It is followed, little of it is kept, and nothing that is free is kept for it."""
    viewed = read(document)
    assert isinstance(viewed, WaitingPod)
    assert (viewed.held, viewed.is_partial) == (True, True)
    assert len(viewed.usage) < 40
    assert viewed.shape.placement.node_selector == {}
    assert viewed.shape.placement.tolerations == ()


def preferring(number):
    words = [f"value-{number}-{at}" for at in range(14_000)]
    preference = {"matchExpressions": [{"key": "zone", "operator": "In", "values": words}]}
    preferred = [{"weight": 1, "preference": preference}]
    return pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})


def test_what_a_pod_prefers_is_not_kept():
    """Only what it requires decides where it may go, so it has room as any other."""
    viewed = read(preferring(0))
    assert isinstance(viewed, WaitingPod)
    assert (viewed.held, viewed.shape.placement.required_terms) == (False, None)


def test_fault_70_large_pods_do_not_fill_the_caches():
    """Pods with a quarter of a megabyte each, in whatever they have most of: a few hundred bytes stay of each when they are gone."""

    def large(number):
        words = [f"ex.io/value-{number}-{at}" for at in range(4000)]
        return [
            pod({"limits": {**dict.fromkeys(words, "1"), MIG + "1g.10gb": "1"}}),
            preferring(number),
            pod(tolerations=[{"key": word, "operator": "Exists"} for word in words]),
            pod(
                metadata={
                    "ownerReferences": [
                        {"kind": "ReplicaSet", "name": "web", "uid": "".join(words), "controller": True}
                    ]
                }
            ),
            pod(nodeName="a", overhead=dict.fromkeys(words, "1")),
        ]

    documents = [[json.dumps(one).encode() for one in large(number)] for number in range(21)]
    for raw in documents.pop():
        read_viewed_pod(raw)
    tracemalloc.start()
    for some in documents:
        for raw in some:
            read_viewed_pod(raw)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100 * 8192


def test_fault_70_pods_that_have_little_in_common_leave_nothing():
    """After thousands of pods that are each just small enough, the caches are empty again; what templates share stays known before."""
    template = pod(nodeSelector={"zone": "a"})
    forget_templates()
    before = read(template)
    forget_templates()
    after = read(template)
    assert isinstance(before, WaitingPod)
    assert isinstance(after, WaitingPod)
    assert after.shape is before.shape, "a few pods are no reason to forget"
    tracemalloc.start()
    for number in range(200):
        terms = [{"key": "zone", "operator": "NotIn", "values": [f"{number}-{at}" for at in range(370)]}]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        read(pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}))
    forget_templates()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 200 * 1024
