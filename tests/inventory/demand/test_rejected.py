"""What was asked for and rejected: whose pods, how many, and what else the same events say."""

import gc
import json
import tracemalloc
from typing import Any

import pytest

from tessera.core.planning.demand import MOST_MISSED
from tessera.inventory.pending import Pending, pending_inventory
from tessera.inventory.rejected_workloads import RejectedFiles
from tessera.kube.object_files import objects_in_documents
from tessera.kube.rest.client import Client
from tessera.kube.watch.table import FAILED_CREATES
from tessera.simulation.control_plane.kinds import ResourceType
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG, pod_document
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

ASKED = (
    "asked for nvidia.com/mig-4g.40gb: 1, and no node that this pod can use offers it; tried 7g.80gb (not offered); "
    "the nodes that this pod can use offer 1g.10gb (up to 56 a node)"
)
DENIED = f'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: {ASKED}'
QUOTA = 'pods "web-x" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=2, limited: pods=2'
OTHER = 'admission webhook "validate.kyverno.svc-fail" denied the request: images must be signed'
BAD = (
    'admission webhook "gpu-allocation.k8s.io" denied the request: annotation min-memory: "x" is no quantity'
)
REPLICA_SETS = ResourceType("apps/v1", "replicasets", "ReplicaSet")
SETS = ResourceType("apps/v1", "statefulsets", "StatefulSet")


def template(profile: str = "4g.40gb", number: int = 1) -> dict[str, Any]:
    resources = {MIG + profile: str(number)}
    found = pod_document({"requests": {"cpu": "2", **resources}, "limits": resources})
    return {"metadata": {"labels": {"app": "x"}}, "spec": found["spec"]}


def workload(
    kind: str, name: str, *, has: int = 0, message: str = "", owner: str = "", **spec: Any
) -> dict[str, Any]:
    """A workload of namespace team that has so many pods; with a message, its condition says why it has no more."""
    metadata: dict[str, Any] = {
        "namespace": "team",
        "name": name,
        "creationTimestamp": "2026-11-15T09:00:00Z",
    }
    if owner:
        metadata["ownerReferences"] = [{"kind": "Deployment", "name": owner, "uid": "d", "controller": True}]
    state: dict[str, Any] = {"active" if kind == "Job" else "replicas": has}
    if message:
        state["conditions"] = [
            {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
        ]
    return {"kind": kind, "metadata": metadata, "spec": {"template": template(), **spec}, "status": state}


def event(
    kind: str, name: str, message: str = DENIED, at: str = "2026-11-16T09:00:00Z", number: int = 1
) -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"namespace": "team", "name": f"{kind}.{name}.{number}".lower()},
        "involvedObject": {"kind": kind, "namespace": "team", "name": name},
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": at,
    }


def pending(*documents: dict[str, Any]) -> Pending:
    inventory = pending_inventory()
    inventory.take(objects_in_documents(documents, "test"))
    return Pending(inventory, "")


def found(*documents: dict[str, Any]) -> dict[str, int]:
    """Workload → pods of it that are rejected."""
    inventory = pending_inventory()
    inventory.take(objects_in_documents(documents, "test"))
    return {f"{one.use.namespace}/{one.use.name}": one.number for one in inventory.rejected.found}


@pytest.mark.parametrize(
    ("documents", "counted"),
    [
        # by the condition, as `kubectl get deployments,replicasets` shows it
        ([workload("Deployment", "web", replicas=3, message=DENIED)], {"team/deployment/web": 3}),
        ([workload("ReplicaSet", "rs", has=1, replicas=3, message=DENIED)], {"team/replicaset/rs": 2}),
        ([workload("ReplicationController", "rc", replicas=1, message=DENIED)], {"team/replicationcontroller/rc": 1}),
        # a Deployment's pods are its ReplicaSet's: they count once
        ([workload("Deployment", "web", replicas=3, message=DENIED), workload("ReplicaSet", "web-1", replicas=3, message=DENIED, owner="web")], {"team/deployment/web": 3}),
        # by the event
        ([workload("StatefulSet", "db", has=1, replicas=4), event("StatefulSet", "db")], {"team/statefulset/db": 3}),
        ([workload("Job", "night", parallelism=4, completions=3), event("Job", "night")], {"team/job/night": 3}),
        ([workload("Job", "night", has=1, parallelism=4), event("Job", "night")], {"team/job/night": 3}),
        # it wants no more than it has, or nothing
        ([workload("StatefulSet", "db", has=4, replicas=4), event("StatefulSet", "db")], {}),
        ([workload("Job", "night", parallelism=4, suspend=True), event("Job", "night")], {}),
        ([workload("StatefulSet", "db", replicas=0), event("StatefulSet", "db")], {}),
        # rejected for something else: no layout helps
        *[([workload("StatefulSet", "db", replicas=4), event("StatefulSet", "db", why)], {}) for why in (QUOTA, OTHER, BAD)],
        *[([workload("Deployment", "web", replicas=4, message=why)], {}) for why in (QUOTA, OTHER, BAD)],
        # the last word counts, also before the condition, which keeps the first
        ([workload("StatefulSet", "db", replicas=4), event("StatefulSet", "db"), event("StatefulSet", "db", QUOTA, "2026-11-16T09:05:00Z", 2)], {}),
        ([workload("StatefulSet", "db", replicas=4), event("StatefulSet", "db", QUOTA), event("StatefulSet", "db", DENIED, "2026-11-16T09:05:00Z", 2)], {"team/statefulset/db": 4}),
        ([workload("ReplicaSet", "rs", replicas=4, message=DENIED), event("ReplicaSet", "rs", QUOTA)], {}),
        # long before the last event that was saved
        ([workload("StatefulSet", "db", replicas=4), event("StatefulSet", "db"), event("Job", "x", at="2026-11-16T11:00:00Z")], {}),
        # nothing was rejected
        ([workload("Deployment", "web", replicas=3)], {}),
    ],
)  # fmt: skip
def test_who_is_rejected(documents, counted):
    """Pods that a workload wants and does not have count, if the webhook rejects them for what no node offers."""
    assert found(*documents) == counted


def test_an_event_of_an_earlier_workload_of_that_name():
    """It says nothing of the one that is there now."""
    earlier = event("StatefulSet", "db")
    earlier["involvedObject"]["uid"] = "old"
    now = workload("StatefulSet", "db", replicas=4)
    now["metadata"]["uid"] = "new"
    assert found(now, earlier) == {}


@pytest.mark.parametrize(
    ("made", "since"),
    [
        # since the first Event of those that are there, whatever others are about
        (["2026-11-16T08:00:00Z", "2026-11-16T07:00:00Z"], "2026-11-16T07:00:00Z"),
        # never before it was made, whoever wrote the Event; nor is anything known without a time
        (["2026-11-01T00:00:00Z"], "2026-11-15T09:00:00Z"),
        ([None], "2026-11-15T09:00:00Z"),
    ],
)
def test_since_when_its_pods_are_rejected(made, since):
    """A workload that is a year old may have been scaled up just now: its pods have not waited for a year, and are no older than others that wait."""
    events = [event("StatefulSet", "db", number=number) for number in range(len(made))]
    for one, at in zip(events, made, strict=True):
        one["metadata"]["creationTimestamp"] = at
    quota = event("StatefulSet", "db", QUOTA, "2026-11-16T05:00:00Z", 9)
    quota["metadata"]["creationTimestamp"] = "2026-11-15T10:00:00Z"
    inventory = pending_inventory()
    documents = [workload("StatefulSet", "db", replicas=3), *events, quota]
    inventory.take(objects_in_documents(documents, "test"))
    assert [one.use.created for one in inventory.rejected.found] == [since]


def test_what_is_rejected_is_told_apart_from_what_waits():
    """The demand has both, each by its name; a plan is for both."""
    waits = pod_document({"limits": {MIG + "2g.20gb": "1"}, "requests": {MIG + "2g.20gb": "1"}})
    waits["metadata"] = {"name": "waits", "namespace": "team"}
    one = pending(waits, workload("StatefulSet", "db", replicas=3), event("StatefulSet", "db"))
    assert list(one.words()) == [
        "pods without a node ask for 1 × 2g.20gb",
        "rejected workloads ask for 3 × 4g.40gb",
    ]
    assert {str(profile): number for profile, number in one.demand.all.items()} == {
        "2g.20gb": 1,
        "4g.40gb": 3,
    }
    groups = {group.names: group.rejected for group, _ in one.waiting.hopeless}  # there is no node at all
    assert groups == {("team/waits",): False, ("team/statefulset/db",) * 3: True}


def test_a_tenant_does_not_have_cards_cut_for_what_it_invents():
    """However many pods a namespace asks for, no more than a thousand devices of it count; that is said."""
    many = [workload("StatefulSet", name, replicas=2**31 - 1) for name in ("a", "b")]
    told = [event("StatefulSet", name) for name in ("a", "b")]
    one, beyond = pending(*many, *told), 2 * (2**31 - 1) - MOST_MISSED
    assert sum(one.demand.rejected.values()) == MOST_MISSED
    assert list(one.words())[1:] == [
        f"rejected workloads ask for {MOST_MISSED} × 4g.40gb",
        f"{beyond} more devices that rejected workloads ask for do not count: at most {MOST_MISSED} of one namespace do",
    ]


async def read(server: MisbehavingApiServer, *documents: dict[str, Any]) -> Pending:
    for kind in (REPLICA_SETS, SETS):
        server.kinds[kind.prefix, kind.plural] = kind
    for one in documents:
        kind = next(kind for kind in server.kinds.values() if kind.kind == one["kind"])
        server.store.create(kind, one, one["metadata"].get("namespace", ""))
    async with await server.start(), Client(server.cluster) as client:
        inventory = pending_inventory()
        await inventory.read_cluster(client)
        # 2026-11-16T09:10:00Z
        await inventory.rejected.read(client, FakeClock(wall=1794820200.0))
        return Pending(inventory, "")


async def test_only_what_events_name_is_read_of_a_cluster():
    """A cluster is asked for the events of one reason, and for the kinds and namespaces in which pods are rejected; not for more."""
    server = MisbehavingApiServer()
    one = await read(
        server,
        workload("ReplicaSet", "web-1", replicas=3, owner="web"),
        workload("ReplicaSet", "other", replicas=9),
        workload("Job", "night", parallelism=1),
        event("ReplicaSet", "web-1"),
        event("Job", "night", QUOTA),
        event("Job", "long-ago", at="2026-11-16T08:00:00Z"),
    )
    assert list(one.words())[1:] == ["rejected workloads ask for 3 × 4g.40gb"]
    assert server.asked("/api/v1/events", fieldSelector="reason=FailedCreate")
    assert {request.path for request in server.asked("/apis") if "resource.k8s.io" not in request.path} == {
        "/apis/apps/v1/namespaces/team/replicasets"
    }
    quiet = MisbehavingApiServer()
    assert list((await read(quiet)).words()) == ["pods without a node ask for no MIG devices"]
    assert not [one for one in quiet.asked("/apis") if "resource.k8s.io" not in one.path]


@pytest.mark.parametrize("hidden", ["events", "replicasets"])
async def test_what_may_not_be_read_is_said(hidden):
    """Who may not read events, or workloads, gets a plan for the rest, and is told."""
    server = MisbehavingApiServer()
    no = StatusError(403, "Forbidden", f"{hidden} is forbidden")
    server.intercept = lambda request: status(no) if request.path.endswith(hidden) else None
    job = (workload("Job", "night", parallelism=2), event("Job", "night"))
    one = await read(server, workload("ReplicaSet", "web", replicas=3), event("ReplicaSet", "web"), *job)
    *counted, said = one.words()
    assert said.startswith("workloads whose pods are rejected are not counted: ")
    assert f"{hidden} is forbidden" in said
    assert counted[1:] == ([] if hidden == "events" else ["rejected workloads ask for 2 × 4g.40gb"])


def test_rejected_workloads_that_ask_for_the_same_are_one_group():
    """What they ask for is alike: a plan weighs one group, however many workloads there are."""
    documents = [workload("StatefulSet", f"s{n}", replicas=1) for n in range(800)]
    one = pending(*documents, *(event("StatefulSet", f"s{n}") for n in range(800)))
    assert len(one.waiting.hopeless) == 1
    assert one.demand.rejected == one.demand.all


def test_fault_71_events_are_reduced_while_they_are_read():
    """Of Events of a megabyte nothing stays but whose they are, when they were reported, and whether they are about GPUs."""
    entry = RejectedFiles().table()[FAILED_CREATES]
    documents = (
        json.dumps(
            event("ReplicaSet", f"{'x' * (number % 2) * 10_000}{number % 50}", f"{DENIED} {'.' * 10**6}")
        )
        for number in range(100)
    )
    entry.put(entry.decode(next(documents).encode()))
    tracemalloc.start()
    for document in documents:
        entry.put(entry.decode(document.encode()))
    del document
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 64 * 1024


def test_fault_71_one_namespace_has_a_thousand_workloads_that_count():
    """What another namespace asks for counts, however many Events one makes before."""
    files = RejectedFiles()
    table = files.table()
    flood = [event("ReplicaSet", f"none-{number}") for number in range(1500)]
    flood += [event("ReplicaSet", "honest") | {"metadata": {"namespace": "other"}}]
    flood[-1]["involvedObject"]["namespace"] = "other"
    for one in flood:
        table[FAILED_CREATES].put(table[FAILED_CREATES].decode(json.dumps(one).encode()))
    honest = workload("ReplicaSet", "honest", replicas=1)
    honest["metadata"]["namespace"] = "other"
    for document in (
        honest,
        *(workload("ReplicaSet", f"none-{n}", replicas=1) for n in (0, 999, 1000, 1499)),
    ):
        (entry,) = (one for kind, one in table.items() if kind.kind == "ReplicaSet")
        entry.put(entry.decode(json.dumps(document).encode()))
    assert [one.use.name for one in files.rejected()] == [
        "replicaset/honest",
        "replicaset/none-0",
        "replicaset/none-999",
    ]


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_event_counts(backwards):
    """In whatever order Events come, the last word of a controller holds."""
    told = [
        event("ReplicaSet", "web-1", QUOTA, at="2026-11-16T09:01:00Z", number=1),
        event("ReplicaSet", "web-1", DENIED, at="2026-11-16T09:02:00Z", number=2),
        event("ReplicaSet", "web-2", DENIED, at="2026-11-16T09:01:00Z", number=3),
        event("ReplicaSet", "web-2", QUOTA, at="2026-11-16T09:02:00Z", number=4),
    ]
    workloads = [workload("ReplicaSet", name, replicas=2) for name in ("web-1", "web-2")]
    assert found(*workloads, *(told[::-1] if backwards else told)) == {"team/replicaset/web-1": 2}
