"""Whose end makes room on nodes of mig-manager: what is called free is free, whichever devices pods hold."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.profile import MigProfile
from tessera.inventory.defragment import defragment_inventory, make_room
from tessera.kube.object_files import objects_in_documents
from tessera.protocol.mig.nodes import encode_mapping, gpu_labels, mapping_of
from tessera.solver import highs
from tests.build import node_document
from tests.inventory.objects import pod

A30 = product_named("A30")


@st.composite
def used_nodes(draw):
    """A node's layout, and pods that hold devices of it, each of one resource."""
    cards = []
    for _ in range(draw(st.integers(1, 3))):
        wishes = draw(st.lists(st.sampled_from(A30.profiles), max_size=3))
        instances = place(A30, map(Wish, wishes)) or ()
        cards.append(CardLayout(A30, mig_enabled=bool(instances) or draw(st.booleans()), instances=instances))
    layout = NodeLayout(tuple(cards))
    pods = []
    for resource, number in layout.resources().items():
        pods += [resource] * draw(st.integers(0, number))
    return layout, pods


def as_object(layout: NodeLayout) -> dict[str, Any]:
    labels = gpu_labels(layout, Strategy.MIXED) | {"nvidia.com/gpu.deploy.mig-manager": "true"}
    annotations = {"run.ai/mig-mapping": encode_mapping(mapping_of(layout, "gpu-0"))}
    has = {"cpu": 64, "pods": 110, **layout.resources()}
    return node_document("gpu-0", has, capacity=has, labels=labels, annotations=annotations)


@given(used_nodes(), st.sampled_from(A30.profiles), st.integers(1, 4), st.randoms(use_true_random=False))
def test_what_is_called_free_is_free_in_every_way(node, profile, number, random):
    """However devices were dealt to pods: once those end that must, no other pod is on a card that is to be cut."""
    layout, resources = node
    names = [f"p{index}" for index in range(len(resources))]
    inventory = defragment_inventory()
    pods = [pod(name, "gpu-0", resource) for name, resource in zip(names, resources, strict=True)]
    inventory.take(objects_in_documents([as_object(layout), *pods], "test"))
    found = make_room({profile: number}, inventory, highs)
    ended = {name.removeprefix("default/") for name in found.advice.pods}
    cleared = {found.places[one.card][1] for one in found.advice.cleared}
    slots = {resource: [*some] for resource, some in layout.slots().items()}
    for some in slots.values():
        random.shuffle(some)
    for name, resource in zip(names, resources, strict=True):
        slot = slots[resource].pop()
        if name not in ended:
            assert slot.card not in cleared
    # room on cards that are cut, and devices that are free on the others, are all that is promised
    made = sum((Counter(one.room) for one in found.advice.cleared), Counter[MigProfile]())
    free = Counter(
        s.instance.profile for some in slots.values() for s in some if s.instance and s.card not in cleared
    )
    assert found.advice.served.get(profile, 0) <= made[profile] + free[profile]
