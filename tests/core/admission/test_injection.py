"""Injection: exact shares of what the GPUs bring with them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.admission.injection import GPU_TYPE_ANNOTATION, Injected, Refused, Untouched, inject, share
from tests.build import GPU, container, pod, policy, resource

RULES = policy(
    """
    injection:
      resourceMap:
        V100:
          nvidia.com/gpu:
            resourceList:
            - {name: cpu, coefficient: 4000, unit: m}
            - {name: memory, coefficient: 8, unit: Gi}
            - {name: nvidia.com/shm, coefficient: 1, unit: Gi}
            annotations: {networks: eni}
          amd.com/gpu: {resourceList: [{name: cpu, coefficient: 2}]}
        odd:
          nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 0.29}, {name: memory, coefficient: 1.5, unit: Gi}]}
        half:
          nvidia.com/gpu: {resourceList: [{name: nvidia.com/shm, coefficient: 0.5}]}
      namespaceResourceMap:
        training:
          V100:
            nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 6}]}
      namespaceWhiteList: [skipped]
    """
).injection
V100 = {GPU_TYPE_ANNOTATION: "V100"}


def injected(asker, expect=Injected):
    outcome = inject(asker, RULES)
    assert isinstance(outcome, expect), outcome
    return outcome


def written(outcome, index=0):
    one = outcome.pod.containers[index]
    extra = {r: str(a) for r, a in one.requests.items() if r != GPU}
    assert extra == {r: str(a) for r, a in one.limits.items() if r != GPU}
    return extra


def test_two_gpus():
    """2 GPUs × (4000m, 8Gi) is 8 CPUs and 16Gi, in requests and limits; annotations go to the pod."""
    outcome = injected(pod(container(gpu=2), annotations=V100))
    assert written(outcome) == {"cpu": "8", "memory": "16Gi", "nvidia.com/shm": "2Gi"}
    assert outcome.pod.annotations == {**V100, "networks": "eni"}


def test_side_container():
    """What containers without a GPU request is taken off: 7 CPUs and 14Gi are left. They are not written."""
    side = container("side", limits={}, cpu="1000m", memory="2Gi")
    outcome = injected(pod(container(gpu=2, cpu=1), side, annotations=V100))
    assert written(outcome) == {"cpu": "7", "memory": "14Gi", "nvidia.com/shm": "2Gi"}
    assert outcome.pod.containers[1] is side


def test_exact_arithmetic():
    """1.5 Gi × 1 is 1536Mi, 0.29 × 100 is 29, 3 × 4000m − 1000m is 11."""
    odd = {GPU_TYPE_ANNOTATION: "odd"}
    assert written(injected(pod(container(gpu=1), annotations=odd)))["memory"] == "1536Mi"
    assert written(injected(pod(container(gpu=100), annotations=odd)))["cpu"] == "29"
    assert written(injected(pod(container(gpu=3), container(cpu=1), annotations=V100)))["cpu"] == "11"


def test_sharing():
    """The rest is shared by GPU count in whole millicores; sidecars count as containers, init containers do not."""
    sidecar = container("log", restartable=True, cpu="500m")
    init = container("init", cpu=99, memory="99Gi")
    outcome = injected(pod(container(gpu=2), container(gpu=1), init=(init, sidecar), annotations=V100))
    assert written(outcome, 0)["cpu"] == "7667m"
    assert written(outcome, 1)["cpu"] == "3833m"
    assert outcome.pod.init_containers == (init, sidecar)


def test_gpu_sidecar():
    """A sidecar with a GPU is a GPU container: it is written too."""
    sidecar = container("serve", restartable=True, gpu=1)
    outcome = injected(pod(container(gpu=1), init=(sidecar,), annotations=V100))
    assert str(outcome.pod.init_containers[0].requests["cpu"]) == "4"
    assert written(outcome)["cpu"] == "4"


def test_namespace_rule():
    """A namespace's rule wins wholly where namespace, type and resource match; else the default holds."""
    assert written(injected(pod(container(gpu=1), annotations=V100, namespace="training"))) == {"cpu": "6"}
    amd = pod(container(**{"amd.com/gpu": 1}), annotations=V100, namespace="training")
    assert str(injected(amd).pod.containers[0].requests["cpu"]) == "2"


@pytest.mark.parametrize(
    "asker",
    [
        pod(container(gpu=1)),
        pod(container(gpu=1), annotations={GPU_TYPE_ANNOTATION: "T4"}),
        pod(container(gpu=1), annotations={GPU_TYPE_ANNOTATION: ""}),
        pod(container(**{"2g.20gb": 1}), annotations=V100),
        pod(container(cpu=1), annotations=V100),
        pod(container(gpu=1), annotations=V100, namespace="skipped"),
        pod(container(cpu=1), init=(container(gpu=1),), annotations=V100),
    ],
)
def test_untouched(asker):
    """No annotation, an unknown type, a resource without a rule, a skipped namespace: no change."""
    injected(asker, Untouched)


@pytest.mark.parametrize(
    ("asker", "message"),
    [
        (
            pod(container(gpu=1), container(**{"amd.com/gpu": 1}), annotations=V100),
            (
                "GPU type V100: the pod asks for nvidia.com/gpu and amd.com/gpu, and rules exist for each of them; ask for "
                "one of them only"
            ),
        ),
        (
            pod(container(gpu=1), container(memory="9Gi"), annotations=V100),
            (
                "GPU type V100: the containers without a GPU request 9Gi memory, more than the 8Gi that 1 GPU × 8Gi allow; "
                "lower their requests"
            ),
        ),
        (
            pod(container(gpu=0), annotations=V100),
            (
                "GPU type V100: the pod asks for 0 of nvidia.com/gpu; ask for at least 1, or take the annotation "
                "task.bkbcs.tencent.com/gpu-type away"
            ),
        ),
        (
            pod(container(gpu=3), annotations={GPU_TYPE_ANNOTATION: "half"}),
            (
                "GPU type half: 3 GPUs × 500m nvidia.com/shm is 1500m, and Kubernetes wants whole numbers of it; change the "
                "coefficient or the number of GPUs"
            ),
        ),
    ],
)
def test_refused(asker, message):
    """Each error says what to change."""
    assert injected(asker, Refused).message == message


def test_exactly_all_is_fine():
    """Containers without a GPU may take all of it; the GPU container then gets nothing."""
    outcome = injected(pod(container(gpu=1), container(cpu=4), annotations=V100))
    assert written(outcome)["cpu"] == "0"


def test_injecting_twice_is_injecting_once():
    """A pod that is as the rule makes it stays the very same pod."""
    once = injected(pod(container(gpu=2), container(cpu=1), annotations=V100)).pod
    assert injected(once).pod is once


def test_the_same_container_twice():
    """Containers are told apart by their place, not by what they say."""
    twice = container(gpu=1)
    outcome = injected(pod(twice, twice, annotations=V100))
    assert [written(outcome, i)["cpu"] for i in (0, 1)] == ["4", "4"]


weights = st.lists(st.integers(0, 16).map(Fraction), min_size=1, max_size=8).filter(any)


@given(
    st.fractions(min_value=0, max_value=10**12), weights, st.sampled_from([Fraction(1), Fraction(1, 1000)])
)
def test_shares_add_up(rest, weights, unit):
    """Shares are whole units, add up to the rest, and are within one unit of proportional."""
    parts = share(rest, weights, unit)
    whole = -(-rest // unit) * unit
    assert sum(parts) == whole
    assert all((part / unit).denominator == 1 for part in parts)
    assert all(
        abs(part - whole * weight / sum(weights)) < unit for part, weight in zip(parts, weights, strict=True)
    )
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if not weight)


def test_gpu_resources():
    """Every resource that a rule takes for a GPU is known, for limits to be completed."""
    assert RULES.gpu_resources() == {resource("gpu"), "amd.com/gpu"}
