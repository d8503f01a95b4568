"""What is wrong about a pod's ending, where its devices come from a claim."""

import pytest

from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.simulation.stories.pods import Runs, claimed_counts, pod_wrong
from tessera.simulation.stories.table import ONE, TWO

POD = {
    "metadata": {
        "annotations": {
            ALTERNATIVES_ANNOTATION: "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any;2*1g.10gb=1g.10gb/a"
        }
    },
    "spec": {
        "nodeName": "n",
        "containers": [
            {"name": "a", "resources": {"claims": [{"name": "tessera-gpu", "request": "gpu-0"}]}},
            {"name": "b", "resources": {"claims": [{"name": "tessera-gpu", "request": "gpu-1"}]}},
            {"name": "c"},
        ],
    },
    "status": {"phase": "Pending"},
}
GIVEN = ("gpu-0/1g-10gb", "gpu-1/1g-10gb", "gpu-1/1g-10gb")


def test_what_containers_have():
    """Each has the devices of the requests that it names."""
    assert claimed_counts(POD, GIVEN) == {"a": {ONE: 1}, "b": {ONE: 2}, "c": {}}


@pytest.mark.parametrize(
    ("holds", "wrong"),
    [
        ({"a": {ONE: 1}, "b": {ONE: 2}, "c": {}}, ()),
        ({"a": {TWO: 1}}, (f"expected container a to hold {{'{TWO}': 1}}, but it holds {{'{ONE}': 1}}",)),
        ({"b": {ONE: 1}}, (f"expected container b to hold {{'{ONE}': 1}}, but it holds {{'{ONE}': 2}}",)),
    ],
)
def test_devices_of_claims(holds, wrong):
    """They are compared without kubelets, too: the scheduler has written them down."""
    claimed = claimed_counts(POD, GIVEN)
    assert pod_wrong(Runs("n", "", holds), POD, claimed, kubelets=False) == wrong
