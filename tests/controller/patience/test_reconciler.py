"""Patience against a stand-in API server: who is evicted, and what keeps it from that."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.controller.leader import LeadershipLost
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.patience.plan import plan
from tessera.controller.patience.reconciler import PatienceReconciler
from tessera.controller.reconciler import ReconcilerParts
from tessera.core.admission.policy import FallbackPolicy, Policy, When
from tessera.core.admission.view.pods import BoundPod
from tessera.diagnosis.patience.history import History
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import Key
from tessera.serving.http_messages import Response
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.kinds import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
)
from tessera.simulation.control_plane.store import StatusError, Store
from tests.build import node_document
from tests.controller.patience.objects import MIG_1G, MIG_2G, NOW, UNSCHEDULABLE, document, owned
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

FULL = Policy(FallbackPolicy(when=When.FULL, patience=300.0))
NODE = {"cpu": "64", "memory": "256Gi", "pods": "100"}


class _Server(MisbehavingApiServer):
    """Evicts as an API server does, if the preconditions hold; a ReplicaSet makes the pod again, if the test says so."""

    budget = False  # a PodDisruptionBudget refuses
    changes = False  # the pod changes just before
    remakes: Any = None  # gets the evicted pod, and makes its successor

    def __init__(self, **more):
        super().__init__(**more)
        self.evicted: list[str] = []
        self.intercept = self._intercept

    def _intercept(self, request):
        if not request.path.endswith("/eviction"):
            return None
        if self.budget:
            error = StatusError(
                429, "TooManyRequests", "Cannot evict pod: it would violate the disruption budget"
            )
            return Response(json.dumps(error.document).encode(), 429, headers=(("Retry-After", "10"),))
        namespace, name = request.path.split("/")[4], request.path.split("/")[6]
        if self.changes:
            stored = self.store.get(PODS, name, namespace).document
            labelled = {**stored["metadata"], "labels": {"x": "y"}}
            self.store.update(PODS, name, {**stored, "metadata": labelled}, namespace)
        pod, wanted = self.store.get(PODS, name, namespace).document, json.loads(request.body)
        has = {"uid": pod["metadata"]["uid"], "resourceVersion": pod["metadata"]["resourceVersion"]}
        if wanted["deleteOptions"]["preconditions"] != has:
            return status(StatusError(409, "Conflict", "the pod has changed"))
        self.store.delete(PODS, name, namespace)
        self.evicted.append(name)
        if self.remakes:
            self.remakes(pod)
        return Response(b'{"kind":"Status","status":"Success"}', 201)


def create(store, pod):
    metadata = {name: text for name, text in pod["metadata"].items() if name != "resourceVersion"}
    store.create(PODS, {**pod, "metadata": metadata}, metadata["namespace"])


def endpoints(*ready: str):
    labels = {"kubernetes.io/service-name": "gpu-webhook"}
    found = [{"conditions": {"ready": one == "ready"}} for one in ready]
    return {"metadata": {"name": "gpu-webhook-x", "labels": labels}, "endpoints": found}


@asynccontextmanager
async def world(*documents, has=None, policy=FULL, webhook=True):
    """A cluster with one node whose 2g slices are taken, pods that wait, and the reconciler; `look` makes one plan when all is known."""
    created = [NOW - 3600]  # when objects are
    store = Store(lambda: datetime.fromtimestamp(created[0], UTC))
    async with _Server(store=store) as server, asyncio.timeout(20):
        await server.start()
        resources = {**NODE, MIG_1G: "100", MIG_2G: "0", **(has or {})}
        ready = [{"type": "Ready", "status": "True"}]
        server.store.create(NODES, node_document("n", resources, capacity=resources, conditions=ready))
        server.store.create(NAMESPACES, {"metadata": {"name": "a"}})
        if webhook:
            server.store.create(ENDPOINT_SLICES, endpoints("ready"), "gpu-webhook")
        for one in documents:
            create(server.store, one)
        clock = FakeClock(wall=NOW)
        async with Client(server.cluster, clock=clock) as client:
            metrics, recorder = ControllerMetrics(), Recorder(client, "test", counts_up=False)
            fences: list[None] = []
            check = [lambda: fences.append(None)]

            def fence_of_this_look():
                check[0]()

            def start():
                parts = ReconcilerParts(
                    client=client,
                    follower=Follower(client),
                    recorder=recorder,
                    metrics=metrics,
                    fence=fence_of_this_look,
                )
                reconciler = PatienceReconciler(parts, "gpu-webhook", "gpu-webhook")
                reconciler.configure(policy)
                tasks.append(asyncio.ensure_future(parts.follower.run()))
                tasks.append(asyncio.ensure_future(reconciler.follow()))
                return reconciler

            tasks = [asyncio.ensure_future(recorder.run())]
            reconciler = start()
            await reconciler.until_able()

            async def look(one=reconciler, fence=lambda: fences.append(None)):
                before, check[0] = len(server.requests), fence
                await one.reconcile()
                return [each for each in server.requests[before:] if each.path.endswith("/eviction")]

            async def until(condition):
                while not condition():
                    await asyncio.sleep(0.005)

            try:
                yield SimpleNamespace(
                    server=server,
                    store=server.store,
                    created=created,
                    clock=clock,
                    client=client,
                    reconciler=reconciler,
                    start=start,
                    look=look,
                    until=until,
                    fences=fences,
                    free=reconciler._view.offers.free,
                    metrics=lambda: exposition(metrics.families()).decode(),
                    events=lambda: [one.document["message"] for one in server.store.list(EVENTS)],
                    history=lambda: History.read(
                        json.dumps(
                            server.store.get(CONFIG_MAPS, "tessera-patience", "gpu-webhook").document
                        ).encode()
                    ),
                )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def remade(store, *, marked=True, node=""):
    """A ReplicaSet that makes pods again, and the webhook that gives them 1g."""

    def make(pod):
        name = pod["metadata"]["name"] + "-again"
        mark = (
            {"gpu-webhook.k8s.io/decided-when": '{"main":{"nvidia.com/mig-1g.10gb":"1"}}'} if marked else {}
        )
        (owner,) = pod["metadata"]["ownerReferences"]
        metadata = {"annotations": mark, "uid": f"uid-{name}"}
        made = document(name, asks=MIG_1G if marked else MIG_2G, owner=owner, metadata=metadata)
        made["status"]["conditions"] = []
        create(store, made)
        if node:
            stored = store.get(PODS, name, "a").document
            store.update(PODS, name, {**stored, "spec": {**stored["spec"], "nodeName": node}}, "a")

    return make


def run(main):
    asyncio.run(main())


def waiting(name, owner=None, **more):
    return document(name, owner=owned(owner or f"of-{name}"), **more)


def test_a_pod_that_waited_is_evicted():
    """With its uid and version; the history is written before, and the pod has an Event that says why."""

    async def main():
        async with world(waiting("p")) as it:
            assert len(await it.look()) == 1
            assert it.server.evicted == ["p"]
            paths = [each.path for each in it.server.requests if each.method in ("POST", "PATCH")]
            assert [path.rpartition("/")[2] for path in paths[:2]] == ["configmaps", "eviction"]
            assert (it.history().owners.keys(), len(it.fences)) == ({"of-p"}, 2)
            await it.until(it.events)
            assert it.events() == [
                (
                    "evicted: it waited for 1 h, and 1g.10gb in place of 2g.20gb is free for it now. "
                    "its ReplicaSet of-p creates it again, and the webhook decides again"
                )
            ]
            assert 'patience_evictions_total{result="evicted"} 1' in it.metrics()

    run(main)


def test_the_first_is_a_trial_and_then_ten_a_minute():
    """One until its successor is seen with the mark; then as many as are left of ten; the rest a minute later."""

    async def main():
        async with world(*(waiting(f"p{number}") for number in range(14))) as it:
            it.server.remakes = remade(it.store)
            assert len(await it.look()) == 1
            await it.until(lambda: any(key.name.endswith("-again") for key in it.reconciler.pods))
            assert len(await it.look()) == 9
            await it.clock.advance(30.0)
            assert len(await it.look()) == 0
            await it.clock.advance(31.0)
            assert len(await it.look()) == 4

    run(main)


def test_none_after_a_successor_without_the_mark():
    """The webhook was not asked, or is not there: more evictions would help nobody."""

    async def main():
        async with world(waiting("p"), waiting("q")) as it:
            it.server.remakes = remade(it.store, marked=False)
            assert len(await it.look()) == 1
            await it.until(lambda: any(key.name.endswith("-again") for key in it.reconciler.pods))
            await it.clock.advance(130.0)
            assert len(await it.look()) == 0

    run(main)


def test_none_without_ready_endpoints():
    """The webhook is not there: a successor would come as it is, or not at all."""

    async def main():
        async with world(waiting("p"), webhook=False) as it:
            assert len(await it.look()) == 0
            it.store.create(ENDPOINT_SLICES, endpoints("not"), "gpu-webhook")
            assert "\ntessera_controller_patience_webhook_seen 0\n" in it.metrics()
            it.store.update(ENDPOINT_SLICES, "gpu-webhook-x", endpoints("not", "ready"), "gpu-webhook")
            await it.until(lambda: "\ntessera_controller_patience_webhook_seen 1\n" in it.metrics())
            assert len(await it.look()) == 1

    run(main)


def test_one_per_owner_until_its_successor_has_a_node():
    """An owner's ten pods go one after the other, and do not wait longer for that; in vain they do."""

    async def main():
        async with world(*(waiting(f"p{number}", "rs") for number in range(3))) as it:
            it.server.remakes = remade(it.store, node="n")
            for times in range(1, 4):
                assert len(await it.look()) == 1
                assert len(await it.look()) == 0, "its successor is not known to have a node yet"
                assert len(it.server.evicted) == times
                bound = f"a/{it.server.evicted[-1]}-again"
                await it.until(lambda bound=bound: isinstance(it.free.pods.get(bound), BoundPod))
            assert len(await it.look()) == 0
            assert it.history().owners == {}

        async with world(*(waiting(f"p{number}", "rs") for number in range(2))) as it:
            it.server.remakes = remade(it.store)
            assert len(await it.look()) == 1
            await it.clock.advance(60.0)
            assert len(await it.look()) == 0
            await it.clock.advance(61.0)
            assert len(await it.look()) == 1, "an hour is more than twice its patience"
            assert it.history().owners["rs"].times == 2

    run(main)


def test_a_pod_that_changed_is_left_alone():
    """It may just have been placed: the API server refuses, and that counts for nothing."""

    async def main():
        async with world(waiting("p")) as it:
            it.server.changes = True
            assert len(await it.look()) == 1
            assert (it.server.evicted, it.reconciler._history.owners) == ([], {})
            assert 'patience_evictions_total{result="changed"} 1' in it.metrics()

    run(main)


def test_a_budget_that_refuses():
    """Asked once, and not again for a minute."""

    async def main():
        async with world(waiting("p")) as it:
            it.server.budget = True
            assert len(await it.look()) == 1
            await it.clock.advance(10.0)
            assert len(await it.look()) == 0
            assert 'tessera_controller_patience_pods{state="refused"} 1' in it.metrics()
            it.server.budget = False
            await it.clock.advance(51.0)
            assert len(await it.look()) == 1

    run(main)


def test_a_leader_that_lost_its_lease_evicts_nothing():
    """The fence is asked before the history and before each eviction."""

    async def main():
        for passes in (0, 1):
            async with world(waiting("p")) as it:

                def fence(left=[passes]):  # noqa: B006 # counts down
                    if not left[0]:
                        raise LeadershipLost("another leads")
                    left[0] -= 1

                with pytest.raises(LeadershipLost):
                    await it.look(fence=fence)
                assert it.server.evicted == []

    run(main)


def test_of_two_that_lead_one_evicts():
    """Both take themselves for the leader; the second cannot write the history, since it changed since it was read."""

    async def main():
        async with world(waiting("p"), waiting("q")) as it:
            it.store.create(CONFIG_MAPS, {"metadata": {"name": "tessera-patience"}}, "gpu-webhook")
            other = it.start()
            await other.until_able()
            other._history = await other._writes.read_history()
            assert len(await it.look()) == 1
            with pytest.raises(ApiError) as failed:
                await it.look(other)
            assert failed.value.is_conflict
            assert len(it.server.evicted) == 1

    run(main)


def test_an_outage_is_over_at_once():
    """Where the history could not be written for minutes, pods are evicted as soon as it can: only conflicts wait for longer."""

    async def main():
        async with world(waiting("p")) as it:
            broken = StatusError(500, "InternalError", "broken")
            it.server.intercept = lambda request: status(broken) if request.method == "POST" else None
            for _ in range(8):
                with pytest.raises(ApiError):
                    await it.look()
                await it.clock.advance(30.0)  # as the loop does at most
            it.server.intercept = it.server._intercept
            assert len(await it.look()) == 1

    run(main)


def test_what_was_done_before_a_restart_counts():
    """Ten a minute, and each owner's patience, by the history that the last process wrote."""

    async def main():
        async with world(*(waiting(f"p{number}") for number in range(3))) as it:
            done = History()
            for _ in range(4):  # sixteen times five minutes
                done = done.with_evictions([("of-p0", "a", 300.0)], NOW - 3000, 6000.0)
            done.recent = [(NOW - 30, "b")] * 10
            it.store.create(CONFIG_MAPS, done.document("gpu-webhook"), "gpu-webhook")
            assert len(await it.look()) == 0
            await it.clock.advance(31.0)
            assert len(await it.look()) == 1
            assert it.server.evicted != ["p0"]

    run(main)


def test_an_autoscaler_that_brings_a_node():
    """The pod waits for it: it is left alone while the scale-up can still succeed."""

    async def main():
        async with world(waiting("p")) as it:
            uid = it.store.get(PODS, "p", "a").document["metadata"]["uid"]
            seen = {"reason": "TriggeredScaleUp", "lastTimestamp": "2027-01-15T07:59:00Z"}
            event = {"metadata": {"name": "e"}, "involvedObject": {"uid": uid}, **seen}
            it.store.create(EVENTS, event, "a")
            assert len(await it.look()) == 0
            await it.clock.advance(61.0)
            assert len(await it.look()) == 0
            await it.clock.advance(900.0)
            assert len(await it.look()) == 1

    run(main)


def test_fault_84_an_autoscaler_among_other_events():
    """However many others a tenant writes about its pod: they are read page by page, and none is kept."""

    async def main():
        async with world(waiting("p")) as it:
            uid = it.store.get(PODS, "p", "a").document["metadata"]["uid"]
            about = {"involvedObject": {"uid": uid}, "lastTimestamp": "2027-01-15T07:59:00Z"}
            for number in range(250):
                text = {"reason": "FailedScheduling", "message": "x" * 1000}
                it.store.create(EVENTS, {"metadata": {"name": f"e{number}"}, **about, **text}, "a")
            it.store.create(EVENTS, {"metadata": {"name": "z"}, **about, "reason": "TriggeredScaleUp"}, "a")
            assert len(await it.look()) == 0
            pages = [one for one in it.server.requests if one.path == "/api/v1/namespaces/a/events"]
            assert len(pages) == 3

    run(main)


def test_jobs_that_pay_are_left_alone():
    """One that ignores evictions is not; a Job is read once a minute."""
    ignore = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}

    async def main():
        jobs = {"pays": {}, "ignores": {"podFailurePolicy": ignore}}
        async with world() as it:
            for name, spec in jobs.items():
                job = it.store.create(JOBS, {"metadata": {"name": name}, "spec": spec}, "a").document[
                    "metadata"
                ]
                owner = {**owned(job["uid"], "Job", "batch/v1"), "name": name}
                create(it.store, document(name, owner=owner))
            await it.until(lambda: len(it.reconciler.pods) == len(it.free.pods) == 2)
            await it.look()
            assert it.server.evicted == ["ignores"]
            assert 'tessera_controller_patience_pods{state="job"} 1' in it.metrics()

    run(main)


def test_a_bare_pod_is_told_once():
    """An Event, and nothing else."""

    async def main():
        async with world(document("bare", owner=None)) as it:
            for _ in range(3):
                assert len(await it.look()) == 0
                await it.clock.advance(6.0)
            await it.until(it.events)
            assert it.events() == [
                (
                    "it has waited for 1 h, and 1g.10gb in place of 2g.20gb is free for it now. No controller "
                    "creates it again: delete it, and create it again as you first wrote it"
                )
            ]

    run(main)


@pytest.mark.parametrize(
    ("policy", "namespace", "state"),
    [
        (Policy(FULL.fallback), {"labels": {"gpu-webhook": "observe"}}, "observed"),
        (Policy(FULL.fallback), {"labels": {"gpu-webhook": "disabled"}}, "exempt"),
        (Policy(FULL.fallback), {"annotations": {"gpu-webhook.k8s.io/patience": "off"}}, ""),
        (Policy(FULL.fallback), {"annotations": {"gpu-webhook.k8s.io/patience": "2h"}}, ""),
        (Policy(FULL.fallback), {"annotations": {"gpu-webhook.k8s.io/patience": "soon"}}, ""),
    ],
)
def test_namespaces_with_a_say(policy, namespace, state):
    """Where the webhook changes nothing, or the namespace has more patience, nobody is evicted."""

    async def main():
        async with world(waiting("p"), policy=policy) as it:
            it.store.update(NAMESPACES, "a", {"metadata": {"name": "a", **namespace}})
            spaces = it.reconciler._view.offers.namespaces
            await it.until(lambda: spaces["a"].labels or spaces["a"].annotations)
            assert len(await it.look()) == 0
            assert (f'tessera_controller_patience_pods{{state="{state}"}} 1' in it.metrics()) is bool(state)

    run(main)


def test_annotations_alone_say_a_patience():
    """Without `fallback.patience` the namespaces that say one have it, and nobody else."""

    async def main():
        async with world(waiting("p"), policy=Policy(FallbackPolicy(when=When.FULL))) as it:
            assert len(await it.look()) == 0
            said = {"name": "a", "annotations": {"gpu-webhook.k8s.io/patience": "5m"}}
            it.store.update(NAMESPACES, "a", {"metadata": said})
            await it.until(lambda: it.reconciler._view.offers.namespaces["a"].annotations)
            assert len(await it.look()) == 1

    run(main)


def test_it_goes_on_when_the_api_server_fails():
    """Nothing is evicted meanwhile, the failure is counted, and the history is read again."""

    async def main():
        async with world(waiting("p")) as it:
            inner = it.server.intercept
            it.server.intercept = lambda request: (
                status(StatusError(403, "Forbidden", "no right to configmaps"))
                if "configmaps" in request.path
                else inner(request)
            )
            running = asyncio.ensure_future(it.reconciler.run())
            await it.until(lambda: 'failures_total{what="patience"} 1' in it.metrics())
            assert it.server.evicted == []
            it.server.intercept = inner
            while not it.server.evicted:
                await it.clock.advance(1.0)
                await asyncio.sleep(0.005)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(main)


def test_fault_68_a_bug_in_a_plan(monkeypatch):
    """The process goes on, and when the bug is mended so does patience; it is counted."""

    async def main():
        async with world(waiting("p")) as it:
            bugs = [True]

            def broken(*given, **more):
                if bugs:
                    raise ZeroDivisionError("a bug")
                return plan(*given, **more)

            monkeypatch.setattr("tessera.controller.patience.reconciler.plan", broken)
            running = asyncio.ensure_future(it.reconciler.run())
            await it.until(lambda: 'failures_total{what="patience"} 1' in it.metrics())
            assert it.server.evicted == []
            bugs.clear()
            while not it.server.evicted:
                await it.clock.advance(1.0)
                await asyncio.sleep(0.005)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(main)


def test_a_pod_that_lost_its_gates_begins_to_wait():
    """Its condition has the time at which it was gated; its patience begins when the scheduler may look at it."""
    gates = {"schedulingGates": [{"name": "example.com/wait"}]}
    gated = {**UNSCHEDULABLE, "reason": "SchedulingGated"}

    async def main():
        async with world(waiting("p", spec=gates, status={"conditions": [gated]})) as it:
            stored = it.store.get(PODS, "p", "a").document
            spec = {name: one for name, one in stored["spec"].items() if name != "schedulingGates"}
            status = {**stored["status"], "conditions": [UNSCHEDULABLE]}
            it.store.update(PODS, "p", {**stored, "spec": spec, "status": status}, "a")
            await it.until(lambda: it.reconciler.pods[Key("a", "p")].since is not None)
            assert len(await it.look()) == 0
            await it.clock.advance(301.0)
            assert len(await it.look()) == 1

    run(main)


def test_an_eviction_that_fails_counts_for_nothing():
    """Nor do those that were to follow it; they are tried again."""

    async def main():
        async with world(waiting("p"), waiting("q"), waiting("r")) as it:
            it.reconciler._successors._proven["a"] = "uid"
            inner = it.server.intercept
            it.server.intercept = lambda request: (
                status(StatusError(500, "InternalError", "broken"))
                if request.path.endswith("/eviction")
                else inner(request)
            )
            with pytest.raises(ApiError, match="broken"):
                await it.look()
            assert it.history().owners.keys() == {"of-p", "of-q", "of-r"}, "as it was planned"
            assert it.reconciler._history.owners == {}
            it.server.intercept = inner
            await it.clock.advance(6.0)
            assert len(await it.look()) == 3

    run(main)


FULL_BY_ITSELF = {"gpu-webhook.k8s.io/fallback-when": "full"}
MARKED = {"gpu-webhook.k8s.io/decided-when": '{"main":{"nvidia.com/mig-1g.10gb":"1"}}'}


def comes_back(it, namespace, annotations, *, asks=MIG_2G, name="back"):
    """A tenant's ReplicaSet makes a pod in the place of its evicted one; it gets no node."""
    metadata = {"annotations": annotations}
    owner = owned(f"of-{namespace}")
    create(it.store, document(name, namespace, asks=asks, owner=owner, metadata=metadata))


async def tenants(it, *namespaces):
    """In each namespace a pod waits, and is evicted."""
    for namespace in namespaces:
        if namespace != "a":
            it.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        metadata = {"annotations": FULL_BY_ITSELF}
        owner = owned(f"of-{namespace}")
        create(it.store, document("tenant", namespace, owner=owner, metadata=metadata))
    known = lambda: all(f"{one}/tenant" in it.free.pods for one in namespaces)  # noqa: E731
    await it.until(lambda: known() and len(it.reconciler.pods) >= len(namespaces))
    assert len(await it.look()) == len(namespaces)
    await it.until(lambda: not it.reconciler.pods)


async def victim(it, name="victim", namespace="b"):
    """A pod of another namespace that waits beside a free 1g; whether it is evicted now."""
    if namespace not in {one.document["metadata"]["name"] for one in it.store.list(NAMESPACES)}:
        it.store.create(NAMESPACES, {"metadata": {"name": namespace}})
    create(it.store, document(name, namespace, owner=owned(f"of-{name}")))
    key = Key(namespace, name)
    await it.until(lambda: key in it.reconciler.pods and f"{namespace}/{name}" in it.free.pods)
    await it.look()
    return name in it.server.evicted


def state(it, name):
    return f'tessera_controller_patience_pods{{state="{name}"}} 1' in it.metrics()


def test_fault_80_an_edited_replica_set():
    """Its next pod says `missing`, so it comes without the mark: that says nothing about the webhook, and others are evicted at once."""

    async def main():
        async with world() as it:
            await tenants(it, "a")
            comes_back(it, "a", {"gpu-webhook.k8s.io/fallback-when": "missing"})
            await it.until(lambda: Key("a", "back") in it.reconciler.pods)
            assert await victim(it)
            assert await victim(it, "own", "a"), "nor about its own namespace"
            assert "\ntessera_controller_patience_doubted_namespaces 0\n" in it.metrics()

    run(main)


def test_fault_80_doubt_is_about_one_namespace():
    """A successor that the webhook should have marked stops patience in its namespace; log, metric, history and `why` say so."""

    async def main():
        async with world() as it:
            await tenants(it, "a")
            comes_back(it, "a", FULL_BY_ITSELF)
            await it.until(lambda: Key("a", "back") in it.reconciler.pods)
            assert not await victim(it, "own", "a")
            assert state(it, "webhook")
            assert await victim(it)
            assert "\ntessera_controller_patience_doubted_namespaces 1\n" in it.metrics()
            assert it.history().doubts.keys() == {"a"}
            assert it.history().doubts["a"].pod == "back"

    run(main)


def test_fault_80_two_namespaces_that_doubt():
    """Then nobody is evicted, until a marked pod of any namespace comes: then at once, though successors still wait."""

    async def main():
        async with world() as it:
            await tenants(it, "a", "c")
            for namespace in ("a", "c"):
                comes_back(it, namespace, FULL_BY_ITSELF)
            await it.until(lambda: len(it.reconciler.pods) == 2)
            assert not await victim(it)
            assert state(it, "elsewhere")
            other = it.start()  # another process leads
            await other.until_able()
            assert await it.look(other) == []
            it.created[0] += 1
            comes_back(it, "b", MARKED, asks=MIG_1G, name="marked")
            await it.until(lambda: Key("b", "marked") in it.reconciler.pods)
            assert len(await it.look()) == 1
            assert it.server.evicted[-1] == "victim"

    run(main)


def test_fault_80_a_trial_is_of_one_namespace():
    """A tenant's successor that never comes holds back the tenant's own pods, and nobody else's."""

    async def main():
        async with world() as it:
            await tenants(it, "a")
            assert not await victim(it, "own", "a")
            assert state(it, "trial")
            assert await victim(it)

    run(main)


def test_fault_83_jobs_that_are_new_in_every_plan():
    """Each must be read before its pods can be judged; that does not put off those that are to be evicted."""

    async def main():
        async with world() as it:
            for number in range(25):
                owner = owned(f"job-{number}", "Job", "batch/v1")
                create(it.store, document(f"j{number}", owner=owner))
            await it.until(lambda: len(it.reconciler.pods) == len(it.free.pods) == 25)
            assert await victim(it)
            read = [one for one in it.server.requests if "/jobs/" in one.path]
            assert len(read) == 20
            await it.look()
            read = [one for one in it.server.requests if "/jobs/" in one.path]
            assert len({one.path for one in read}) == len(read) == 25

    run(main)
