"""Where a pod may go, as the scheduler reads it."""

import pytest

from tessera.core.kubernetes.node import why_excluded
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint, Toleration
from tests.build import node, pod

LABELS = {"zone": "a", "size": "8", "gpu": "h200"}


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ("a", "b"), True), ("In", ("b",), False), ("NotIn", ("b",), True), ("NotIn", ("a",), False),
        ("Exists", (), True), ("DoesNotExist", (), False), ("Bogus", ("a",), False), ("Gt", ("1",), False),
    ],
)  # fmt: skip
def test_expressions(operator, values, matches):
    """Each operator of a node selector expression, on a label that is there."""
    term = NodeSelectorTerm((Requirement("zone", operator, values),))
    assert term.matches("n", LABELS) is matches


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ("a",), False),
        ("NotIn", ("a",), True),
        ("Exists", (), False),
        ("DoesNotExist", (), True),
        ("Lt", ("9",), False),
    ],
)
def test_expressions_without_the_label(operator, values, matches):
    """Each operator on a label that is not there."""
    assert NodeSelectorTerm((Requirement("nope", operator, values),)).matches("n", LABELS) is matches


@pytest.mark.parametrize(
    ("operator", "value", "matches"),
    [("Gt", "7", True), ("Gt", "8", False), ("Lt", "9", True), ("Lt", "8", False), ("Gt", "x", False)],
)
def test_gt_and_lt_compare_whole_numbers(operator, value, matches):
    """Gt and Lt compare whole numbers."""
    assert NodeSelectorTerm((Requirement("size", operator, (value,)),)).matches("n", LABELS) is matches


# what component-helpers 0.36.3 answers: is a label 8 > text, is a taint 8 > text (as a toleration's value), and are
# a label and a taint of this text > 5
NUMBERS = [
    ("7", True, True, True, True),
    ("07", True, False, True, False),
    ("00000000000000000000007", True, False, True, False),
    ("-1", False, True, False, False),
    ("-0", False, False, False, False),
    ("1_0", False, False, False, False),
    ("0x1", False, False, False, False),
    ("1e1", False, False, False, False),
    ("", False, False, False, False),
    ("7 ", False, False, False, False),
    ("7\n", False, False, False, False),
    ("٧", False, False, False, False),
    ("9223372036854775807", False, False, True, True),
    ("9223372036854775808", False, False, False, False),
    ("9" * 20_000, False, False, False, False),
]


@pytest.mark.parametrize(("text", "label_above", "taint_above", "label_is_above", "taint_is_above"), NUMBERS)
def test_numbers_are_gos_int64(text, label_above, taint_above, label_is_above, taint_is_above):
    """Only what Go reads as an int64 is compared, in labels, tolerations and taints."""
    assert Requirement("size", "Gt", (text,)).matches("8") is label_above
    assert Toleration("sla", "Gt", text).tolerates(Taint("sla", "8")) is taint_above
    assert Requirement("size", "Gt", ("5",)).matches(text) is label_is_above
    assert Toleration("sla", "Gt", "5").tolerates(Taint("sla", text)) is taint_is_above


def test_terms():
    """Expressions and fields of a term must all hold, one term is enough, an empty term holds nowhere."""
    here = Requirement("metadata.name", "In", ("n1",))
    in_a = Requirement("zone", "In", ("a",))
    assert NodeSelectorTerm((in_a,), (here,)).matches("n1", LABELS)
    assert not NodeSelectorTerm((in_a,), (here,)).matches("n2", LABELS)
    assert not NodeSelectorTerm().matches("n1", LABELS)
    one = node("n1", labels=LABELS)
    assert why_excluded(pod(required_terms=(NodeSelectorTerm(), NodeSelectorTerm((in_a,)))), one) is None
    assert why_excluded(pod(required_terms=()), one) == "node affinity wants nothing"


def test_fault_64_a_pod_of_a_hundred_thousand_conditions_is_excluded_in_a_few_words():
    """Whoever may create pods can write a megabyte of node affinity, and each node that it excludes says why."""
    values = tuple(f"node-{number}" for number in range(100_000))
    one = Requirement("zone", "In", values)
    some = (NodeSelectorTerm((one,) * 1000),) * 1000
    few = "zone in (node-0, node-1, node-2, node-3, node-4 and 99995 more)"
    term = f"{' and '.join([few] * 5)} and 995 more"
    excluded = why_excluded(pod(required_terms=some), node("n1", labels=LABELS))
    assert excluded == f"node affinity wants {' or '.join([term] * 5)} or 995 more"


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("dedicated", "Equal", "ml"), True),
        (Toleration("dedicated", "Equal", "web"), False),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("dedicated", "Exists", effect="NoExecute"), False),
        (Toleration("", "Exists"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("", "Equal", "ml"), False),
        (Toleration("dedicated", "Bogus", "ml"), False),
    ],
)
def test_tolerations(toleration, tolerates):
    """A toleration covers a taint as the scheduler decides it."""
    tainted = node("n", taints=(Taint("dedicated", "ml"),))
    excluded = why_excluded(pod(tolerations=(toleration,)), tainted)
    assert (excluded is None) is tolerates
    if not tolerates:
        assert excluded == "taint dedicated=ml:NoSchedule is not tolerated"


def test_numeric_tolerations():
    """Gt and Lt tolerate by comparing the taint's number."""
    taint = Taint("sla", "95")
    assert Toleration("sla", "Gt", "90").tolerates(taint)
    assert not Toleration("sla", "Lt", "90").tolerates(taint)


@pytest.mark.parametrize(
    "taint",
    [
        Taint("nvidia.com/gpu"), Taint("amd.com/gpu", "", "NoExecute"), Taint("gpu.intel.com/i915"),
        Taint("node.kubernetes.io/unschedulable"), Taint("node.kubernetes.io/not-ready", "", "NoExecute"),
        Taint("dedicated", "x", "PreferNoSchedule"),
        Taint("node.cloudprovider.kubernetes.io/uninitialized", "true"), Taint("ToBeDeletedByClusterAutoscaler", "1700000000"),
        Taint("DeletionCandidateOfClusterAutoscaler", "1700000000"), Taint("karpenter.sh/disrupted"), Taint("karpenter.sh/unregistered", "", "NoExecute"),
        Taint("node.cilium.io/agent-not-ready"),
    ],
)  # fmt: skip
def test_taints_that_exclude_nobody(taint):
    """Vendors' taints are tolerated later, conditions and nodes on their way pass, preferences are preferences."""
    assert why_excluded(pod(), node("n", taints=(taint,))) is None


@pytest.mark.parametrize(
    "key",
    [
        "notnvidia.com/gpu",
        "nvidia.com.example.org/gpu",
        "gpu",
        "cloud.google.com/gke-spot",
        "karpenter.sh.example.org/x",
        "nvidia.com",
    ],
)
def test_taints_like_a_vendors(key):
    """Only a vendor's own domain counts as a vendor's."""
    assert why_excluded(pod(), node("n", taints=(Taint(key),))) == f"taint {key}:NoSchedule is not tolerated"


def test_node_name():
    """A pod with nodeName goes there or nowhere, and has passed the scheduler by: only NoExecute concerns it."""
    there = pod(node_name="n")
    assert why_excluded(there, node("m")) == "spec.nodeName is n"
    assert why_excluded(there, node("n", taints=(Taint("x"),))) is None
    assert (
        why_excluded(there, node("n", taints=(Taint("x", "", "NoExecute"),)))
        == "taint x:NoExecute is not tolerated"
    )


def test_node_selector():
    """Every label of the selector must be there, with its value."""
    wants = pod(node_selector={"zone": "a", "gpu": "v100"})
    assert (
        why_excluded(wants, node("n", labels=LABELS)) == "nodeSelector wants gpu=v100, the node has gpu=h200"
    )
    assert (
        why_excluded(wants, node("n", labels={"zone": "a"}))
        == "nodeSelector wants gpu=v100, the node has no such label"
    )
