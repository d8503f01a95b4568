"""One pod, one decision."""

import pytest

from tessera.core.admission.decision import (
    Admit,
    DropAmount,
    Reject,
    Rewrite,
    SetAmount,
    SetAnnotation,
    decide,
)
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Container
from tessera.core.kubernetes.quantity import Quantity
from tests.build import GPU, MIG, container, node, offers, pod, policy

ONE = Quantity.parse("1")
SMALL = node("small", **{"1g.10gb": 28})
RECORD = "gpu-webhook.k8s.io/fallback"


def decided(asker, *nodes, rules="", namespaces=()):
    return decide(asker, offers(*nodes, namespaces=namespaces), policy(rules))


def test_replaced():
    """Old keys go, new ones come, in requests and limits; the record, the warning and the audit say the same."""
    decision = decided(pod(container(**{"2g.20gb": 1, "cpu": 4})), SMALL)
    assert decision == Rewrite(
        edits=(
            DropAmount("containers", 0, "requests", MIG + "2g.20gb"),
            SetAmount("containers", 0, "requests", MIG + "1g.10gb", ONE),
            DropAmount("containers", 0, "limits", MIG + "2g.20gb"),
            SetAmount("containers", 0, "limits", MIG + "1g.10gb", ONE),
            SetAnnotation(RECORD, "2g.20gb->1g.10gb"),
        ),
        reason="2g.20gb is not offered, 1g.10gb is the first that is",
        replaced=(("2g.20gb", "1g.10gb"),),
        warnings=("GPU fallback 2g.20gb->1g.10gb: no node that this pod can use offers 2g.20gb as asked",),
        audit={"fallback": "2g.20gb->1g.10gb"},
    )


def test_nothing_to_do():
    """What is offered as asked is admitted without a change and without a record."""
    assert decided(pod(container(**{"1g.10gb": 1})), SMALL) == Admit("what it asks for is offered")
    assert decided(pod(container(cpu=1)), SMALL) == Admit("asks for nothing that is configured here")
    whole = pod(container(gpu=1))
    assert decided(whole, SMALL) == Admit("asks for whole GPUs, which nothing takes the place of")


def test_misspelt_profiles():
    """A slice that no card can be cut into is warned of, beside whatever is decided; none of it is not."""
    odd = {MIG + "3g30gb": Quantity.parse("1"), MIG + "2g.20gB": Quantity.parse("0")}
    decision = decided(pod(Container("main", odd, odd)), SMALL)
    assert isinstance(decision, Admit)
    warning = f'"{MIG}3g30gb" is no MIG profile such as {MIG}1g.10gb: nothing is done about it'
    assert decision.warnings == (warning,)
    decision = decided(pod(Container("main", odd, odd), container(**{"2g.20gb": 1})), SMALL)
    assert isinstance(decision, Rewrite)
    assert decision.warnings[1:] == (warning,)


def test_a_key_that_is_there_is_added_to():
    """A container that asks for both profiles gets the sum of them."""
    decision = decided(pod(container(**{"2g.20gb": 1, "1g.10gb": 2})), SMALL)
    assert isinstance(decision, Rewrite)
    assert SetAmount("containers", 0, "requests", MIG + "1g.10gb", Quantity.parse("3")) in decision.edits


def test_records():
    """Several replacements are recorded in container order, each once; earlier records stay, garbage goes."""
    nodes = [node("n", **{"1g.10gb": 7, "gpu": 8})]
    two = pod(container(**{"3g.30gb": 1}), container(**{"3g.30gb": 1}), init=(container(**{"7g.80gb": 1}),))
    decision = decided(two, *nodes)
    assert SetAnnotation(RECORD, "7g.80gb->1g.10gb,3g.30gb->1g.10gb") in decision.edits
    again = pod(container(**{"3g.30gb": 1}), annotations={RECORD: "2g.20gb->1g.10gb,\nevil,3g.30gb->1g.10gb"})
    decision = decided(again, *nodes)
    assert SetAnnotation(RECORD, "2g.20gb->1g.10gb,3g.30gb->1g.10gb") in decision.edits


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu"])
def test_limits_are_completed(name):
    """A GPU request without a limit gets its limit, fallback or not; other resources stay."""
    rules = "injection: {resourceMap: {X: {amd.com/gpu: {}}}}"
    decision = decided(pod(container(limits={}, cpu=1, **{name: 1})), SMALL, rules=rules)
    assert decision.edits == (SetAmount("containers", 0, "limits", name, ONE),)
    assert decision.reason.endswith("limits added where a GPU request had none")


def test_limits_are_completed_after_fallback():
    """Requests alone: the new key gets the limit."""
    decision = decided(pod(container(limits={}, **{"2g.20gb": 1})), SMALL)
    assert [edit for edit in decision.edits if getattr(edit, "section", "") == "limits"] == [
        SetAmount("containers", 0, "limits", MIG + "1g.10gb", ONE)
    ]


def test_injection_sees_fallback():
    """Fallback goes first: a profile that became a whole GPU gets what a whole GPU needs."""
    rules = (
        "injection: {resourceMap: {V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 4}]}}}}"
    )
    asker = pod(container(**{"3g.30gb": 2}), annotations={"task.bkbcs.tencent.com/gpu-type": "V100"})
    decision = decided(asker, node("v", gpu=8), rules=rules)
    assert SetAmount("containers", 0, "requests", "cpu", Quantity.parse("8")) in decision.edits
    assert SetAmount("containers", 0, "requests", GPU, Quantity.parse("2")) in decision.edits
    assert decision.gpu_type == "V100"
    assert decision.audit == {"fallback": "3g.30gb->gpu", "injection": "V100"}


def test_rejected():
    """The message names what was asked, what was tried and what the cluster offers."""
    asker = pod(container(**{"2g.20gb": 1}), node_selector={"zone": "b"})
    assert decided(asker, SMALL) == Reject(
        "not_offered",
        "asked for nvidia.com/mig-2g.20gb: 1, which no node that this pod can use offers; tried gpu and found no other "
        "profile; the nodes that this pod can use offer no GPU at all, the whole cluster 1g.10gb (up to 28 a node)",
    )
    many = decided(pod(container(**{"2g.20gb": 30})), node("n", **{"1g.10gb": 28, "3g.30gb": 4, "gpu": 8}))
    assert many == Reject(
        "not_offered",
        "asked for nvidia.com/mig-2g.20gb: 30, which no node that this pod can use offers; tried 1g.10gb, 3g.30gb, gpu; "
        "the nodes that this pod can use offer gpu (up to 8 a node), 1g.10gb (up to 28 a node), 3g.30gb (up to 4 a node)",
    )


def test_let_through():
    """The operator can let unmatched pods in, with a warning; a pod can ask to wait."""
    decision = decided(pod(container(**{"2g.20gb": 1})), rules="fallback: {unmatched: admit}")
    warning = "nvidia.com/mig-2g.20gb: 1: no node offers it now; the pod stays as it is and waits (unmatched pods are let through)"
    assert isinstance(decision, Admit)
    assert decision.warnings == (warning,)
    assert len(warning) <= 120
    never = {"gpu-webhook.k8s.io/fallback-policy": "never"}
    decision = decided(pod(container(**{"2g.20gb": 1}), annotations=never), SMALL)
    assert isinstance(decision, Admit)
    assert decision.warnings[0].startswith(
        "nvidia.com/mig-2g.20gb: 1: no node offers it now; the pod stays as it is and waits"
    )


def test_namespaces():
    """A namespace's annotations hold where the pod says nothing; its label exempts it."""
    asker = pod(container(**{"2g.20gb": 1}), namespace="team")
    strict = Namespace("team", annotations={"gpu-webhook.k8s.io/fallback-policy": "never"})
    assert isinstance(decided(asker, SMALL, namespaces=(strict,)), Admit)
    lenient = pod(
        container(**{"2g.20gb": 1}),
        namespace="team",
        annotations={"gpu-webhook.k8s.io/fallback-policy": "any"},
    )
    assert isinstance(decided(lenient, SMALL, namespaces=(strict,)), Rewrite)
    exempt = Namespace("team", labels={"gpu-webhook": "disabled"})
    assert decided(asker, namespaces=(exempt,)) == Admit("namespace team is exempt (gpu-webhook=disabled)")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fallback-policy", "nevr", 'metadata.annotations[gpu-webhook.k8s.io/fallback-policy]: "nevr" is not one of never, smaller, larger, any'),
        ("min-memory", "20GB", 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "20GB" is not an amount of memory such as 20Gi'),
        ("min-memory", "../\n\x1b[31m" + "x" * 300_000, 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "../\\n\\x1b[31m' + "x" * 51 + '"… is not an amount of memory such as 20Gi'),
    ],
)  # fmt: skip
def test_fault_10_bad_annotations(key, value, message):
    """A value that means nothing denies the pod in one clean line: a guess could give it less than it needs."""
    asker = pod(container(**{"2g.20gb": 1}), annotations={"gpu-webhook.k8s.io/" + key: value})
    assert decided(asker, SMALL) == Reject("bad_annotation", message)
    assert isinstance(decided(pod(container(cpu=1), annotations=asker.annotations), SMALL), Admit)


def test_mirror_pod():
    """A kubelet's mirror pods are left alone."""
    asker = pod(container(**{"2g.20gb": 1}), annotations={"kubernetes.io/config.mirror": "x"})
    assert decided(asker) == Admit("a mirror pod: its kubelet runs it already")
