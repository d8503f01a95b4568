"""Pods that wait for something else hold no device against others, and are no demand."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.kubernetes.blocked import Block
from tessera.inventory.pending import NodeMemory, Pending, pending_inventory
from tessera.inventory.wants import situation, wanting_inventory
from tessera.protocol.kubernetes.objects import moment
from tests.build import MIG
from tests.examples import examples
from tests.inventory.objects import LAYOUT, node, pod

NOW = 1.8e9
RESOURCE = MIG + "2g.20gb"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}


def waits(name, age, judged=None, resource=RESOURCE, namespace="bad", spec=None, **metadata: Any):
    """A pod that waits since `age` seconds, and that the scheduler has refused since `judged` seconds."""
    created = moment(NOW - age)
    made = pod(name, "", resource, phase="Pending", namespace=namespace, uid=name, creationTimestamp=created)
    made["metadata"] |= metadata
    made["spec"] |= spec or {}
    if judged is not None:
        made["status"]["conditions"] = [REFUSED | {"lastTransitionTime": moment(NOW - judged)}]
    return made


def runs(name="runs", age=5, resource=RESOURCE, scheduler="default-scheduler"):
    made = pod(name, "gpu-0", resource, uid=name, creationTimestamp=moment(NOW - age))
    made["spec"]["schedulerName"] = scheduler
    return made


def cluster(*pods, inventory=None):
    """A node with four idle 2g and two 3g, of which pods hold some."""
    inventory = inventory or wanting_inventory()
    document = node("gpu-0", {RESOURCE: "4", MIG + "3g.30gb": "2"}, "NVIDIA-H200", layout=LAYOUT)
    inventory.put(inventory.decode_node(msgspec.json.encode(document)))
    for one in pods:
        inventory.add(inventory.decode_pod(msgspec.json.encode(one)))
    return inventory


def look(inventory, memory, now=NOW):
    return situation(inventory, now, coming={}, left={}, without={}, memory=memory)


def wants(seen):
    return {(want.namespace, str(want.profile)): want.number for want in seen.wants}


def planned(*pods):
    pending = Pending(cluster(*pods, inventory=pending_inventory()), "", now=NOW)
    return dict(pending.blocked), [name for group in pending.waiting.free for name in group.names]


@pytest.mark.parametrize(
    ("document", "more", "blocked"),
    [
        (waits("affinity", 31, 30), (), Block.IN_REACH),
        (waits("volume", 3600, 29), (), None),
        (waits("claim", 30), (runs(),), Block.SILENT),
        (waits("claim", 30), (runs(age=40),), None),  # nobody who came later was looked at
        (waits("claim", 29), (runs(),), None),
        (waits("claim", 30), (runs(scheduler="volcano"),), None),  # the default scheduler may be away
        (waits("gates", 1, spec={"schedulingGates": [{"name": "x"}]}), (), Block.HELD),
        (waits("away", 9999), (), None),  # nobody gets a condition
        (waits("large", 9999, 9999, MIG + "1g.10gb"), (), None),  # nothing is free for it: a want
    ],
)
def test_fault_87_who_waits_for_something_else(document, more, blocked):
    """A command that looks once goes by the times of pods and conditions; who is not blocked holds what is free, as ever."""
    name = "bad/" + document["metadata"]["name"]
    found, free = planned(document, *more)
    assert found == ({name: blocked} if blocked else {})
    assert free == ([] if blocked or "large" in name else [name])


def test_people_are_told_which_pods_are_left_out():
    """Each with its reason; the demand is that of all others."""
    gates = waits("gates", 1, spec={"schedulingGates": [{"name": "x"}]})
    pods = [gates, waits("claim", 40), waits("near", 40, 40), waits("large", 1, 0, MIG + "1g.10gb"), runs()]
    pending = Pending(cluster(*pods, inventory=pending_inventory()), "", now=NOW)
    assert list(pending.words()) == [
        "pods without a node ask for 1 × 1g.10gb",
        "not planned for, since scheduling gates keep the scheduler from it: pod bad/gates",
        "not planned for, since a free device was in reach for 30 s and it did not get it: pod bad/near",
        "not planned for, since the scheduler has said nothing for 30 s and places pods that were created later: pod bad/claim",
    ]


def test_a_pod_that_is_being_deleted_holds_nothing_that_it_has_not_got():
    """A finalizer keeps it there for ever, and it never gets a node: it is neither demand, nor is anything free given to it."""
    ends = waits("ends", 1, deletionTimestamp=moment(NOW), finalizers=["x/y"])
    found, free = planned(ends)
    assert (found, free) == ({}, [])
    large = waits("ends", 1, None, MIG + "1g.10gb", deletionTimestamp=moment(NOW), finalizers=["x/y"])
    assert wants(look(cluster(large), NodeMemory())) == {}


def test_fault_88_a_crowd_does_not_hold_what_is_idle_against_the_autopilot():
    """60 pods with an affinity to nothing hold all idle slices of a card for 30 s; then the victim's pod is what counts. After 300 s they are asked again."""
    crowd = [waits(f"p{number}", 40, 40) for number in range(60)]
    inventory, memory = cluster(*crowd, waits("victim", 1, 0, MIG + "1g.10gb", "good")), NodeMemory()
    first = look(inventory, memory)
    assert wants(first)["bad", "2g.20gb"] == 56
    assert look(inventory, memory, NOW + 29).blocked == {}
    then = look(inventory, memory, NOW + 30)
    assert then.blocked == {Block.IN_REACH: 60}
    assert wants(then) == {("good", "1g.10gb"): 1}
    assert "60 pods that wait for something else" in then.unseen
    assert look(inventory, memory, NOW + 329).blocked == {Block.IN_REACH: 60}
    assert look(inventory, memory, NOW + 330).blocked == {}, "it is asked again"
    assert look(inventory, memory, NOW + 360).blocked == {Block.IN_REACH: 60}
    assert look(inventory, NodeMemory(), NOW + 361).blocked == {}, "a restart is careful"


def test_a_device_that_goes_from_pod_to_pod_was_not_in_reach():
    """One is free at each look, and each time another pod has the other three: the queue moves, and nobody in it is blocked."""
    memory = NodeMemory()
    inventory = cluster(*[waits(f"q{number}", 999, 999) for number in range(20)])
    uses = [inventory.decode_pod(msgspec.json.encode(runs(f"u{number}", 9999))) for number in range(23)]
    for use in uses[:3]:
        inventory.add(use)
    for number in range(20):
        seen = look(inventory, memory, NOW + 10 * number)
        inventory.capacity.remove(uses[number])
        inventory.add(uses[number + 3])
        assert (seen.blocked, wants(seen)) == ({}, {("bad", "2g.20gb"): 19})


def test_fault_88_pods_that_are_made_again_and_again_hold_nothing():
    """Each is younger than 30 s, and asks for other cpu: what counts is that their namespace's pods have had such a device in reach all the time."""
    memory, blocked = NodeMemory(), []
    for look_number in range(8):
        later = 10 * look_number
        crowd = [waits(f"p{look_number}-{number}", 1 - later, -later) for number in range(4)]
        for number, one in enumerate(crowd):
            one["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{100 * look_number + number}m"
        victim = waits("victim", 1, 0, MIG + "1g.10gb", "good")
        seen = look(cluster(*crowd, victim), memory, NOW + later)
        assert wants(seen) == {("good", "1g.10gb"): 1}
        blocked.append(seen.blocked.get(Block.IN_REACH, 0))
    assert blocked == [0, 0, 0, 0, 0, 0, 4, 4]


def test_what_is_being_changed_was_not_in_reach():
    """A node that is cordoned takes no pods, whatever is free on it."""
    memory, inventory = NodeMemory(), cluster(waits("a", 999, 999))
    for second in (0, 30, 60, 90):
        shut = situation(inventory, NOW + second, coming={}, left={}, without={"gpu-0": ""}, memory=memory)
        assert shut.blocked == {}
    assert look(inventory, memory, NOW + 100).blocked == {}


def test_a_silent_pod_that_the_scheduler_judges_counts_at_once():
    """Its silence was the reason."""
    memory = NodeMemory()
    silent = look(cluster(waits("a", 40, None, MIG + "1g.10gb"), runs()), memory)
    assert (silent.blocked, wants(silent)) == ({Block.SILENT: 1}, {})
    judged = look(cluster(waits("a", 40, 0, MIG + "1g.10gb"), runs()), memory)
    assert (judged.blocked, wants(judged)) == ({}, {("bad", "1g.10gb"): 1})


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.sampled_from([RESOURCE, MIG + "3g.30gb"]), st.booleans()), max_size=40),
    st.lists(st.sampled_from([RESOURCE, MIG + "3g.30gb", MIG + "1g.10gb"]), max_size=6),
)
def test_a_crowd_is_as_if_it_were_not_there(crowd, queue):
    """However many pods of one namespace wait for something else, another's wants are the same without them."""
    phantoms = [
        waits(f"p{number}", 40, 40 if judged else None, what) for number, (what, judged) in enumerate(crowd)
    ]
    honest = [waits(f"h{number}", 1, 0, what, "good") for number, what in enumerate(queue)]
    seen = []
    for pods in ([*phantoms, *honest, runs()], [*honest, runs()]):
        memory = NodeMemory()
        look(cluster(*phantoms, runs()), memory)
        after = look(cluster(*pods), memory, NOW + 30)
        seen.append(wants(after))
    assert seen[0] == seen[1]
