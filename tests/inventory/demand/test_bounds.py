"""How much of what pods ask for is looked at."""

from dataclasses import replace

import msgspec

from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Toleration
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.waiting import DemandGroup
from tessera.inventory.pending import NodeMemory
from tessera.inventory.wants import (
    MOST_GROUPS,
    MOST_OF_A_NAMESPACE,
    fair,
    most_on_a_node,
    situation,
    wanting_inventory,
)
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.nodes import gpu_node
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node, pod
from tests.rollout.machine.world import BIG

ONE = MigProfile.parse("1g.10gb")


def group(*names: str) -> DemandGroup:
    return DemandGroup(names, Pod(), {}, {ONE: 1}, waits=True)


def cluster(*pods):
    """A node, and pods that wait."""
    inventory = wanting_inventory()
    document = node("gpu-0", BIG, "NVIDIA-H200", layout=LAYOUT, pool="a")
    inventory.put(inventory.decode_node(msgspec.json.encode(document)))
    for one in pods:
        inventory.add(inventory.decode_pod(msgspec.json.encode(one)))
    return inventory


def look(inventory):
    return situation(inventory, 1.8e9, coming={}, left={}, without={}, memory=NodeMemory())


def test_few_groups_are_all_looked_at():
    """Nothing is left out where there is no need to."""
    some = [group(f"a/{number}") for number in range(MOST_OF_A_NAMESPACE)]
    assert fair(some) == some


def test_fault_64_one_namespace_leaves_room_for_the_others():
    """A namespace whose pods all ask for something else has its oldest looked at; every other namespace has its own."""
    flood = [group(f"flood/{number}") for number in range(10_000)]
    others = [group("quiet/0"), group("flood/late", "shared/0")]
    found = fair([*flood, *others])
    assert found == [*flood[:MOST_OF_A_NAMESPACE], *others]
    many = [group(f"ns-{number % 400}/{number}") for number in range(4000)]
    assert len(fair(many)) == MOST_GROUPS
    assert len({one.names[0].partition("/")[0] for one in fair(many)}) == 400


def test_fault_64_conditions_by_the_thousand_count_as_many_groups():
    """A pod has room for a hundred thousand values of node affinity, and each is compared with each node: what takes too long is not looked at, whosever it is. The
    others of its namespace are."""
    values = Requirement("host", "In", tuple(map(str, range(100_000))))
    long, many = (NodeSelectorTerm((values,)),), (NodeSelectorTerm((Requirement("a", "Exists"),)),) * 10_000
    selector = {str(number): "" for number in range(10_000)}
    tolerations = tuple(Toleration(str(number)) for number in range(10_000))
    evil = [
        Pod(required_terms=long),
        Pod(required_terms=many),
        Pod(node_selector=selector),
        Pod(tolerations=tolerations),
    ]
    some = [replace(group(f"evil/{number}"), where=one) for number, one in enumerate(evil)]
    others = [group("evil/small"), group("quiet/0")]
    assert fair([*some, *others]) == others
    usual = Pod(
        required_terms=(NodeSelectorTerm((replace(values, values=("a", "b")),)),), node_selector={"a": "b"}
    )
    plenty = [replace(group(f"a/{number}"), where=usual) for number in range(MOST_OF_A_NAMESPACE)]
    assert fair([*some, *plenty]) == plenty


def test_what_a_node_can_have_at_most():
    """Seven of the smallest on each card; none of what no card knows."""
    document = node("gpu-0", BIG, "NVIDIA-H200", layout=LAYOUT, pool="a")
    most = most_on_a_node([gpu_node(decode_node(msgspec.json.encode(document)))])
    assert [most(MigProfile.parse(one)) for one in ("1g.10gb", "7g.70gb", "1g.11gb")] == [14, 2, 0]


def test_fault_64_what_no_node_can_have_is_no_want():
    """Pods that ask for a billion devices, for a part of one, or for profiles that are none: nothing is decided for them, and the others count."""
    asked = [("1g.10gb", 1), ("1g.10gb", 10**9), ("7g.70gb", 3), *((f"1g.{n}gb", 1) for n in range(11, 41))]
    part = pod("part", "", MIG + "1g.10gb", "500m", phase="Pending")
    pods = [pod(f"p-{n}", "", MIG + one, many, phase="Pending") for n, (one, many) in enumerate(asked)]
    found = look(cluster(*pods, part))
    assert [(str(one.profile), one.number) for one in found.wants] == [("1g.10gb", 1)]
    assert found.unseen == ""


def test_fault_64_no_node_has_more_in_use_than_it_can_have():
    """A pod that names its node asks for more than a number of the API can hold, before the kubelet refuses it: no more counts than the cards can have."""
    asked = [("1g.10gb", 2**63 - 1), ("1g.10gb", 2**63 - 1), ("2g.20gb", 1), ("1g.11gb", 5)]
    pods = [pod(f"p-{n}", "gpu-0", MIG + one, many, phase="Pending") for n, (one, many) in enumerate(asked)]
    assert look(cluster(*pods)).used == {"gpu-0": {ONE: 14, MigProfile.parse("2g.20gb"): 1}}


def test_fault_64_what_is_not_looked_at_is_said():
    """How many pods do not count, and why."""
    pods = []
    for number in range(60):
        one = pod(f"p-{number}", "", MIG + "1g.10gb", phase="Pending")
        one["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{number + 1}m"
        pods.append(one)
    found = look(cluster(*pods))
    assert sum(one.number for one in found.wants) == 50
    assert found.unseen == "not counted: 10 pods in namespaces that ask for too many different things"
