"""What a pod asks for, as an extended resource or by the bridge's claim."""

import pytest

from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, template_name
from tessera.core.requests.asking import alternatives_of, asked
from tessera.core.requests.record import RECORD_ANNOTATION
from tests.build import container, pod, resource

TWO = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
BOTH = TWO + ";2*3g.30gb=3g.30gb/tessera-any,2g.20gb/tessera-any"


def bridged(text=TWO, *, node="", record="", template=None):
    annotations = {ALTERNATIVES_ANNOTATION: text, **({RECORD_ANNOTATION: record} if record else {})}
    claims = (template_name(text) if template is None else template,)
    return pod(container(cpu=1), annotations=annotations, claims=claims, node_name=node)


@pytest.mark.parametrize(
    ("one", "asks"),
    [
        (pod(container(cpu=1, **{"2g.20gb": 2})), {"cpu": "1", "2g.20gb": "2"}),
        (bridged(), {"cpu": "1", "2g.20gb": "1"}),
        (bridged(BOTH), {"cpu": "1", "2g.20gb": "1", "3g.30gb": "2"}),
        # with a node, what it was given: what it asked for, unless its record says otherwise
        (bridged(node="a"), {"cpu": "1", "2g.20gb": "1"}),
        (bridged(node="a", record="2g.20gb->1g.10gb"), {"cpu": "1", "1g.10gb": "1"}),
        (bridged(BOTH, node="a", record="3g.30gb->2g.20gb"), {"cpu": "1", "2g.20gb": "3"}),
        # a record of a pod without a node is of an allocation that came to nothing
        (bridged(record="2g.20gb->1g.10gb"), {"cpu": "1", "2g.20gb": "1"}),
        # what is not the bridge's work is no claim for anything that is known
        (bridged(template="another"), {"cpu": "1"}),
        (bridged("2 of these"), {"cpu": "1"}),
        (pod(container(cpu=1), claims=("mine",)), {"cpu": "1"}),
    ],
)  # fmt: skip
def test_what_a_pod_asks_for(one, asks):
    """A bridged pod asks for what it asked for first; when it has a node, it has what its record says."""
    assert {name: str(amount) for name, amount in asked(one).items()} == {
        resource(name): amount for name, amount in asks.items()
    }


def test_alternatives():
    """The alternatives are those of the pod's own template, and none are another's."""
    assert str(alternatives_of(bridged())) == TWO
    assert alternatives_of(bridged(template="another")) is None
    assert alternatives_of(pod(container(gpu=1))) is None
