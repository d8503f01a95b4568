"""Injection: exact shares of what the GPUs bring with them."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.admission.injection import GPU_TYPE_ANNOTATION, Injected, Refused, Untouched, inject, share
from tests.build import GPU, amounts, container, pod, policy, resource

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
    """What containers without a GPU ask for is taken off: 7 CPUs and 14Gi are left. They are not written."""
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
                "GPU type V100: the containers that have no GPU ask for 9Gi memory, more than the 8Gi that 1 GPU × 8Gi allow; "
                "lower their requests"
            ),
        ),
        (
            pod(container(gpu=0), annotations=V100),
            (
                "GPU type V100: the pod asks for 0 of nvidia.com/gpu; ask for at least 1, or remove the annotation "
                "task.bkbcs.tencent.com/gpu-type"
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


@pytest.mark.parametrize(
    ("gpu_type", "asker", "message"),
    [
        (
            "V100",
            pod(container(gpu=1), container("side", cpu=4), annotations=V100),
            (
                "GPU type V100: the containers that have no GPU ask for 4 of the 4 cpu that 1 GPU × 4 allow, and leave 0 for "
                "container main, too little to run with; lower their requests"
            ),
        ),
        (
            "V100",
            pod(container(gpu=1), container("side", memory="8589934590"), annotations=V100),
            (
                "GPU type V100: the containers that have no GPU ask for 8589934590 of the 8Gi memory that 1 GPU × 8Gi allow, and "
                "leave 2 for container main, too little to run with; lower their requests"
            ),
        ),
        (
            "bytes",
            pod(container(gpu=2), annotations={GPU_TYPE_ANNOTATION: "bytes"}),
            "GPU type bytes: 2 GPUs × 8 memory is 16 for container main, too little to run with; raise the coefficient",
        ),
        (
            "thin",
            pod(container("a", gpu=1), container("b", gpu=1), annotations={GPU_TYPE_ANNOTATION: "thin"}),
            "GPU type thin: 2 GPUs × 200u cpu is 0 for container b, too little to run with; raise the coefficient",
        ),
    ],
)
def test_a_share_of_nothing_is_refused(gpu_type, asker, message):
    """A cpu limit of 0 is no limit at all, and a few bytes of memory kill: neither is ever written."""
    rules = policy(
        """
        injection:
          resourceMap:
            V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 4}, {name: memory, coefficient: 8, unit: Gi}]}}
            bytes: {nvidia.com/gpu: {resourceList: [{name: memory, coefficient: 8}]}}
            thin: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 0.2, unit: m}]}}
        """
    ).injection
    outcome = inject(asker, rules)
    assert isinstance(outcome, Refused)
    assert (outcome.reason, outcome.message) == ("share_of_nothing", message)


def test_a_coefficient_of_0_injects_nothing():
    """What a GPU needs none of stays as the container has it, whatever others request of it."""
    rules = policy(
        """
        injection:
          resourceMap:
            V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 0}, {name: x.io/y, coefficient: 0}]}}
        """
    ).injection
    one = pod(container(gpu=1, cpu=3), container("side", cpu=4), annotations=V100)
    outcome = inject(one, rules)
    assert isinstance(outcome, Injected)
    assert outcome.pod is one
    assert outcome.warnings == ()


@pytest.mark.parametrize(
    ("asker", "warning"),
    [
        (
            pod(container(gpu=1), annotations={GPU_TYPE_ANNOTATION: "V10O\n"}),
            'GPU type "V10O\\n" has no rule, nothing is injected (task.bkbcs.tencent.com/gpu-type)',
        ),
        (
            pod(container(**{"1g.10gb": 1}), annotations=V100),
            "GPU type V100 has no rule for 1g.10gb: nothing is injected for it; there are rules for gpu, amd.com/gpu",
        ),
        (
            pod(container(cpu=1), annotations=V100),
            "GPU type V100: no container asks for gpu, amd.com/gpu, for which there are rules; nothing is injected",
        ),
        (
            pod(container(gpu=1), container(**{"1g.10gb": 1}), annotations=V100),
            "GPU type V100 has no rule for 1g.10gb: nothing is injected for it; there are rules for gpu, amd.com/gpu",
        ),
        (
            pod(container("train", gpu=1, cpu=16, memory="8Gi"), annotations=V100),
            "GPU type V100 lowers cpu of train from 16 to 4",
        ),
        (
            pod(container("train", gpu=1, limits={"gpu": 1, "cpu": 5}, cpu=1), annotations=V100),
            "GPU type V100 lowers cpu of train from 5 to 4",
        ),
        (
            pod(*(container(f"c{i}", gpu=1, cpu=5, memory="9Gi") for i in range(2)), annotations=V100),
            "GPU type V100 lowers cpu of c0 from 5 to 4, memory of c0 from 9Gi to 8Gi, cpu of c1 from 5 to 4 and 1 more",
        ),
    ],
)
def test_warnings(asker, warning):
    """An annotated pod that gets nothing, or less than it had, is warned of; one that gets what it asks for is not."""
    outcome = inject(asker, RULES)
    assert not isinstance(outcome, Refused)
    assert outcome.warnings == (warning,)


def test_no_warning():
    """Nothing is said where all is well, or where the operator wants injection to stay away."""
    assert injected(pod(container(gpu=1, cpu=4), annotations=V100)).warnings == ()
    assert injected(pod(container(gpu=1, cpu=16)), Untouched).warnings == ()
    skipped = pod(container(gpu=1), annotations={GPU_TYPE_ANNOTATION: "T4"}, namespace="skipped")
    assert injected(skipped, Untouched).warnings == ()


CPU_4 = amounts({"cpu": 4})
IN_ALL = (
    "GPU type V100: the containers would request {} in all, more than the {} of spec.resources.requests; "
)
EACH = "GPU type V100: container main would have a limit of {}, more than the {} of spec.resources.limits; "
DEFAULT = IN_ALL.removesuffix("; ") + " (set by the API server where there are only limits); "
MEND = "raise that, or remove spec.resources"


@pytest.mark.parametrize(
    ("asker", "message"),
    [
        (pod(container(gpu=1), pod_requests=CPU_4, pod_limits=CPU_4), None),
        (pod(container(gpu=2), pod_requests=CPU_4), IN_ALL.format("8 cpu", "4")),
        (pod(container(gpu=1), init=(container(cpu=6),), pod_requests=CPU_4), IN_ALL.format("6 cpu", "4")),
        (pod(container(gpu=1), container(gpu=1), pod_limits=CPU_4), DEFAULT.format("8 cpu", "4")),
        (pod(container(gpu=1), pod_limits=amounts({"memory": "7Gi"})), EACH.format("8Gi memory", "7Gi")),
        # the API server has set the requests of a pod with limits from what its containers request
        (pod(container(gpu=1, cpu=1), pod_limits=amounts({"cpu": 8})), DEFAULT.format("4 cpu", "1")),
        (
            pod(
                container(gpu=1), init=(container(gpu=1, restartable=True),), pod_requests=amounts({"cpu": 8})
            ),
            None,
        ),
    ],
)
def test_pod_level_resources(asker, message):
    """Injection leaves no pod that the API server refuses for its `spec.resources`: that is said here, with their name."""
    outcome = inject(replace(asker, annotations=V100), RULES)
    if message is None:
        assert isinstance(outcome, Injected)
    else:
        assert isinstance(outcome, Refused)
        assert (outcome.reason, outcome.message) == ("pod_level_resources", message + MEND)


def test_injecting_again_changes_nothing():
    """A pod that is as the rule makes it stays the very same pod."""
    once = injected(pod(container(gpu=2), container(cpu=1), annotations=V100)).pod
    assert injected(once).pod is once


def test_the_same_container_twice():
    """Containers are distinguished by their place, not by what they say."""
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


@pytest.mark.parametrize("number", [2, 200])
def test_sharing_goes_over_the_containers_a_fixed_number_of_times(number):
    """A pod with thousands of GPU containers is shared out in time that grows with their number only."""

    class Counted(list[Any]):
        passes = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

    share(Fraction(1000), Counted([Fraction(1)] * number), Fraction(1))
    assert Counted.passes == 2
