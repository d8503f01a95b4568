"""Numbers of GPUs that are none are refused before anything is computed with them."""

import pytest

from tessera.core.admission.decision import decide
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION
from tessera.core.admission.outcome import Allowed, Denied
from tests.build import container, node, offers, pod, policy

NODE = node("n", **{"1g.10gb": 7, "gpu": 8})
RULES = policy(
    "injection: {resourceMap: {V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 4}]},"
    " amd.com/gpu: {resourceList: [{name: cpu, coefficient: 4}]}}}}"
)
V100 = {GPU_TYPE_ANNOTATION: "V100"}
ENDING = "; GPUs are asked for in whole numbers from 0 to 999999"


@pytest.mark.parametrize(
    ("asker", "what"),
    [
        (pod(container(gpu=-1), annotations=V100), "container main asks for -1 of nvidia.com/gpu"),
        (pod(container(gpu=5), container("b", gpu=-4)), "container b asks for -4 of nvidia.com/gpu"),
        (pod(container(**{"2g.20gb": "500m"})), "container main asks for 500m of nvidia.com/mig-2g.20gb"),
        (pod(container(gpu="1e30")), "container main asks for 1e30 of nvidia.com/gpu"),
        (
            pod(container(gpu="1" + "0" * 60)),
            "container main asks for 10000000000000000000… of nvidia.com/gpu",
        ),
        (pod(container(gpu=1_000_000)), "container main asks for 1M of nvidia.com/gpu"),
        (pod(container(limits={"gpu": "-1"})), "container main asks for -1 of nvidia.com/gpu"),
        (
            pod(container(), init=(container("i", **{"nvidia.com/gpu.shared": "0.5"}),)),
            "container i asks for 500m of nvidia.com/gpu.shared",
        ),
        (
            pod(container(**{"amd.com/gpu": -2}), annotations=V100),
            "container main asks for -2 of amd.com/gpu",
        ),
    ],
)
def test_odd_numbers_of_gpus(asker, what):
    """Negative, fractional and absurd quantities are refused in one sentence, never added up or shared out."""
    assert decide(asker, offers(NODE), RULES) == Denied("bad_quantity", what + ENDING)


def test_other_resources_are_left_to_kubernetes():
    """What is no GPU here is the API server's business."""
    assert isinstance(decide(pod(container(**{"example.com/x": -2})), offers(NODE), RULES), Allowed)
