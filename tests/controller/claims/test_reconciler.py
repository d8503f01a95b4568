"""The reconciler against a stand-in API server."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tessera.controller.claims.reconciler import ClaimReconciler, Writes
from tessera.controller.leader import LeadershipLost
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import ReconcilerParts
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.core.requests.alternatives import read, template_name
from tessera.core.requests.tickets import TicketKey, TicketMaker, hour_of
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.view.ticket_keys import TicketSecret
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import Key
from tessera.protocol.dra.objects import template_spec
from tessera.serving.http_messages import HangUp, Response
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.kinds import (
    EVENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SECRETS,
)
from tessera.simulation.control_plane.store import StatusError, Store
from tests.controller.claims import objects
from tests.controller.claims.objects import CREATED, KEYS, RECORD, TEMPLATE, TEXT
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock


@asynccontextmanager
async def world(*documents, clock=None, store=None, **server_options):
    """A reconciler at work; `changed` waits until the store is as wanted."""
    store = store or Store(lambda: datetime.fromtimestamp(CREATED, UTC))
    async with MisbehavingApiServer(store=store, **server_options) as server, asyncio.timeout(20):
        await server.start()
        for document in documents:
            server.store.create(PODS, document, document["metadata"]["namespace"])
        clock = clock or FakeClock(auto=True)
        async with Client(server.cluster, clock=clock) as client:
            metrics, recorder = ControllerMetrics(), Recorder(client, "test")
            secret = TicketSecret("", KEYS.previous, KEYS.current, KEYS.following, rotated=CREATED).document()
            server.store.create(SECRETS, secret, "own")
            keeper = TicketKeeper(client, "own")
            fences: list[None] = []
            parts = ReconcilerParts(
                client=client,
                follower=Follower(client),
                recorder=recorder,
                metrics=metrics,
                fence=lambda: fences.append(None),
            )
            reconciler = ClaimReconciler(parts, keeper)

            async def until(condition):
                while not condition():
                    await asyncio.sleep(0.01)

            tasks = [
                asyncio.ensure_future(one)
                for one in (
                    reconciler.follower.run(),
                    recorder.run(),
                    reconciler.run(),
                )
            ]
            try:
                yield SimpleNamespace(
                    server=server,
                    store=server.store,
                    reconciler=reconciler,
                    metrics=lambda: exposition(metrics.families()).decode(),
                    until=until,
                    fences=fences,
                    clock=clock,
                )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def template_of(store, namespace="a", name=TEMPLATE):
    try:
        return store.get(RESOURCE_CLAIM_TEMPLATES, name, namespace).document
    except StatusError:
        return None


def failing(times, error):
    """An API server that makes no template the first times."""
    left = [times]

    def intercept(request):
        if request.method == "POST" and "templates" in request.path and left[0]:
            left[0] -= 1
            return status(error)
        return None

    return intercept


def test_the_template_of_a_pod():
    """It is made in the pod's namespace with the content that its name says, labelled, without an owner."""

    async def main():
        async with world(objects.pod()) as one:
            await one.until(lambda: template_of(one.store))
            document = template_of(one.store)
            assert document["spec"] == template_spec(read(TEXT))
            metadata = document["metadata"]
            assert metadata["labels"] == {"app.kubernetes.io/managed-by": "tessera-controller"}
            assert metadata["annotations"] == {"gpu-webhook.k8s.io/alternatives": TEXT}
            assert "ownerReferences" not in metadata
            assert one.fences, "the fence was asked before the write"
            await one.until(lambda: 'tessera_controller_writes_total{what="make"} 1' in one.metrics())

    asyncio.run(main())


def test_a_template_deleted_by_hand():
    """It is there again as long as a pod waits for it."""

    async def main():
        async with world(objects.pod()) as one:
            await one.until(lambda: template_of(one.store))
            first = template_of(one.store)["metadata"]["uid"]
            one.store.delete(RESOURCE_CLAIM_TEMPLATES, TEMPLATE, "a")
            await one.until(lambda: (found := template_of(one.store)) and found["metadata"]["uid"] != first)

    asyncio.run(main())


def test_a_hash_that_does_not_match():
    """Nothing is made; the pod is counted. A good pod beside it gets its template."""

    async def main():
        bad = objects.pod("bad", template="tessera-0")
        async with world(bad, objects.pod()) as one:
            await one.until(lambda: template_of(one.store))
            assert len(one.store.list(RESOURCE_CLAIM_TEMPLATES)) == 1
            assert "tessera_controller_refused_pods 1" in one.metrics()
            assert "tessera_controller_bridged_pods 2" in one.metrics()

    asyncio.run(main())


def right_ticket(namespace="a", text=TEXT, key=KEYS.current, hour=0):
    return TicketMaker(key, hour_of(CREATED) + hour).ticket(namespace, text)


def test_fault_45_forged_pods():
    """Alternatives written by hand, for a type that a quota forbids or a class of the administrators: no template, one Event.

    Nor with a ticket of another namespace, of other alternatives, of hours ago or of a key from elsewhere. A right one gets its own.
    """
    forged = {
        "by-hand": objects.pod("by-hand", "1*1g.18gb=2g.35gb/tessera-any", ticket=""),
        "admins": objects.pod("admins", "1*1g.18gb=1g.18gb/admins-only", ticket=""),
        "copied": objects.pod("copied", ticket=right_ticket("b")),
        "text": objects.pod("text", "1*2g.20gb=3g.30gb/tessera-any", ticket=right_ticket()),
        "old": objects.pod("old", ticket=right_ticket(hour=-2)),
        "early": objects.pod("early", ticket=right_ticket(hour=2)),
        "key": objects.pod("key", ticket=right_ticket(key=TicketKey(b"x" * 32))),
    }

    async def main():
        async with world(*forged.values(), objects.pod(namespace="b")) as one:
            await one.until(lambda: template_of(one.store, "b"))
            await one.until(lambda: len(one.store.list(EVENTS, "a")) == len(forged))
            assert "tessera_controller_refused_pods 7" in one.metrics()
            # each once, however often the pods change
            for name in forged:
                stored = one.store.get(PODS, name, "a").document
                one.store.update(PODS, name, {**stored, "status": {"phase": "Pending"}}, "a")
            one.store.create(PODS, objects.pod("last", "1*1g.18gb=7g.141gb/tessera-any", ticket=""), "a")
            await one.until(lambda: len(one.store.list(EVENTS, "a")) > len(forged))
            assert [stored.key for stored in one.store.list(RESOURCE_CLAIM_TEMPLATES)] == [("b", TEMPLATE)]
            return [stored.document for stored in one.store.list(EVENTS, "a")]

    events = asyncio.run(main())
    assert {event["involvedObject"]["name"] for event in events} == {*forged, "last"}
    assert {(event["reason"], event["type"]) for event in events} == {("GPUClaimTemplate", "Warning")}
    [words] = [event["message"] for event in events if event["involvedObject"]["name"] == "by-hand"]
    assert words.startswith(
        "the controller makes no ResourceClaimTemplate for this pod: it has no ticket of the webhook. Delete the pod"
    )


def test_many_forged_pods_are_few_lines(caplog):
    """A namespace's forged pods are one line for each reason, with their number; those of the next ten minutes are in the next line."""

    def forged(number, namespace="a"):
        return objects.pod(f"p{number}", namespace=namespace, ticket="")

    async def main():
        clock = FakeClock()
        unnamed = [objects.pod(f"q{number}", template="tessera-0") for number in range(3)]
        first = [forged(number) for number in range(20)]
        async with world(*first, *unnamed, forged(0, "b"), clock=clock) as one:

            async def add(*numbers):
                for number in numbers:
                    one.store.create(PODS, forged(number), "a")
                    await one.until(lambda: len(one.store.list(EVENTS, "a")) == number + 1)  # noqa: B023 # waited for

            await one.until(lambda: len(one.store.list(EVENTS)) == 21)
            await add(20, 21, 22)
            clock.time += 600
            await add(23)

    asyncio.run(main())
    none = "so the controller makes no template for it"
    assert sorted(each.message for each in caplog.records if none in each.message) == [
        f"pod a/p0: it has no ticket of the webhook, {none} (nor for 19 more of this namespace)",
        f"pod a/p20: it has no ticket of the webhook, {none} (nor for 3 more of this namespace)",
        f"pod a/q0: its template's name does not match its annotation, {none} (nor for 2 more of this namespace)",
        f"pod b/p0: it has no ticket of the webhook, {none}",
    ]


@pytest.mark.parametrize("key", [KEYS.previous, KEYS.current, KEYS.following])
def test_tickets_of_a_rotation(key):
    """What a webhook signs a moment before or after a rotation is right."""

    async def main():
        async with world(objects.pod(ticket=right_ticket(key=key))) as one:
            await one.until(lambda: template_of(one.store))

    asyncio.run(main())


def test_no_key_yet():
    """While the keys cannot be read, nothing is made and nothing refused; then all is."""
    blocked = [True]

    def intercept(request):
        if blocked[0] and "/secrets" in request.path:
            return status(StatusError(403, "Forbidden", "no right"))
        return None

    async def main():
        async with world() as one:
            one.server.intercept = intercept
            one.store.create(PODS, objects.pod(), "a")
            one.store.create(PODS, objects.pod("q", "1*1g.18gb=2g.35gb/tessera-any", ticket=""), "a")
            await one.until(lambda: len(one.reconciler.state.pods) == 2)
            assert (template_of(one.store), one.store.list(EVENTS, "a")) == (None, [])
            blocked[0] = False
            one.reconciler._keeper._due = 0.0
            one.reconciler._changed.set()
            await one.until(lambda: template_of(one.store) and one.store.list(EVENTS, "a"))

    asyncio.run(main())


def test_a_template_that_is_there():
    """A pod whose ticket is no longer right, and that has its template, is not refused: it waits for a device."""

    async def main():
        async with world(objects.pod()) as one:
            await one.until(lambda: one.reconciler.state.templates)  # the watch has brought it
            one.store.create(PODS, objects.pod("old", ticket=right_ticket(hour=-2)), "a")
            await one.until(lambda: Key("a", "old") in one.reconciler.state.refused)
            assert "tessera_controller_refused_pods 0" in one.metrics()

    asyncio.run(main())


def test_another_alternative_was_taken():
    """The pod gets its record and an event, once; the record is the webhook's."""

    async def main():
        async with world(objects.pod(node="n")) as one:
            uid = one.store.get(PODS, "p", "a").document["metadata"]["uid"]
            one.store.create(RESOURCE_CLAIMS, objects.claim(uid, "gpu-0/1g-10gb"), "a")
            await one.until(lambda: one.store.list(EVENTS))
            assert (
                one.store.get(PODS, "p", "a").document["metadata"]["annotations"][RECORD]
                == "2g.20gb->1g.10gb"
            )
            [event] = [each.document for each in one.store.list(EVENTS)]
            assert (event["reason"], event["message"]) == (
                "GPUFallback",
                "the scheduler gave 1g.10gb in place of 2g.20gb: the first that was free",
            )
            assert event["involvedObject"]["uid"] == uid
            assert 'tessera_controller_fallbacks_total{from="2g.20gb",to="1g.10gb"} 1' in one.metrics()
            one.store.create(PODS, objects.pod("q"), "a")
            await one.until(lambda: template_of(one.store))
            assert 'tessera_controller_writes_total{what="record"} 1' in one.metrics()

    asyncio.run(main())


def test_types_that_no_card_has():
    """They take no series of their own: any tenant could fill the metrics with them."""
    metrics = ControllerMetrics()
    for number in range(100, 200):
        metrics.fell_back(f"{number}g.{number}gb", "1g.10gb")
    metrics.fell_back("7g.80gb", "gpu")
    counted = [
        one for one in exposition(metrics.families()).decode().splitlines() if "fallbacks_total{" in one
    ]
    assert counted == [
        'tessera_controller_fallbacks_total{from="other",to="1g.10gb"} 100',
        'tessera_controller_fallbacks_total{from="7g.80gb",to="gpu"} 1',
    ]


def test_an_answer_that_comes_late():
    """What the watch has seen since then stays: a pod that has gone does not come back, nor a template that was removed."""

    async def main():
        async with world(objects.pod(node="n")) as one:
            pods, templates = one.reconciler.state.pods, one.reconciler.state.templates
            stored = one.store.get(PODS, "p", "a").document

            def intercept(request):
                if request.method == "PATCH":
                    one.store.delete(PODS, "p", "a")
                    one.reconciler.state.remove_pod(Key("a", "p"))  # seen while the answer was under way
                    return Response(json.dumps(stored).encode())
                if request.method == "POST" and "templates" in request.path:
                    made = {"metadata": {"name": TEMPLATE, "namespace": "a"}}  # and deleted at once
                    return Response(json.dumps(made).encode(), 201)
                return None

            one.server.intercept = intercept
            one.store.create(RESOURCE_CLAIMS, objects.claim(stored["metadata"]["uid"], "gpu-0/1g-10gb"), "a")
            await one.until(lambda: 'writes_total{what="record"} 1' in one.metrics())
            assert pods == {}
            one.store.create(PODS, objects.pod("q"), "a")
            await one.until(lambda: 'writes_total{what="make"} 1' in one.metrics())
            assert templates == {}
            await one.until(lambda: 'writes_total{what="make"} 2' in one.metrics())

    asyncio.run(main())


def test_a_template_of_another_hand():
    """One that says the same serves; one that says something else is told of on the pod, and left alone."""

    async def main(spec, told):
        async with world() as one:
            foreign = {"metadata": {"name": TEMPLATE}, "spec": spec}
            one.store.create(RESOURCE_CLAIM_TEMPLATES, foreign, "a")
            one.store.create(PODS, objects.pod(), "a")
            path = f"/apis/resource.k8s.io/v1/namespaces/a/resourceclaimtemplates/{TEMPLATE}"
            await one.until(lambda: one.server.asked(path))
            if told:
                await one.until(lambda: one.store.list(EVENTS))
            one.store.create(PODS, objects.pod("good", text=TEXT + ",gpu/tessera-any"), "a")
            await one.until(lambda: len(one.store.list(RESOURCE_CLAIM_TEMPLATES)) == 2)
            assert template_of(one.store)["spec"] == spec
            assert [each.document["reason"] for each in one.store.list(EVENTS)] == ["GPUClaimTemplate"] * told

    same = {"metadata": {}, **template_spec(read(TEXT))}  # as the API server prints it
    asyncio.run(main(same, 0))
    asyncio.run(main({"spec": {"devices": {"requests": []}}}, 1))


def test_unused_templates_go():
    """Marked when the last pod has gone, unmarked when one comes, removed after a day."""

    async def main():
        clock = FakeClock()
        async with world(objects.pod(), clock=clock) as one:
            await one.until(lambda: template_of(one.store))
            one.store.delete(PODS, "p", "a")

            def mark():
                return template_of(one.store)["metadata"]["annotations"].get(
                    "gpu-webhook.k8s.io/unused-since"
                )

            await one.until(mark)
            assert mark() == "2027-01-15T08:00:00Z"
            one.store.create(PODS, objects.pod("q"), "a")
            await clock.pass_sleep(1.0)  # what was just written is let be for a second
            await one.until(lambda: mark() is None)
            one.store.delete(PODS, "q", "a")
            await clock.pass_sleep(1.0)
            await one.until(mark)
            clock.offset += 24 * 3600
            one.store.create(PODS, objects.pod("other", namespace="b"), "b")  # news, so that it looks again
            await one.until(lambda: template_of(one.store) is None)
            assert template_of(one.store, "b")

    asyncio.run(main())


def test_writes_that_fail():
    """They are tried again, and counted."""

    async def main():
        async with world() as one:
            one.server.intercept = failing(3, StatusError(500, "InternalError", "etcd is away"))
            one.store.create(PODS, objects.pod(), "a")
            await one.until(lambda: template_of(one.store))
            assert 'tessera_controller_failures_total{what="make"} 3' in one.metrics()

    asyncio.run(main())


def other_text(number):
    return f"1*2g.20gb=2g.20gb/c{number},1g.10gb/c{number}"


def test_one_namespace_keeps_no_other_waiting(caplog):
    """Templates that cannot be made in one namespace are tried again ever less often; others are made at once. One line tells of them."""

    async def main():
        clock = FakeClock()
        refused = [objects.pod(f"p{n}", other_text(n)) for n in range(150)]
        async with world(clock=clock) as one:

            def intercept(request):
                if request.method == "POST" and "/namespaces/a/" in request.path:
                    return status(StatusError(403, "Forbidden", "namespace a is being terminated"))
                return None

            one.server.intercept = intercept
            for document in refused:
                one.store.create(PODS, document, "a")

            def tries():
                path = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaimtemplates"
                return len([each for each in one.server.asked(path) if each.method == "POST"])

            await one.until(lambda: tries() == 150)
            for number in range(5):  # news, each a look at all of it
                one.store.create(PODS, objects.pod(f"q{number}", other_text(number), namespace="b"), "b")
                await one.until(lambda: template_of(one.store, "b", template_name(other_text(number))))  # noqa: B023 # waited for
            assert tries() == 150, "nothing is tried again before its time"

    asyncio.run(main())
    told = [each.message for each in caplog.records if "failed" in each.message]
    assert 1 <= len(told) <= 20
    assert told[0].startswith("make failed, will try again: a/tessera-")
    assert "403 Forbidden: namespace a is being terminated" in told[0]


def test_fault_68_a_bug_that_one_template_meets(monkeypatch, caplog):
    """The process goes on: others get their templates, the bug is counted and logged once, and this one is tried again later."""
    make, bugs = Writes._make, [True]

    async def made(self, action):
        if bugs and action.pod.key.name == "second":
            raise ZeroDivisionError("a bug")
        return await make(self, action)

    monkeypatch.setattr(Writes, "_make", made)

    async def main():
        async with world(clock=FakeClock(auto=True)) as one:
            for number, name in enumerate(("first", "second", "third")):
                one.store.create(PODS, objects.pod(name, other_text(number)), "a")
            names = [template_name(other_text(number)) for number in range(3)]
            for number in (0, 2):
                await one.until(lambda: template_of(one.store, "a", names[number]))  # noqa: B023 # waited for
            await one.until(lambda: 'failures_total{what="claims"} 2' in one.metrics())
            bugs.clear()
            await one.until(lambda: template_of(one.store, "a", names[1]))

    asyncio.run(main())
    told = [each.getMessage() for each in caplog.records if "an unexpected error" in each.getMessage()]
    assert set(told) == {"reconciler claims: an unexpected error; will try again: ZeroDivisionError('a bug')"}


def test_an_api_server_that_is_away(caplog):
    """Hundreds of things to do are one line, and one try, until it is back."""

    async def main():
        clock = FakeClock(auto=True)
        async with world(clock=clock) as one:
            one.server.intercept = failing(4, StatusError(503, "ServiceUnavailable", "etcd is away"))
            for number in range(40):
                one.store.create(PODS, objects.pod(f"p{number}", other_text(number)), "a")
            await one.until(lambda: len(one.store.list(RESOURCE_CLAIM_TEMPLATES)) == 40)

    asyncio.run(main())
    told = [each.message for each in caplog.records if "reconciler claims: " in each.message]
    assert 1 <= len(told) <= 4


@pytest.mark.parametrize(
    ("causes", "told"),
    [([], ["GPUClaimTemplate"]), ([{"reason": "NamespaceTerminating"}], [])],
)
def test_a_template_that_may_not_be_made(causes, told):
    """The pod's owner hears why, where events can be written: a quota on templates, a policy of the cluster."""

    async def main():
        async with world(clock=FakeClock()) as one:
            refusal = StatusError(403, "Forbidden", "exceeded quota: few").document
            refusal["details"] = {"causes": causes}

            def intercept(request):
                if request.method == "POST" and "templates" in request.path:
                    return Response(json.dumps(refusal).encode(), 403)
                return None

            one.server.intercept = intercept
            one.store.create(PODS, objects.pod(), "a")
            await one.until(lambda: 'failures_total{what="make"} 1' in one.metrics())
            await one.until(lambda: len(one.store.list(EVENTS)) == len(told))
            found = [each.document for each in one.store.list(EVENTS)]
            assert [each["reason"] for each in found] == told
            for each in found:
                assert (
                    each["message"] == f"ResourceClaimTemplate {TEMPLATE} cannot be made: exceeded quota: few"
                )

    asyncio.run(main())


def test_no_answer_for_one_object():
    """One that the API server does not answer for, as behind a webhook that hangs, is not the first again and again."""

    async def main():
        async with world() as one:

            def intercept(request):
                if (
                    request.method == "POST"
                    and "/namespaces/a/" in request.path
                    and "templates" in request.path
                ):
                    raise HangUp

            one.server.intercept = intercept
            one.store.create(PODS, objects.pod(), "a")
            await one.until(lambda: 'failures_total{what="make"} 1' in one.metrics())
            one.store.create(PODS, objects.pod(namespace="b"), "b")
            await one.until(lambda: template_of(one.store, "b"))

    asyncio.run(main())


def test_the_fence():
    """Nothing is written once another process may lead."""

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            server.store.create(PODS, objects.pod(), "a")
            async with Client(server.cluster) as client:

                def fence():
                    raise LeadershipLost("gone")

                parts = ReconcilerParts(
                    client=client,
                    follower=Follower(client),
                    recorder=Recorder(client, "test"),
                    metrics=ControllerMetrics(),
                    fence=fence,
                )
                reconciler = ClaimReconciler(parts, TicketKeeper(client, "own"))
                following = asyncio.ensure_future(reconciler.follower.run())
                with pytest.raises(LeadershipLost):
                    await reconciler.run()
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            assert server.store.list(RESOURCE_CLAIM_TEMPLATES) == []

    asyncio.run(main())


def test_a_request_that_the_webhook_replaced():
    """The pod gets one event, however often it changes; a pod of long ago was reported then; a forged text is no message."""

    def pod(name, record):
        annotations = {"gpu-webhook.k8s.io/fallback": record}
        return {
            "metadata": {"name": name, "namespace": "a", "annotations": annotations},
            "spec": {"containers": [{"name": "main"}]},
        }

    async def told():
        now = [1_800_000_000.0]

        class Clock(FakeClock):
            def wall(self):  # stands still: sleepers that wake at once would make every pod old
                return now[0]

        clock = Clock(auto=True)
        store = Store(lambda: datetime.fromtimestamp(now[0], UTC))
        store.create(PODS, pod("old", "2g.20gb->1g.10gb"), "a")
        now[0] += 301
        new = [pod("new", "2g.20gb->1g.10gb,3g.30gb->gpu"), pod("forged", "buy->this")]
        async with world(*new, clock=clock, store=store) as one:
            await one.until(lambda: one.store.list(EVENTS, "a"))
            stored = one.store.get(PODS, "new", "a").document
            one.store.update(PODS, "new", {**stored, "status": {"phase": "Running"}}, "a")
            one.store.create(PODS, pod("later", "2g.20gb->1g.10gb"), "a")
            await one.until(lambda: len(one.store.list(EVENTS, "a")) > 1)
            return [stored.document for stored in one.store.list(EVENTS, "a")]

    events = asyncio.run(told())
    assert sorted(
        (event["involvedObject"]["name"], event["reason"], event["message"]) for event in events
    ) == [
        ("later", "GPUFallback", "the webhook gave it 1g.10gb in place of 2g.20gb"),
        ("new", "GPUFallback", "the webhook gave it 1g.10gb in place of 2g.20gb, gpu in place of 3g.30gb"),
    ]
