"""The live view with pods: what is free, as long as it is asked for and pods may be read."""

import itertools
import json
import os

from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.pods import Origin
from tessera.kube.rest.client import Client
from tessera.kube.view.files import FileView
from tessera.kube.view.live import LiveView
from tessera.kube.watch.table import UNFINISHED_PODS, TableEntry
from tessera.simulation.control_plane.kinds import NODES, PODS
from tessera.simulation.control_plane.store import StatusError
from tests import build
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock
from tests.kube.view.test_live import live, until

SLICE = "nvidia.com/mig-1g.10gb"


def node(name: str, slices: int, **spec) -> build.Document:
    ready = [{"type": "Ready", "status": "True"}]
    return build.node_document(name, {"cpu": 8, SLICE: slices}, spec=spec, conditions=ready)


def pod(name: str, phase: str = "Pending", slices: int | str = 1, **spec) -> build.Document:
    document = build.asking_pod(name, {SLICE: slices}, spec=spec, status={"phase": phase})
    del document["spec"]["containers"][0]["resources"]["requests"]  # which are then the limits
    return document


def free(view) -> int | None:
    """How many slices are free on the node with the most of them; None: nobody knows."""
    now = view.offers.now()
    return None if now is None else now.anywhere().get(SLICE, 0)


def asked_for_pods(server) -> int:
    return len(server.asked(UNFINISHED_PODS.path))


async def test_pods_take_and_give_back():
    """Bound, waiting, over, deleted: what is free follows; the view's version does not."""
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("a", 4))
        server.store.create(PODS, pod("x", "Running", nodeName="a"))
        async with live(server) as view:
            view.follow_pods()
            assert "pods not listed yet" in (view.missing() or "")
            await view.synced()
            assert (view.missing(), view.pods.unknown, free(view)) == (None, None, 3)
            version = view.offers.version
            server.store.create(PODS, pod("y", slices=2))
            await until(lambda: free(view) == 1)
            server.store.update(PODS, "y", pod("y", "Running", slices=2, nodeName="a"), "default")
            await until(lambda: view.offers.free.rooms == 0)
            assert free(view) == 1
            server.store.update(PODS, "x", pod("x", "Succeeded", nodeName="a"), "default")
            await until(lambda: free(view) == 2)
            server.store.delete(PODS, "y", "default")
            await until(lambda: free(view) == 4)
            assert view.offers.version == version
            server.store.update(NODES, "a", node("a", 4, unschedulable=True))
            await until(lambda: free(view) == 0)


async def test_fault_70_a_resource_that_comes_later_counts():
    """A pod with thousands of resources takes what a node states only now: pods are listed again, and once."""
    invented = {f"nvidia.com/mig-1g.{number}gb": 1 for number in range(1000, 3000)}
    unknown = "nvidia.com/mig-5g.77gb"  # of a card that is not known
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("a", 4))
        for number in range(2):
            large = pod(f"x{number}", "Running", nodeName="ab"[number])
            large["spec"]["containers"][0]["resources"]["limits"] |= {**invented, unknown: "2"}
            server.store.create(PODS, large)
        async with live(server) as view:
            view.follow_pods()
            await view.synced()
            await until(lambda: view.offers.free.partial == 2)
            assert free(view) == 3
            before = asked_for_pods(server)
            later = node("b", 4)
            later["status"]["allocatable"] |= {unknown: "3"}
            server.store.create(NODES, later)
            await until(lambda: view.offers.now().anywhere().get(unknown) == 1)
            assert asked_for_pods(server) == before + 1
            server.store.delete(PODS, "x1", "default")
            await until(lambda: view.offers.now().anywhere().get(unknown) == 3)
            assert view.offers.free.partial == 1


async def test_pods_that_are_read_in_another_way_are_listed_for_the_view_alone():
    """Who follows pods with the same follower takes no list again."""
    invented = {f"nvidia.com/mig-1g.{number}gb": 1 for number in range(1000, 3000)}
    unknown = "nvidia.com/mig-5g.77gb"
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("a", 4))
        large = pod("x", "Running", nodeName="b")
        large["spec"]["containers"][0]["resources"]["limits"] |= {**invented, unknown: "2"}
        server.store.create(PODS, large)
        async with live(server) as view:
            lists: list[int] = []
            table = {
                UNFINISHED_PODS: TableEntry(
                    bytes, lambda _: None, replace=lambda pods: lists.append(len(pods))
                )
            }
            view.follower.add(table)
            view.follow_pods()
            await view.synced()
            await view.follower.synced(table)
            later = node("b", 4)
            later["status"]["allocatable"] |= {unknown: "3"}
            server.store.create(NODES, later)
            await until(lambda: view.offers.now().anywhere().get(unknown) == 1)
            assert lists == [1]


async def test_who_does_not_ask_for_it_reads_no_pods():
    """Nobody knows what is free, and no pod is read; it can be switched on and off while the view is used."""
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("a", 4))
        server.store.create(PODS, pod("x", "Running", nodeName="a"))
        async with live(server) as view:
            await view.synced()
            assert (view.missing(), free(view), asked_for_pods(server)) == (None, None, 0)
            view.follow_pods()
            assert view.missing() is None, "it was complete, and stays so"
            await until(lambda: free(view) == 3)
            view.follow_pods(("mine/*",))
            assert free(view) == 3
            view.follow_pods(None)
            assert free(view) is None
            await server.until(lambda: server.watches == len(view.reflectors))
            server.store.delete(PODS, "x", "default")
            view.follow_pods()
            await until(lambda: free(view) == 4)


async def test_pods_that_may_not_be_read():
    """Then nobody knows what is free, the view is complete all the same, and it says why; with the right, all is well."""
    async with await MisbehavingApiServer().start() as server:
        forbidden = StatusError(403, "Forbidden", "pods is forbidden")
        server.intercept = lambda request: status(forbidden) if "pods" in request.path else None
        server.store.create(NODES, node("a", 4))
        async with live(server) as view:
            view.follow_pods()
            await view.synced()
            assert (view.missing(), free(view)) == (None, None)
            words = "pods may not be read: the API server answered 403 Forbidden: pods is forbidden"
            assert view.pods.unknown == words
            server.intercept = lambda request: None
            view.follow_pods(None)
            view.follow_pods()
            await until(lambda: free(view) == 4)


async def test_what_was_reserved_is_let_go_by_the_clock():
    """The live view looks at the time by itself."""
    clock = FakeClock()
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("a", 4))
        async with (
            Client(server.cluster, clock=clock) as client,
            LiveView(client).following(complete=False) as view,
        ):
            view.follow_pods()
            await view.synced()
            admitted = build.pod(build.container(**{"1g.10gb": 1}))
            assert view.offers.free is not None
            view.offers.free.reserve(admitted, Origin("default", "", "web-"), clock.now())
            assert free(view) == 3
            for _ in range(9):
                await clock.pass_sleep(1.0)
            assert free(view) == 3
            await clock.pass_sleep(1.0)
            assert free(view) == 4


async def test_files_with_pods_say_what_is_free(tmp_path):
    """Where the configuration asks for it; files without pods do not say it, and a broken pod changes nothing."""
    full, file = FallbackPolicy(full_enabled=True), tmp_path / "cluster.json"

    def write(*objects):
        kinds = [{"kind": "Pod" if "containers" in one["spec"] else "Node", **one} for one in objects]
        file.write_text(json.dumps({"kind": "List", "items": kinds}))
        os.utime(file, ns=(next(times), 0))

    times = itertools.count(10**18, 10**9)
    write(node("a", 4), pod("x", "Running", nodeName="a"), pod("y"))
    view = FileView([file])
    assert (free(view), view.follows_pods) == (None, False)
    view.configure(full)
    assert (free(view), view.follows_pods) == (2, True)
    write(node("a", 4), pod("x", "Running", nodeName="a", slices="many"))
    await view.check()
    assert free(view) == 2
    assert view.last_error.startswith(f"{file}: pod default/x: spec.containers[0].resources.limits[{SLICE}]")
    write(node("a", 4), pod("x", "Succeeded", nodeName="a"))
    await view.check()
    assert free(view) == 4
    write(node("a", 4))
    await view.check()
    assert free(view) is None
    view.configure(FallbackPolicy())
    assert not view.follows_pods
