"""Fixed layouts where the API server, mig-manager's ConfigMap, or the writes to one node fail in the middle."""

import asyncio
from collections import Counter

import pytest

from tessera.kube.clock import Retries
from tessera.rollout.carrying import CHANGES_ALL_THE_TIME
from tessera.simulation.control_plane.kinds import DEVICE_CLASSES, MIG_LAYOUTS, NODES, PODS, RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.controller.layouts.cluster import FastClock, InThisLoop, claimed, cluster, layout
from tests.inventory.objects import pod
from tests.kube.apiserver import status
from tests.rollout import mig_manager
from tests.rollout.mig_manager import FakeMigManager

POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
CONFIG_MAPS = "/api/v1/namespaces/gpu-operator/configmaps"
THREES = [{"perCard": {"3g.40gb": 2}}]
# what a person adds: the same layout under another name
MINE = """\
  a-mine:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.40gb": 2}
"""


def of_mig_manager(**spec):
    document = layout(layouts=THREES, **spec)
    document["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.mig-manager": "true"}
    return document


def refusal(code, message="etcdserver: request timed out"):
    return status(StatusError(code, "Refused", message))


@pytest.mark.parametrize("path", [POLICIES, CONFIG_MAPS])
@pytest.mark.parametrize("code", [500, 503])
def test_configurations_that_cannot_be_read_for_a_while(path, code):
    """A rollout that waits for its pods goes on, also with another leader, and the MigLayout does not become invalid by it."""

    async def main():
        document = of_mig_manager(rollout={"drainTimeout": "60m"})
        async with cluster(document=document) as one:
            one.store.create(NODES, mig_manager.node("gpu-0"))
            FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.store.create(PODS, pod("train", "gpu-0", MIG + "1g.10gb"), "default")
            one.lead("one")
            await one.until(lambda: "gpu-0" in one.cordoned)
            failing = [True]
            one.server.intercept = lambda request: (
                refusal(code)
                if failing and request.method == "GET" and request.path.startswith(path)
                else None
            )
            for leader in ("one", "two"):
                if leader == "two":
                    one.kill("one")
                    one.lead("two")
                asked = len(one.server.asked(path))
                await one.until(lambda: one.status()["controller"] == leader)  # noqa: B023 # in this turn
                await one.until(lambda: len(one.server.asked(path)) >= asked + 2)  # noqa: B023
                assert one.condition("Invalid")[0] == "False"
                assert one.cordoned == {"gpu-0"}
            failing.clear()
            one.store.delete(PODS, "train", "default")
            await one.until(lambda: one.condition("Ready")[0] == "True")
            assert {reason for _, reason in one.events()}.isdisjoint({"MIGRolloutCancelled", "DoesNotFit"})

    asyncio.run(main())


def test_the_first_node_of_mig_manager_comes_later():
    """What mig-manager has is read for it before anything is said of it."""

    async def main():
        document = layout(nodeSelector={"nvidia.com/gpu.count": "2"})
        async with cluster("gpu-0", document=document) as one:
            FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[0] == "True")
            one.store.create(NODES, mig_manager.node("gpu-1"))
            await one.until(lambda: one.status()["desired"] == 2 and one.condition("Ready")[0] == "True")
            assert ("inference", "DoesNotFit") not in one.events()

    asyncio.run(main())


def test_a_configuration_that_a_person_adds():
    """It is preferred from then on by every part of the controller: no node is cordoned and uncordoned again and again."""

    async def main():
        document = of_mig_manager(paused=True, rollout={"maxUnavailable": 2, "drainTimeout": "60m"})
        async with cluster(document=document) as one:
            for number in range(2):
                one.store.create(NODES, mig_manager.node(f"gpu-{number}"))
                held = pod(f"train-{number}", f"gpu-{number}", MIG + "1g.10gb")
                one.store.create(PODS, held, "default")
            manager = FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.lead("one")
            await one.until(lambda: one.condition("Progressing")[1] == "Paused")
            one.change(paused=False)
            await one.until(lambda: one.status()["observedGeneration"] == 2)
            manager.write(manager.text.replace("# the end", MINE + "# the end"))
            await one.until(lambda: len(one.cordoned) == 2)
            await asyncio.sleep(0.5)  # nearly a minute
            writes = Counter(each.path for each in one.server.requests if each.method == "PATCH")
            assert max(writes[f"/api/v1/nodes/gpu-{number}"] for number in range(2)) <= 3
            for number in range(2):
                one.store.delete(PODS, f"train-{number}", "default")
            await one.until(lambda: one.condition("Ready")[0] == "True")

    asyncio.run(main())


@pytest.mark.parametrize(("most", "code"), [(1, 403), (1, 422), (2, 403), (2, 500)])
def test_a_node_that_cannot_be_written_to(most, code):
    """The others go on, and the status says why it does not. Where a cordon may arrive late, after a 500, its slot stays taken."""

    async def main():
        rollout = {"maxUnavailable": most}
        async with cluster("gpu-0", "gpu-1", "gpu-2", most=most, document=layout(rollout=rollout)) as one:
            failing = [True]
            one.server.intercept = lambda request: (
                refusal(code, "not this one")
                if failing and request.method == "PATCH" and request.path == "/api/v1/nodes/gpu-0"
                else None
            )
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-1") and one.has_layout("gpu-2"))
            await one.until(lambda: "not this one" in one.status()["nodes"][0]["reason"])
            await one.until(lambda: one.slots() == (["gpu-0"] if code == 500 else []))
            assert one.status()["current"] == 2
            failing.clear()
            await one.until(lambda: one.condition("Ready")[0] == "True")

    asyncio.run(main())


def test_an_eviction_that_is_refused_at_length():
    """However much the API server says, the node is uncordoned, and says why."""

    async def main():
        rollout = {"maxUnavailable": 1, "whenInUse": "Drain", "drainTimeout": "60s", "timeout": "2m"}
        async with cluster("gpu-0", document=layout(rollout=rollout)) as one:
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")

            def intercept(request):
                if request.path.endswith("/eviction"):
                    return refusal(403, "no " * 100_000)
                if len(request.body) > 256 * 1024:  # as annotations may be
                    return refusal(422, "annotations: Too long")
                return None

            one.server.intercept = intercept
            one.lead("one")
            await one.until(lambda: one.cordoned)
            await one.until(lambda: not one.cordoned)
            await one.until(lambda: ("gpu-0", "MIGRolloutGivenUp") in one.events())

    asyncio.run(main())


def test_many_nodes_that_refuse():
    """All claims of the cluster are read every few seconds, and not once for each node that is asked."""

    async def main():
        document = of_mig_manager(rollout={"maxUnavailable": 1})
        async with cluster(most=1, document=document) as one:
            one.store.create(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
            for number in range(40):
                one.store.create(NODES, mig_manager.node(f"gpu-{number}"))
                held = claimed("gpu-0-mig-1g-10gb-0", f"gpu-{number}", pod="train")
                held["metadata"]["name"] += f"-{number}"
                one.store.create(RESOURCE_CLAIMS, held, "default")
            FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.lead("one")
            for _ in range(3):  # each is asked again, and again
                looks = len(one.server.asked("/api/v1/nodes/gpu-39"))
                await one.until(lambda: len(one.server.asked("/api/v1/nodes/gpu-39")) > looks)  # noqa: B023
            looks = len([each for each in one.server.asked("/api/v1/nodes/") if each.method == "GET"])
            assert looks > 100
            assert len(one.server.asked("/apis/resource.k8s.io/v1/resourceclaims")) < looks / 4
            assert one.cordoned == set()

    asyncio.run(main())


@pytest.mark.parametrize("well", [0, 1, 2])
def test_conflicts_at_one_node(well, caplog):
    """At the cordon, at the write of the layout, or at the end: the node costs few requests, which is logged once; then the rollout goes on.
    One that has not begun has the reason in the status."""
    caplog.set_level("INFO", "tessera.controller.layouts")
    path, clock = "/api/v1/nodes/gpu-0", FastClock()
    asked, writes = list[tuple[float, bool]](), list[float]()

    def intercept(request):
        if request.path != path:
            return None
        if request.method == "PATCH":
            writes.append(clock.now())
        refused = request.method == "PATCH" and well < len(writes) <= well + 5
        asked.append((clock.now(), refused))
        return refusal(409, "the object has been modified") if refused else None

    async def main():
        rollout = {"timeout": "60m", "drainTimeout": "60m"}
        async with cluster("gpu-0", document=layout(rollout=rollout)) as one:
            one.server.intercept = intercept
            one.lead("one")
            if well == 0:
                await one.until(lambda: CHANGES_ALL_THE_TIME in str(one.status().get("nodes")))
            await one.until(lambda: one.condition("Ready")[0] == "True")
            assert one.has_layout("gpu-0")

    asyncio.run(main())
    first = next(number for number, (_, refused) in enumerate(asked) if refused)
    times = [time - asked[first - 1][0] for time, _ in asked[first - 1 :]]
    again = next(time for time in times[10:] if time >= 60.0)
    assert (sum(time < 60.0 for time in times), again >= 120.0) == (10, True)
    told = [one for one in caplog.messages if CHANGES_ALL_THE_TIME in one]
    assert len(told) == 1


def test_a_config_map_that_changes_all_the_time():
    """It is written to a few times, then after minutes; when the conflicts end, the node gets its layout."""
    clock, writes = FastClock(), list[float]()

    def intercept(request):
        if request.method != "PUT" or request.path != f"{CONFIG_MAPS}/own-config":
            return None
        writes.append(clock.now())
        return refusal(409, "the object has been modified") if len(writes) <= 5 else None

    async def main():
        async with cluster(document=of_mig_manager(rollout={"timeout": "60m"})) as one:
            one.store.create(NODES, mig_manager.node("gpu-0"))
            FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.server.intercept = intercept
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[0] == "True")

    asyncio.run(main())
    assert writes[5] - writes[4] >= 120.0


def test_conflicts_of_a_mig_layout_that_is_gone(monkeypatch):
    """Nothing is remembered for long of a MigLayout that was deleted while its status met conflicts."""
    made = list[Retries]()

    def make_retries(*given):
        made.append(Retries(*given))
        return made[-1]

    monkeypatch.setattr("tessera.controller.layouts.reconciler.Retries", make_retries)

    async def main():
        async with cluster(document=layout()) as one:
            uid = one.store.get(MIG_LAYOUTS, "inference").document["metadata"]["uid"]
            one.server.intercept = lambda request: (
                refusal(409, "it was modified") if request.method == "PATCH" else None
            )
            one.lead("one")
            await one.until(lambda: made and made[0].has_failed(uid))
            one.store.delete(MIG_LAYOUTS, "inference")
            await one.until(lambda: not made[0].has_failed(uid))

    asyncio.run(main())
