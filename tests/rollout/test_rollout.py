"""Rollouts: a few nodes at a time, each seen to take its layout, and put back when it does not."""

import json

import msgspec
import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT, record_of
from tessera.rollout.alone import Alone
from tessera.rollout.rollout import MaxUnavailable
from tessera.serving.http_messages import HangUp
from tessera.simulation.control_plane.kinds import NODES, RESOURCE_SLICES
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError
from tests.build import GPU, MIG
from tests.inventory.objects import LAYOUT, node
from tests.kube.apiserver import status as refusal
from tests.rollout.conftest import BIG, ME
from tests.rollout.plugin import CARDS, MERGE

ONES = "1g.10gb=2"
ONES_TEXT = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb]")
ALL = ("gpu-0", "gpu-1", "gpu-2")


def written(roll_out, name):
    return roll_out.cluster.node(name)["metadata"].get("annotations", {}).get("run.ai/mig.config")


def state(roll_out, name):
    return roll_out.cluster.node(name)["metadata"]["labels"].get("nvidia.com/mig.config.state")


@pytest.mark.parametrize(("text", "of_3", "of_100"), [("1", 1, 1), ("2", 2, 2), ("67%", 2, 67), ("1%", 1, 1), ("200", 200, 200)])  # fmt: skip
def test_max_unavailable(text, of_3, of_100):
    """A number of nodes, or a part of them that is never none."""
    one = MaxUnavailable.parse(text)
    assert (one.of(3), one.of(100)) == (of_3, of_100)


@pytest.mark.parametrize("text", ["0", "0%", "101%", "many%", "", "-1", "1.5", "²", "1000000"])
def test_max_unavailable_refuses(text):
    """What is no number of nodes is told."""
    with pytest.raises(InvalidInput) as caught:
        MaxUnavailable.parse(text)
    assert str(caught.value) == f'"{text}" is not a number of nodes such as 2, nor a part of them such as 25%'


@pytest.mark.parametrize(("at_once", "expected"), [(1, 1), (2, 2), (9, 3)])
def test_so_many_at_a_time(roll_out, at_once, expected):
    """So many nodes are under way at a time, never more."""
    under_way, most = set(), 0

    def asked(name, _):
        nonlocal most
        under_way.add(name)
        most = max(most, len(under_way))
        if len(under_way) == expected or len(roll_out.plugin.seen) == 3:  # no more will come: answer them
            for one, _ in roll_out.plugin.seen:
                if one in under_way:
                    roll_out.cluster.loop.call_soon(roll_out.plugin.answer, one)

    def answered(name, _):
        under_way.discard(name)
        return ""

    roll_out.plugin.on_layout, roll_out.plugin.refuses = asked, answered
    roll_out.plugin.absent = set(ALL)
    assert roll_out(ONES, *ALL, at_once=at_once).ended == dict.fromkeys(ALL, ("done", ""))
    assert most == expected


def test_a_node_that_refuses_stops_the_rollout(roll_out):
    """It gets its old layout back with the reason told, and no further node is begun; the same again goes on."""
    roll_out.plugin.refuses = lambda name, text: (
        "card 1 is broken" if name == "gpu-1" and "1g" in text else ""
    )
    found = roll_out(ONES, *ALL)
    assert found.ended == {
        "gpu-0": ("done", ""),
        "gpu-1": ("put back", "card 1 is broken; the old layout is back"),
        "gpu-2": ("not begun", ""),
    }
    assert not found.succeeded
    assert "gpu-1: card 1 is broken; the old layout is written again" in found.told
    assert found.told[-1] == "gpu-1: Failed: card 1 is broken; the old layout is back"
    assert [written(roll_out, name) == LAYOUT for name in ALL] == [False, True, True]
    roll_out.plugin.refuses = lambda name, text: ""
    assert roll_out(ONES, *ALL).succeeded


def test_node_without_a_layout(roll_out):
    """A node that had no layout gets one; when that fails, it has none again."""
    roll_out.cluster.add(
        node("fresh", {GPU: "2"}, "NVIDIA-H200", **{"gpu.memory": "71680", "gpu.count": "2"})
    )
    roll_out.plugin.refuses = lambda name, text: "no such thing" if text else ""
    assert roll_out(ONES, "fresh").ended == {"fresh": ("put back", "no such thing; the old layout is back")}
    assert written(roll_out, "fresh") is None
    roll_out.plugin.refuses = lambda name, text: ""
    assert roll_out(ONES, "fresh").succeeded
    assert roll_out.cluster.node("fresh")["status"]["allocatable"][MIG + "1g.10gb"] == "4"


def test_pods_that_hold_the_old_devices(roll_out):
    """What a node waits for, and why, is told when it changes; how it ended names what was missing."""
    why = "3 to come after 1 × 3g.30gb, kept for ml/train"

    def answer(offers):
        def change(document):
            document["metadata"]["labels"]["nvidia.com/mig.config.state"] = "pending"
            document["metadata"]["annotations"]["nvidia.com/mig.config.reason"] = why
            document["status"]["allocatable"] = offers

        roll_out.cluster.changing_node("gpu-0", change)

    def hold(name, text):
        if text != LAYOUT:
            roll_out.plugin.absent = {"gpu-0"}
            later = roll_out.cluster.loop.call_later
            later(0.1, answer, BIG)
            later(0.3, answer, {MIG + "1g.10gb": "1"})
        else:
            roll_out.plugin.absent = set()

    roll_out.plugin.on_layout = hold
    found = roll_out(ONES, "gpu-0", timeout=1.0)
    ended = "the layout is not applied after 1 s: state pending; 1g.10gb current 1, desired 4"
    assert found.told[-4:] == [
        f"gpu-0: state pending; 1g.10gb current 0, desired 4; 2g.20gb current 4, desired 0; 3g.30gb current 2, desired 0: {why}",
        f"gpu-0: state pending; 1g.10gb current 1, desired 4: {why}",
        f"gpu-0: {ended}; the old layout is written again",
        f"gpu-0: Failed: {ended}; the old layout is back",
    ]
    assert found.ended == {"gpu-0": ("put back", f"{ended}; the old layout is back")}


def test_a_failure_of_before_is_not_this_one(roll_out):
    """What a node said of its old layout is not taken for an answer to the new one."""

    def spoil(document):
        document["metadata"]["labels"]["nvidia.com/mig.config.state"] = "failed"
        document["metadata"]["annotations"]["nvidia.com/mig.config.reason"] = "an old story"

    roll_out.cluster.change_node("gpu-0", spoil)
    assert roll_out(ONES, "gpu-0").succeeded


def test_a_node_that_does_not_answer(roll_out):
    """A node that never shows the layout: after the timeout the old one is back, state and all."""
    roll_out.plugin.absent = {"gpu-0"}
    waits = "waiting for the node's state; 1g.10gb current 0, desired 4; 2g.20gb current 4, desired 0; 3g.30gb current 2, desired 0"
    why = f"the layout is not applied after 0.3 s: {waits}; the old layout is back"
    assert roll_out(ONES, "gpu-0", timeout=0.3).ended == {"gpu-0": ("put back", why)}
    assert (written(roll_out, "gpu-0"), state(roll_out, "gpu-0")) == (LAYOUT, "success")


def test_written_and_not_waited_for(roll_out):
    """Without waiting, writing is all."""
    roll_out.plugin.absent = {"gpu-0", "gpu-1"}
    found = roll_out(ONES, "gpu-0", "gpu-1", timeout=None)
    assert found.ended == dict.fromkeys(("gpu-0", "gpu-1"), ("written", ""))
    assert found.succeeded
    assert mig.read(written(roll_out, "gpu-1")) == mig.read(ONES_TEXT)


def test_without_a_cordon(roll_out):
    """What is under way stands on the node, which is never cordoned; nothing of it is left at the end."""
    seen = []
    store = roll_out.cluster.server.store
    roll_out.plugin.on_layout = lambda name, _: seen.append(store.get(NODES, name).document)
    assert roll_out(ONES, "gpu-0").ended == {"gpu-0": ("done", "")}
    (one,) = seen
    record = record_of(one["metadata"]["annotations"])
    assert record is not None
    assert (record.owner, record.phase, record.uncordons) == (ME, "Written", False)
    assert "unschedulable" not in one["spec"]
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"]["annotations"]


def test_nobody_asks_for_pods_that_are_not_waited_for(roll_out):
    """Where the device plugin waits itself, pods are listed to be shown and before the rollout begins, not whenever the node is looked at."""
    looks = [0]

    def intercept(request):
        looks[0] += request.path == "/api/v1/nodes/gpu-0"

    roll_out.cluster.server.intercept = intercept
    roll_out.plugin.absent = {"gpu-0"}
    roll_out(ONES, "gpu-0", timeout=0.5)
    assert looks[0] > 10
    assert len([one for one in roll_out.cluster.server.requests if one.path == "/api/v1/pods"]) == 2


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("which", range(1, 6))
@pytest.mark.parametrize("refuses", [False, True])
def test_killed_at_any_write(roll_out, monkeypatch, refuses, which, stored):
    """A command that is killed, before or after a write is stored: the same command again brings the node to the same end."""
    monkeypatch.setattr(Alone, "patience", 0.1)
    store, asked = roll_out.cluster.server.store, []
    roll_out.plugin.refuses = lambda name, text: "no" if refuses and text != LAYOUT else ""

    def kill(request):
        asked.extend([request] if request.method == "PATCH" else [])
        if stored and request.method == "PATCH" and len(asked) == which:
            now = store.get(NODES, "gpu-0").document
            store.update(NODES, "gpu-0", apply_patch(MERGE, now, msgspec.json.decode(request.body)))
        if len(asked) >= which:
            raise HangUp

    roll_out.cluster.server.intercept = kill
    roll_out(ONES, "gpu-0")
    roll_out.cluster.server.intercept = lambda request: None
    end = ("put back", "no; the old layout is back") if refuses else ("done", "")
    assert roll_out(ONES, "gpu-0").ended == {"gpu-0": end}
    assert mig.read(written(roll_out, "gpu-0")) == mig.read(LAYOUT if refuses else ONES_TEXT)
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"]["annotations"]
    assert not roll_out.cluster.node("gpu-0")["spec"].get("unschedulable")


def test_killed_long_ago(roll_out, monkeypatch):
    """The same command again gives the node the time that it says itself, and knows the layout that the node had before."""
    monkeypatch.setattr(Alone, "patience", 0.1)
    roll_out.plugin.absent = {"gpu-0"}

    def kill(request):
        if roll_out.plugin.seen:
            raise HangUp

    roll_out.cluster.server.intercept = kill
    roll_out(ONES, "gpu-0")
    age_record(roll_out, "gpu-0", 86400.0)

    roll_out.plugin.seen.clear()
    patches = []

    def lost(request):
        patches.extend([request] if request.method == "PATCH" else [])
        return (
            refusal(StatusError(500, "InternalError", "etcd is away")) if request.method == "PATCH" else None
        )

    roll_out.cluster.server.intercept = lost
    result, reason = roll_out(ONES, "gpu-0", timeout=0.3).ended["gpu-0"]
    assert (result, len(patches) > 1) == ("failed", True)
    assert reason.endswith(f"kubectl annotate node gpu-0 --overwrite run.ai/mig.config='{LAYOUT}'")

    roll_out.cluster.server.intercept = lambda request: None
    loop = roll_out.cluster.loop
    loop.call_soon_threadsafe(loop.call_later, 0.3, roll_out.plugin.answer, "gpu-0")
    assert roll_out(ONES, "gpu-0").ended == {"gpu-0": ("done", "")}


def age_record(roll_out, name, seconds):
    """Let a rollout have been left on a node so long ago."""

    def change(document):
        annotations = document["metadata"]["annotations"]
        record = msgspec.json.decode(annotations[ROLLOUT])
        annotations[ROLLOUT] = json.dumps(
            {**record, "since": record["since"] - seconds, "until": record["until"] - seconds}
        )

    roll_out.cluster.change_node(name, change)


def test_a_layout_that_was_there_before_and_is_refused(roll_out):
    """A node that asks for the layout already, and does not take it: nothing is written, so nothing is put back."""

    def spoil(document):
        document["metadata"]["labels"]["nvidia.com/mig.config.state"] = "failed"
        document["metadata"]["annotations"]["nvidia.com/mig.config.reason"] = "card 1 is broken"

    roll_out.cluster.change_node("gpu-0", spoil)
    before = roll_out.cluster.node("gpu-0")["metadata"]
    assert roll_out(LAYOUT, "gpu-0").ended == {"gpu-0": ("failed", "card 1 is broken")}
    after = roll_out.cluster.node("gpu-0")["metadata"]
    assert (after["labels"], after["annotations"]) == (before["labels"], before["annotations"])


def test_conflicts_are_tried_again(roll_out):
    """A kubelet that writes its node at the same moment does no harm."""
    left = [2]

    def intercept(request):
        if request.method == "PATCH" and left[0]:
            left[0] -= 1
            return refusal(StatusError(409, "Conflict", "the object has been modified"))
        return None

    roll_out.cluster.server.intercept = intercept
    assert roll_out(ONES, "gpu-0").succeeded
    assert left == [0]


def test_a_node_that_changes_all_the_time(roll_out):
    """Where nobody waits for it, it is given up after some conflicts in a row, and the node is as it was."""
    conflict = refusal(StatusError(409, "Conflict", "the object has been modified"))
    roll_out.cluster.server.intercept = lambda request: conflict if request.method == "PATCH" else None
    assert roll_out(ONES, "gpu-0", timeout=None).ended == {
        "gpu-0": ("failed", "the node changed 5 times while it was written to; the node is as it was")
    }


def test_another_client_wins(roll_out):
    """A layout that another client writes meanwhile is left alone, before and after ours."""
    other = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[7g.70gb]")

    def set_layout(document):
        document["metadata"]["annotations"]["run.ai/mig.config"] = other

    def overtake(name, text):
        if "1g.10gb" in text:
            roll_out.cluster.loop.call_soon(lambda: roll_out.cluster.changing_node(name, set_layout))

    roll_out.plugin.absent = {"gpu-0"}
    roll_out.plugin.on_layout = overtake
    assert roll_out(ONES, "gpu-0").ended == {
        "gpu-0": ("failed", "another client changed run.ai/mig.config meanwhile; left as it is")
    }
    assert written(roll_out, "gpu-0") == other


def test_cluster_lost_half_way(roll_out, monkeypatch):
    """When the old layout cannot be put back either, the command that does it is told; the same command again goes on."""
    monkeypatch.setattr(Alone, "patience", 0.2)

    def intercept(request):
        patches = [one for one in roll_out.cluster.server.requests if one.method == "PATCH"]
        if request.method == "PATCH" and len(patches) > 2:
            return refusal(StatusError(500, "InternalError", "etcd is away"))
        return None

    roll_out.cluster.server.intercept = intercept
    roll_out.plugin.refuses = lambda name, text: "no"
    result, reason = roll_out(ONES, "gpu-0").ended["gpu-0"]
    assert result == "failed"
    left = "the rollout has not ended: the same command goes on with it; this puts the old layout back: "
    by_hand = f"kubectl annotate node gpu-0 --overwrite run.ai/mig.config='{LAYOUT}'"
    assert reason == f"the API server answered 500 InternalError: etcd is away; {left}{by_hand}"
    roll_out.cluster.server.intercept = lambda request: None
    reason = "no; the old layout is back"
    assert roll_out(ONES, "gpu-0").ended == {"gpu-0": ("put back", reason)}
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"]["annotations"]


def test_a_node_whose_devices_dra_offers(roll_out, monkeypatch):
    """Its layout is verified by its ResourceSlices, where nothing is allocatable; a refused one is put back."""
    monkeypatch.setattr("tessera.rollout.alone.Alone.polls", 0.02)
    slices = {"metadata": {"name": "s"}, "spec": {"driver": "gpu.tessera.dev", "nodeName": "gpu-0"}}

    def offer(text):
        made = mig.read_layout(text, CARDS).resources()
        every = [resource for resource, number in made.items() for _ in range(number)]
        devices = [
            {"name": f"d{number}", "attributes": {"resource": {"string": resource}}}
            for number, resource in enumerate(every)
        ]
        return {**slices, "spec": {**slices["spec"], "devices": devices}}

    store = roll_out.cluster.server.store
    roll_out.cluster.change_node("gpu-0", lambda one: one["status"].update(allocatable={}))
    roll_out.cluster.call(lambda: store.create(RESOURCE_SLICES, offer(LAYOUT)))
    roll_out.plugin.absent.add("gpu-0")

    def answer(name, text):
        store.update(RESOURCE_SLICES, "s", offer(text))
        roll_out.cluster.loop.call_later(0.1, say, "failed" if "7g" in text else "success")

    def say(state):
        roll_out.cluster.changing_node(
            "gpu-0", lambda one: one["metadata"]["labels"].update({mig.CONFIG_STATE: state})
        )

    roll_out.plugin.on_layout = answer
    assert roll_out(ONES, "gpu-0").ended == {"gpu-0": ("done", "")}
    found = roll_out("7g.70gb=1", "gpu-0").ended["gpu-0"]
    assert (found[0], found[1].endswith("the old layout is back")) == ("put back", True)
