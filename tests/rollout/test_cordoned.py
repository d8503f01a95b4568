"""`mig apply --cordon` and `--drain`: rollouts on nodes that are cordoned meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.kube.rest.client import Client
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, record_of
from tessera.rollout.alone import Alone
from tessera.rollout.carrying import Carrier
from tessera.rollout.change import Wanted, WhenInUse
from tessera.rollout.changes import changes_of
from tessera.rollout.rollout import Cordon, Rollout
from tessera.rollout.step import Attempt, begin
from tessera.rollout.values import How
from tessera.serving.http_messages import HangUp
from tessera.simulation.control_plane.kinds import NODES, PODS
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node, pod
from tests.kube.apiserver import status
from tests.kube.served import served  # noqa: F401 # a fixture
from tests.rollout import mig_manager
from tests.rollout.conftest import BIG, ME
from tests.rollout.mig_manager import FakeMigManager
from tests.rollout.plugin import MERGE, FakePlugin

ONES = "1g.10gb=2"


@pytest.fixture
def roll_out(served, monkeypatch):  # noqa: F811 # the fixture
    """Gives a layout to nodes of three that answer, each cordoned meanwhile."""
    served.add(*(node(f"gpu-{number}", BIG, "NVIDIA-H200", layout=LAYOUT) for number in range(3)))
    monkeypatch.setattr(Attempt, "settles", 0.02)
    monkeypatch.setattr(Alone, "polls", 0.02)
    monkeypatch.setattr(Carrier, "settles", 0.02)

    def call(
        *names,
        drain=False,
        seconds=20.0,
        timeout=20.0,
        when=WhenInUse.WAIT,
        interrupted=None,
        left=None,
        cordon=True,
    ):
        told = runner.told = list[str]()

        async def work():
            async with Client(served.server.cluster) as client:
                wanted = Wanted(mig.read(ONES), None, label=False, text=ONES)
                found = await changes_of(client, wanted, names, LabelSelector.parse(""))
                if left is not None:
                    await left(client, found.changes[0])
                rollout = Rollout(
                    client,
                    owner=ME,
                    at_once=1,
                    timeout=timeout,
                    report=told.append,
                    when_in_use=when,
                    cordon=Cordon(drain, seconds) if cordon else None,
                )
                running = asyncio.ensure_future(rollout.run(found))
                while interrupted and not interrupted():
                    await asyncio.sleep(0.01)
                if interrupted:
                    running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                return rollout

        rollout = asyncio.run(work())
        ended = {name: (str(one.result), one.reason) for name, one in rollout.outcomes.items()}
        return SimpleNamespace(ended=ended, told=told)

    runner: Any = call
    runner.cluster, runner.plugin = served, FakePlugin(served)
    return runner


def cordoned(roll_out, name):
    return bool(roll_out.cluster.node(name)["spec"].get("unschedulable"))


def annotations(roll_out, name):
    return roll_out.cluster.node(name)["metadata"]["annotations"]


def test_cordoned_while_it_changes(roll_out):
    """A node is cordoned before it is written to, and uncordoned when it shows its layout; nothing is left on it."""
    seen = []
    store = roll_out.cluster.server.store
    roll_out.plugin.on_layout = lambda name, _: seen.append(store.get(NODES, name).document["spec"])
    assert roll_out("gpu-0", "gpu-1").ended == {"gpu-0": ("done", ""), "gpu-1": ("done", "")}
    assert seen == [{"unschedulable": True}] * 2
    assert not cordoned(roll_out, "gpu-0")
    assert ROLLOUT not in annotations(roll_out, "gpu-0")
    assert roll_out.told[0] == "gpu-0: cordoned"
    assert "gpu-0: run.ai/mig.config written" in roll_out.told
    assert roll_out("gpu-0").ended == {"gpu-0": ("done", "")}, "again: there is nothing to do"
    assert roll_out.told == []


def test_drain(roll_out):
    """Pods that hold devices which go are evicted, as soon as their PodDisruptionBudget allows it; who is waited for is told."""
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "2g.20gb"), pod("other", "gpu-0", MIG + "1g.10gb"))
    left = [3]

    def refuse(request):
        if request.path.endswith("/eviction") and left[0]:
            left[0] -= 1
            return status(StatusError(429, "TooManyRequests", "the budget train needs 1 healthy pods"))
        return None

    roll_out.cluster.server.intercept = refuse
    assert roll_out("gpu-0", drain=True).ended == {"gpu-0": ("done", "")}
    waited = "gpu-0: waiting for pods that hold devices which go: default/train (1 × 2g.20gb)"
    assert waited in roll_out.told
    assert f"{waited}; default/train is not evicted: the budget train needs 1 healthy pods" in roll_out.told
    pods = roll_out.cluster.call(lambda: roll_out.cluster.server.store.list(PODS))
    assert [one.key[1] for one in pods] == ["other"]


def test_an_eviction_that_always_conflicts(roll_out):
    """An eviction that the API server answers with 409 each time is asked for five times, and then not again for minutes."""
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "2g.20gb"))
    asked = []

    def refuse(request):
        if request.path.endswith("/eviction"):
            asked.append(request.path)
            return status(StatusError(409, "Conflict", "the object has been modified"))
        return None

    roll_out.cluster.server.intercept = refuse
    result, reason = roll_out("gpu-0", drain=True, seconds=1.0).ended["gpu-0"]
    assert result == "refused"
    assert len(asked) == 5
    assert reason.endswith("default/train is not evicted: it changed 5 times in a row meanwhile")


@pytest.mark.parametrize("cordon", [False, True])
def test_two_commands_at_once(roll_out, cordon):
    """Two commands that give a node the same layout see it through together: neither takes the other for a stranger."""
    ended = []

    async def work():
        async with Client(roll_out.cluster.server.cluster) as client:

            async def apply(found):
                rollout = Rollout(
                    client,
                    owner=ME,
                    at_once=1,
                    timeout=20.0,
                    report=list[str]().append,
                    cordon=Cordon() if cordon else None,
                )
                await rollout.run(found)
                ended.append((str(rollout.outcomes["gpu-0"].result), rollout.outcomes["gpu-0"].reason))

            wanted = Wanted(mig.read(ONES), None, label=False, text=ONES)
            both = [await changes_of(client, wanted, ["gpu-0"], LabelSelector.parse("")) for _ in range(2)]
            await asyncio.gather(*map(apply, both))

    asyncio.run(work())
    assert ended == [("done", "")] * 2
    assert ROLLOUT not in annotations(roll_out, "gpu-0")
    assert not cordoned(roll_out, "gpu-0")


def test_a_pod_of_a_daemonset_is_not_evicted(roll_out):
    """Its DaemonSet would make it again on the cordoned node: it is waited for, and named."""
    train = pod("train", "gpu-0", MIG + "2g.20gb")
    owner = {"kind": "DaemonSet", "name": "train", "uid": "1", "apiVersion": "apps/v1", "controller": True}
    train["metadata"]["ownerReferences"] = [owner]
    roll_out.cluster.add(train)
    result, reason = roll_out("gpu-0", drain=True, seconds=0.5).ended["gpu-0"]
    assert result == "refused"
    assert reason.endswith("default/train is not evicted: DaemonSet train would make it again here")
    assert len(roll_out.cluster.call(lambda: roll_out.cluster.server.store.list(PODS))) == 1


def test_a_static_pod_is_not_evicted(roll_out):
    """What can be evicted is its mirror only: the kubelet runs it on, with its devices, so the node is not cut."""
    train = pod("train", "gpu-0", MIG + "2g.20gb")
    owner = {"kind": "Node", "name": "gpu-0", "uid": "1", "apiVersion": "v1", "controller": True}
    train["metadata"]["ownerReferences"] = [owner]
    roll_out.cluster.add(train)
    result, reason = roll_out("gpu-0", drain=True, seconds=0.5).ended["gpu-0"]
    assert result == "refused"
    assert reason.endswith("default/train is not evicted: it is a static pod, which the kubelet runs on")
    assert len(roll_out.cluster.call(lambda: roll_out.cluster.server.store.list(PODS))) == 1


def test_pods_that_do_not_let_go(roll_out):
    """Without a drain they are waited for; after its time the node is uncordoned as it was, and the next node has its turn."""
    roll_out.cluster.add(pod("train", "gpu-0", MIG + "2g.20gb"))
    found = roll_out("gpu-0", "gpu-1", seconds=0.3)
    text = "pods still hold devices that would go: default/train (1 × 2g.20gb)"
    assert found.ended == {"gpu-0": ("refused", text), "gpu-1": ("done", "")}
    assert not cordoned(roll_out, "gpu-0")
    found = roll_out("gpu-0", when=WhenInUse.REFUSE)
    assert found.ended["gpu-0"][0] == "refused"
    assert found.told == [], "and it is not even cordoned"


def test_refused(roll_out):
    """A layout that a node refuses is put back, the node is uncordoned, and no further node begins."""
    roll_out.plugin.refuses = lambda name, text: "no room" if "1g.10gb" in text else ""
    found = roll_out("gpu-0", "gpu-1")
    assert found.ended == {
        "gpu-0": ("put back", "no room; the old layout is back"),
        "gpu-1": ("not begun", ""),
    }
    assert (annotations(roll_out, "gpu-0")["run.ai/mig.config"], cordoned(roll_out, "gpu-0")) == (
        LAYOUT,
        False,
    )


def test_interrupted(roll_out):
    """What is under way is put back, and the node uncordoned; a node that only waits for pods is uncordoned as it was."""
    roll_out.plugin.absent.add("gpu-0")
    found = roll_out("gpu-0", interrupted=lambda: "gpu-0: run.ai/mig.config written" in roll_out.told)
    assert found.ended == {"gpu-0": ("put back", "interrupted; the old layout is back")}
    assert (annotations(roll_out, "gpu-0")["run.ai/mig.config"], cordoned(roll_out, "gpu-0")) == (
        LAYOUT,
        False,
    )
    roll_out.cluster.add(pod("train", "gpu-1", MIG + "2g.20gb"))
    found = roll_out("gpu-1", interrupted=lambda: any("waiting for pods" in one for one in roll_out.told))
    assert found.ended == {"gpu-1": ("failed", "interrupted")}
    assert not cordoned(roll_out, "gpu-1")


@pytest.mark.parametrize("cordon", [False, True])
def test_interrupted_twice(roll_out, cordon):
    """Who does not wait for the old layout is told how the node is left; the same command goes on."""
    roll_out.plugin.absent.add("gpu-0")
    asked = list[str]()

    async def work():
        async with Client(roll_out.cluster.server.cluster) as client:
            wanted = Wanted(mig.read(ONES), None, label=False, text=ONES)
            found = await changes_of(client, wanted, ["gpu-0"], LabelSelector.parse(""))
            how = Cordon() if cordon else None
            rollout = Rollout(client, owner=ME, at_once=1, timeout=20.0, report=asked.append, cordon=how)
            running = asyncio.ensure_future(rollout.run(found))
            while "gpu-0: run.ai/mig.config written" not in asked:
                await asyncio.sleep(0.01)
            roll_out.cluster.change_node("gpu-0", lambda one: one["status"].update(allocatable={}))
            running.cancel()
            while "gpu-0: interrupted; the old layout is written again" not in asked:
                await asyncio.sleep(0.01)
            for task in asyncio.all_tasks() - {
                asyncio.current_task()
            }:  # as asyncio.run does on the second ^C
                task.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return rollout.outcomes["gpu-0"]

    outcome = asyncio.run(work())
    assert outcome.reason.startswith("interrupted; the rollout has not ended")
    assert "the same command goes on with it" in outcome.reason
    roll_out.plugin.absent.clear()
    roll_out.cluster.call(lambda: roll_out.plugin.answer("gpu-0"))
    roll_out("gpu-0", cordon=cordon)
    assert ROLLOUT not in annotations(roll_out, "gpu-0")
    assert not cordoned(roll_out, "gpu-0")


def test_left_by_a_command_that_was_killed(roll_out):
    """The same command again continues it, and uncordons the node at the end."""

    async def leave(client, change):
        carrier = Carrier(client)
        seen: Any = await carrier.look("gpu-0")
        assert await carrier.write(seen, begin(seen, change, Owner("bob@host"), How(), client.clock.wall()))

    assert roll_out("gpu-0", left=leave).ended == {"gpu-0": ("done", "")}
    assert not cordoned(roll_out, "gpu-0")
    assert "gpu-0: cordoned" not in roll_out.told


def test_another_rollout_on_the_node(roll_out):
    """A node that a MigLayout changes now is left alone."""

    async def leave(client, change):
        carrier = Carrier(client)
        seen: Any = await carrier.look("gpu-0")
        owner = Owner("inference", "uid-1")
        assert await carrier.write(seen, begin(seen, change, owner, How(), client.clock.wall()))

    assert roll_out("gpu-0", left=leave).ended == {"gpu-0": ("failed", "MigLayout inference is changing it")}
    record = record_of(annotations(roll_out, "gpu-0"))
    assert record is not None
    assert record.owner.uid == "uid-1"


@pytest.fixture
def operated(served, monkeypatch):  # noqa: F811 # the fixture
    """A node that mig-manager cuts gets a layout that has no configuration yet, and is cordoned meanwhile."""
    served.add(mig_manager.node("gpu-0"))
    for name, seconds in {"settles": 0.02, "pause": 0.05, "between": 1.0}.items():
        monkeypatch.setattr(Attempt, name, seconds)
    monkeypatch.setattr(Alone, "polls", 0.02)
    monkeypatch.setattr(Carrier, "settles", 0.02)

    def call(timeout=20.0):
        told = list[str]()

        async def work():
            async with Client(served.server.cluster) as client:
                wanted = Wanted(mig.read("3g.40gb=2"), None, label=False, text="3g.40gb=2")
                found = await changes_of(client, wanted, ["gpu-0"], LabelSelector.parse(""))
                rollout = Rollout(
                    client, owner=ME, at_once=1, timeout=timeout, report=told.append, cordon=Cordon()
                )
                await rollout.run(found)
                return rollout.outcomes["gpu-0"]

        outcome = asyncio.run(work())
        return SimpleNamespace(ended=(str(outcome.result), outcome.reason), told=told)

    runner: Any = call
    runner.cluster, runner.manager = served, FakeMigManager(served)
    return runner


def test_fault_52_a_configuration_that_arrives_late(operated):
    """mig-manager's `failed` for a configuration that it cannot know yet is tried again, on the cordoned node; nothing is left of it."""
    left = [2]

    def arrives():
        left[0] -= len([name for _, name in operated.manager.seen if name.startswith("tessera-")]) > 1
        return left[0] <= 0

    operated.manager.arrives = arrives
    found = operated()
    assert found.ended == ("done", "")
    assert any("It may not have tessera-" in one for one in found.told)
    assert "gpu-0: nvidia.com/mig.config written again" in found.told
    assert not cordoned(operated, "gpu-0")
    assert ROLLOUT not in (operated.cluster.node("gpu-0")["metadata"].get("annotations") or {})


def test_fault_52_mig_manager_fails(operated):
    """The old configuration is put back, DaemonSets that mig-manager left paused come back, and the node is uncordoned."""
    operated.manager.succeeded = True
    operated.manager.fails = lambda node, config: config.startswith("tessera-")
    found = operated()
    reason = "mig-manager reports failed; its log says why; the old layout is back"
    assert found.ended == ("put back", reason)
    labels = operated.cluster.node("gpu-0")["metadata"]["labels"]
    assert labels["nvidia.com/mig.config"] == "all-1g.10gb"
    assert labels["nvidia.com/gpu.deploy.device-plugin"] == "true"
    assert not cordoned(operated, "gpu-0")


def test_a_node_that_a_mig_layout_keeps_is_refused(roll_out):
    """Nobody but its MigLayout changes such a node; the oldest of several is named."""
    keeps = {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
        "layouts": [{"perCard": {"1g.10gb": 2}}],
    }
    document = {"apiVersion": "tessera.dev/v1alpha1", "kind": "MigLayout", "metadata": {"name": "inference"}}
    roll_out.cluster.add({**document, "spec": keeps})
    reason = "MigLayout inference keeps its layout: change that (kubectl edit miglayout inference)"
    assert roll_out("gpu-0").ended == {"gpu-0": ("refused", reason)}
    assert roll_out.told == []


@pytest.mark.parametrize("begun", [True, False])
def test_left_and_called_otherwise(roll_out, begun):
    """A rollout that was left is continued as it was begun, with a cordon or without, whatever the command says now."""
    seen = []
    store = roll_out.cluster.server.store

    async def leave(client, change):
        carrier = Carrier(client)
        one: Any = await carrier.look("gpu-0")
        how = How(cordons=begun, waits=begun)
        assert await carrier.write(one, begin(one, change, Owner("bob@host"), how, client.clock.wall()))

    roll_out.plugin.on_layout = lambda name, _: seen.append(
        bool(store.get(NODES, name).document["spec"].get("unschedulable"))
    )
    assert roll_out("gpu-0", left=leave, cordon=not begun).ended == {"gpu-0": ("done", "")}
    assert seen == [begun]
    assert not cordoned(roll_out, "gpu-0")
    assert ROLLOUT not in annotations(roll_out, "gpu-0")


@pytest.mark.parametrize(("fields", "uncordon"), [("", " and uncordon it"), (',"cordons":false', "")])
def test_another_layout_was_left_on_the_way(roll_out, fields, uncordon):
    """A node that another command changes to another layout is left alone, and what to do where that was killed is named."""
    record = '{"owner":{"name":"bob@host"},"phase":"Written","since":1,"until":2,"timeout":3,"after":"x"'
    roll_out.cluster.change_node(
        "gpu-0", lambda one: one["metadata"]["annotations"].update({ROLLOUT: f"{record}{fields}}}"})
    )
    before = roll_out.cluster.node("gpu-0")
    reason = (
        "tessera mig apply (bob@host) is changing it; if that was killed, call it again, "
        f"or remove the node's annotation tessera.dev/rollout{uncordon}"
    )
    assert roll_out("gpu-0", cordon=False).ended == {"gpu-0": ("failed", reason)}
    reason = "a rollout of it has not ended (tessera mig apply (bob@host)): continue it without --no-wait"
    found = roll_out("gpu-0", cordon=False, timeout=None)
    assert found.ended == {"gpu-0": ("refused", reason)}
    assert roll_out.cluster.node("gpu-0") == before


@pytest.mark.parametrize("method", ["GET", "PATCH"])
@pytest.mark.parametrize("which", range(1, 7))
def test_a_call_that_fails(roll_out, method, which):
    """Once the node may be cordoned, a call that fails is tried again: the node gets its layout, and is uncordoned."""
    asked = []
    first = which + (2 if method == "GET" else 0)  # two reads come before anything is written

    def fail(request):
        if request.method != method or request.path != "/api/v1/nodes/gpu-0":
            return None
        asked.append(request)
        return broken() if len(asked) == first else None

    roll_out.cluster.server.intercept = fail
    assert roll_out("gpu-0").ended == {"gpu-0": ("done", "")}
    assert not cordoned(roll_out, "gpu-0")


@pytest.mark.parametrize("which", range(1, 4))
def test_an_answer_that_is_lost(roll_out, which):
    """A write goes through and its answer does not come: the rollout goes on from what is stored, and the node is done."""
    store, asked = roll_out.cluster.server.store, []

    def lost(request):
        if request.method == "PATCH" and request.path == "/api/v1/nodes/gpu-0":
            asked.append(request)
            if len(asked) == which:
                now = store.get(NODES, "gpu-0").document
                store.update(NODES, "gpu-0", apply_patch(MERGE, now, msgspec.json.decode(request.body)))
                raise HangUp

    roll_out.cluster.server.intercept = lost
    assert roll_out("gpu-0").ended == {"gpu-0": ("done", "")}
    assert not cordoned(roll_out, "gpu-0")
    assert len(asked) >= which


def broken():
    return status(StatusError(500, "", "it is broken"))


def test_a_layout_that_cannot_be_written(roll_out, monkeypatch):
    """A policy refuses the layout, not the cordon: after a while the node is uncordoned as it was."""
    monkeypatch.setattr(Alone, "patience", 0.2)
    roll_out.cluster.server.intercept = lambda request: (
        broken() if request.method == "PATCH" and b'"run.ai/mig.config":' in request.body else None
    )
    assert roll_out("gpu-0").ended == {"gpu-0": ("failed", "the API server answered 500: it is broken")}
    assert not cordoned(roll_out, "gpu-0")
    assert ROLLOUT not in annotations(roll_out, "gpu-0")


def test_an_api_server_that_does_not_come_back(roll_out, monkeypatch):
    """How the node is left is said, and the same command goes on with it."""
    monkeypatch.setattr(Alone, "patience", 0.2)
    server = roll_out.cluster.server

    def fail(request):
        there = server.store.get(NODES, "gpu-0").document
        return broken() if there["spec"].get("unschedulable") and "gpu-0" in request.path else None

    server.intercept = fail
    left = "the rollout has not ended, and the node may be cordoned: the same command goes on with it"
    assert roll_out("gpu-0").ended == {
        "gpu-0": ("failed", f"the API server answered 500: it is broken; {left}")
    }
    assert cordoned(roll_out, "gpu-0")
    server.intercept = lambda request: None
    assert roll_out("gpu-0").ended == {"gpu-0": ("done", "")}
    assert not cordoned(roll_out, "gpu-0")
