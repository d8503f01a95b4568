"""Nodes from a short YAML."""

import pytest

from tessera.core.errors import InvalidInputs
from tessera.simulation.node_descriptions import known_nodes, parse
from tessera.simulation.stories.story import Nodes
from tessera.simulation.stories.table import STORIES


def test_a_node():
    """What is left out has a default; a layout is the annotation."""
    text = """
    a:
      cpu: 8
      others: {nvidia.com/shm: 1Gi}
      taints: [dedicated=gpu:NoSchedule]
      layout: 1g.10gb=7
      devices: {simulated: {product: H200-70GB, cards: 2}}
    """
    (node,) = parse(text).values()
    assert node.resources == {"cpu": "8", "memory": "512Gi", "pods": "110", "nvidia.com/shm": "1Gi"}
    assert node.taints == ({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},)
    assert node.annotations == {"run.ai/mig.config": "1g.10gb=7"}
    assert node.devices is not None
    assert node.devices.simulated is not None
    assert len(node.devices.simulated.cards) == 2
    assert not node.dra


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: {cpus: 8}", 'a.cpus: unknown field; did you mean "cpu"?'),
        ("a: {cpu: many}", 'a.cpu: "many" is not a Kubernetes quantity such as 2, 500m or 8Gi'),
        ("a: {taints: [x]}", 'a.taints[0]: "x" is no taint such as dedicated=gpu:NoSchedule'),
        ("a: {devices: {simulated: {cards: 2}}}", "a.devices: simulated.product: missing"),
        ("a: {dra: maybe}", 'a.dra: "maybe" is neither true nor false'),
        ("[]", "a list is not a map"),
    ],
)
def test_complaints(text, complaint):
    """Every mistake is named with its place."""
    with pytest.raises(InvalidInputs) as refused:
        parse(text)
    assert complaint in str(refused.value)


def test_stories_are_told_on_known_nodes():
    """Every node of every story is in the file."""
    known = known_nodes()
    steps = [step for story in STORIES for step in story.steps if isinstance(step, Nodes)]
    assert {name for step in steps for name in step.offers} <= known.keys()
