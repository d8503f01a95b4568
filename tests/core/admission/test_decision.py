"""One pod, one decision."""

from dataclasses import replace

import pytest

from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Allowed, Denied, Patched
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Container, DropAmount, SetAmount, SetAnnotation
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement
from tessera.core.requests.record import asked_text, renamed
from tests.build import GPU, MIG, amounts, container, node, offers, pod, policy

ONE = Quantity.parse("1")
SMALL = node("small", **{"1g.10gb": 28})
RECORD, ASKED = "gpu-webhook.k8s.io/fallback", "gpu-webhook.k8s.io/asked"
POLICY, MIN_MEMORY = "gpu-webhook.k8s.io/fallback-policy", "gpu-webhook.k8s.io/min-memory"
V100 = {"task.bkbcs.tencent.com/gpu-type": "V100"}
BOUND = [
    {"node_name": "small"},
    {"required_terms": (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("small",)),)),)},
]


def decided(asker, *nodes, rules="", namespaces=()):
    return decide(asker, offers(*nodes, namespaces=namespaces), policy(rules))


def test_replaced():
    """Old keys go, new ones come, in requests and limits; the record, the warning and the audit say the same."""
    decision = decided(pod(container(**{"2g.20gb": 1, "cpu": 4})), SMALL)
    assert decision == Patched(
        edits=(
            DropAmount("containers", 0, "requests", MIG + "2g.20gb"),
            SetAmount("containers", 0, "requests", MIG + "1g.10gb", ONE),
            DropAmount("containers", 0, "limits", MIG + "2g.20gb"),
            SetAmount("containers", 0, "limits", MIG + "1g.10gb", ONE),
            SetAnnotation(RECORD, "2g.20gb->1g.10gb"),
            SetAnnotation(ASKED, f'{{"main":{{"{MIG}2g.20gb":"1"}}}}'),
        ),
        reason="2g.20gb is not offered, 1g.10gb is the first that is",
        replaced=(("2g.20gb", "1g.10gb"),),
        warnings=("GPU fallback 2g.20gb->1g.10gb: no node that this pod can use offers 2g.20gb as asked",),
        audit={"fallback": "2g.20gb->1g.10gb"},
    )


def test_nothing_to_do():
    """What is offered as asked is admitted without a change and without a record."""
    assert decided(pod(container(**{"1g.10gb": 1})), SMALL) == Allowed("what it asks for is offered")
    assert decided(pod(container(cpu=1)), SMALL) == Allowed(
        "asks for nothing that fallback or injection looks at"
    )
    whole = pod(container(gpu=1))
    assert decided(whole, node("n", gpu=1)) == Allowed(
        "asks for whole GPUs, and fallback replaces only MIG profiles"
    )


def test_misspelt_profiles():
    """A slice that no card can be cut into is warned of, beside whatever is decided; none of it is not."""
    odd = amounts({MIG + "3g30gb": 1, MIG + "2g.20gB": 0})
    decision = decided(pod(Container("main", odd, odd)), SMALL)
    assert isinstance(decision, Allowed)
    warning = f'"{MIG}3g30gb" is no MIG profile such as {MIG}1g.10gb: nothing is done about it'
    assert decision.warnings == (warning,)
    decision = decided(pod(Container("main", odd, odd), container(**{"2g.20gb": 1})), SMALL)
    assert isinstance(decision, Patched)
    assert decision.warnings[1:] == (warning,)


def test_a_key_that_is_there_is_added_to():
    """A container that asks for both profiles gets the sum of them."""
    decision = decided(pod(container(**{"2g.20gb": 1, "1g.10gb": 2})), SMALL)
    assert isinstance(decision, Patched)
    assert SetAmount("containers", 0, "requests", MIG + "1g.10gb", Quantity.parse("3")) in decision.edits


def test_records():
    """Several replacements are recorded in container order, each once; earlier records stay, garbage goes."""
    nodes = [node("n", **{"1g.10gb": 7, "gpu": 8})]
    two = pod(container(**{"3g.30gb": 1}), container(**{"3g.30gb": 1}), init=(container(**{"7g.80gb": 1}),))
    decision = decided(two, *nodes)
    assert SetAnnotation(RECORD, "7g.80gb->gpu,3g.30gb->1g.10gb") in decision.edits
    again = pod(container(**{"3g.30gb": 1}), annotations={RECORD: "2g.20gb->1g.10gb,\nevil,3g.30gb->1g.10gb"})
    decision = decided(again, *nodes)
    assert SetAnnotation(RECORD, "2g.20gb->1g.10gb,3g.30gb->1g.10gb") in decision.edits


def carried_out(asker, decision):
    """The pod with a decision's edits on it."""
    annotations = {edit.key: edit.value for edit in decision.edits if isinstance(edit, SetAnnotation)}
    after = replace(asker, annotations={**asker.annotations, **annotations})
    return after if not decision.replaced else after.map_containers(_renamed(dict(decision.replaced)))


def _renamed(by):
    return lambda one: renamed(
        one, {MIG + old: GPU if new == "gpu" else MIG + new for old, new in by.items()}
    )


def came(**containers):
    return asked_text({name: {MIG + r: n for r, n in gpus.items()} for name, gpus in containers.items()})


@pytest.mark.parametrize(
    ("earlier", "containers", "written"),
    [
        ("", {"a": "2g.20gb"}, came(a={"2g.20gb": 1})),
        ("", {"a": "2g.20gb", "b": "1g.10gb"}, came(a={"2g.20gb": 1}, b={"1g.10gb": 1})),
        # on a later call what is known stays, and what is new is added
        (came(a={"3g.30gb": 1}), {"a": "2g.20gb", "b": "1g.10gb"}, came(a={"3g.30gb": 1}, b={"1g.10gb": 1})),
        (came(a={"3g.30gb": 1}), {"a": "2g.20gb"}, None),
        # what cannot be read, or is over 4 KiB, is overwritten
        ("junk", {"a": "2g.20gb"}, came(a={"2g.20gb": 1})),
        ("{" + " " * 4096 + "}", {"a": "2g.20gb"}, came(a={"2g.20gb": 1})),
        # what would be over 4 KiB is left out
        ("", {f"c{n}": "2g.20gb" for n in range(150)}, None),
        (came(a={"3g.30gb": 1}), {"a": "2g.20gb", **{f"c{n}": "1g.10gb" for n in range(150)}}, None),
    ],
)
def test_what_was_asked_is_kept(earlier, containers, written):
    """A new fallback writes the GPU requests as they came, by container; done again, nothing more is written."""
    annotations = {ASKED: earlier} if earlier else {}
    asker = pod(*(container(name, **{gpu: 1}) for name, gpu in containers.items()), annotations=annotations)
    many = node("n", **{"1g.10gb": 1000})
    decision = decided(asker, many)
    assert next((e.value for e in decision.edits if getattr(e, "key", "") == ASKED), None) == written
    assert isinstance(decided(carried_out(asker, decision), many), Allowed)


@pytest.mark.parametrize(
    ("annotations", "written"),
    [
        (
            {RECORD: "2g.20gb->1g.10gb", ASKED: came(a={"2g.20gb": 1})},
            came(a={"2g.20gb": 1}, b={"1g.10gb": 1}),
        ),
        ({RECORD: "2g.20gb->1g.10gb", ASKED: came(a={"2g.20gb": 1}, b={"1g.10gb": 1})}, None),
        # nothing was replaced, or it cannot be read, or it was decided with its template: it stays as it is
        ({ASKED: came(a={"2g.20gb": 1})}, None),
        ({RECORD: "2g.20gb->1g.10gb", ASKED: "junk"}, None),
        ({RECORD: "2g.20gb->1g.10gb"}, None),
        (
            {
                RECORD: "2g.20gb->1g.10gb",
                ASKED: came(a={"2g.20gb": 1}),
                "gpu-webhook.k8s.io/decided": "template",
            },
            None,
        ),
    ],
)
def test_a_container_that_came_later(annotations, written):
    """A container that another webhook added, and that is offered what it asks for, is added to what was asked."""
    asker = pod(container("a", **{"1g.10gb": 1}), container("b", **{"1g.10gb": 1}), annotations=annotations)
    decision = decided(asker, SMALL)
    if written is None:
        assert isinstance(decision, Allowed)
        return
    assert decision.edits == (SetAnnotation(ASKED, written),)
    assert isinstance(decided(carried_out(asker, decision), SMALL), Allowed)


@pytest.mark.parametrize("text", [came(main={"7g.80gb": 1}), came(main={"1g.10gb": 1}), "junk"])
def test_asked_never_widens_what_a_pod_gets(text):
    """Whatever its author wrote there: the pod is decided about by what it asks for now."""
    one = pod(container(**{"2g.20gb": 1}), annotations={POLICY: "larger"})
    forged = replace(one, annotations={POLICY: "larger", RECORD: "7g.80gb->2g.20gb", ASKED: text})
    for nodes in ([], [SMALL], [node("n", **{"3g.30gb": 1})]):
        plain, other = decided(one, *nodes), decided(forged, *nodes)
        assert type(plain) is type(other)
        if isinstance(plain, Patched):
            assert plain.replaced == other.replaced
        else:
            assert plain == other


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
    asker = pod(container(**{"3g.30gb": 1}), annotations=V100)
    decision = decided(asker, node("v", gpu=8), rules=rules)
    assert SetAmount("containers", 0, "requests", "cpu", Quantity.parse("4")) in decision.edits
    assert SetAmount("containers", 0, "requests", GPU, Quantity.parse("1")) in decision.edits
    assert decision.gpu_type == "V100"
    assert decision.audit == {"fallback": "3g.30gb->gpu", "injection": "V100"}


@pytest.mark.parametrize(
    ("asks", "nodes", "rules", "annotations", "message"),
    [
        (
            {"2g.20gb": 1}, [], "", {},
            ("asked for nvidia.com/mig-2g.20gb: 1, and no node that this pod can use offers it; tried gpu (not offered); "
            "the nodes that this pod can use offer no GPU at all, the whole cluster 1g.10gb (up to 28 a node)"),
        ),
        (
            {"2g.20gb": 30}, [node("n", **{"1g.10gb": 28, "2g.20gb": 1, "gpu": 8})], "", {},
            ("asked for nvidia.com/mig-2g.20gb: 30, and no node that this pod can use has enough of it (at most 1 a node, "
            "30 needed); tried 1g.10gb (not enough: at most 28 a node, 30 needed), gpu (forbidden by fallback.maxWholeGPUs: 1); "
            "the nodes that this pod can use offer gpu (up to 8 a node), 1g.10gb (up to 28 a node), 2g.20gb (up to 1 a node)"),
        ),
        (
            {"2g.20gb": 1}, [node("n", **{"1g.10gb": 2, "3g.30gb": 1, "gpu": 8})],
            "fallback: {downgrades: false, wholeGPU: false}", {POLICY: "smaller"},
            ("asked for nvidia.com/mig-2g.20gb: 1, and no node that this pod can use offers it; tried 1g.10gb (forbidden by "
            "fallback.downgrades: false), 3g.30gb (forbidden: the pod's fallback-policy is `smaller`), gpu (forbidden by "
            "fallback.wholeGPU: false); the nodes that this pod can use offer gpu (up to 8 a node), 1g.10gb (up to 2 a node), "
            "3g.30gb (up to 1 a node), the whole cluster gpu (up to 8 a node), 1g.10gb (up to 28 a node), 3g.30gb (up to 1 a node)"),
        ),
        (
            {"2g.20gb": 1}, [node("n", **{"1g.10gb": 2})], "", {MIN_MEMORY: "15Gi"},
            ("asked for nvidia.com/mig-2g.20gb: 1, and no node that this pod can use offers it; tried 1g.10gb (below the minimum of 15Gi "
            "(the pod's min-memory)), gpu (not offered); the nodes that this pod can use offer 1g.10gb (up to 2 a node), "
            "the whole cluster 1g.10gb (up to 28 a node)"),
        ),
        (
            {"2g.20gb": 1, "gpu": 2}, [node("n", **{"2g.20gb": 2}), node("m", gpu=2)], "", {},
            ("asked for nvidia.com/mig-2g.20gb: 1, nvidia.com/gpu: 2, and no node that this pod can use has all of it; tried "
            "gpu (not together with the rest); the nodes that this pod can use offer gpu (up to 2 a node), "
            "2g.20gb (up to 2 a node), the whole cluster gpu (up to 2 a node), 1g.10gb (up to 28 a node), 2g.20gb (up to 2 a node)"),
        ),
    ],
)  # fmt: skip
def test_rejected(asks, nodes, rules, annotations, message):
    """The message names what was asked, every candidate with its reason, and what the cluster offers."""
    labelled = [replace(one, labels={"zone": "b"}) for one in nodes]
    asker = pod(container(**asks), node_selector={"zone": "b"}, annotations=annotations)
    assert decided(asker, SMALL, *labelled, rules=rules) == Denied("not_offered", message)


def test_rejected_for_want_of_a_node_that_is_large_enough():
    """Nodes that could never hold the pod do not count, and the message says what for."""
    asker = pod(container(**{"1g.10gb": 1, "cpu": 64, "rdma/hca": 1, "memory": "1Gi"}))
    decision = decided(asker, node("n", cpu=16, memory="64Gi", **{"1g.10gb": 7}))
    assert decision == Denied(
        "not_offered",
        "asked for nvidia.com/mig-1g.10gb: 1, and no node that this pod can use offers it; tried gpu (not offered); "
        "the nodes that this pod can use offer no GPU at all, the whole cluster 1g.10gb (up to 7 a node); "
        "nodes that could never hold its cpu, rdma/hca do not count",
    )


def test_rejected_for_want_of_a_common_node():
    """Two profiles that exist, but on no node together, are not said to be missing."""
    asker = pod(container(**{"2g.20gb": 2}), container(**{"1g.10gb": 2}))
    decision = decided(asker, node("a", **{"2g.20gb": 2}), node("b", **{"1g.10gb": 2}))
    assert isinstance(decision, Denied)
    assert decision.message.startswith(
        "asked for nvidia.com/mig-2g.20gb: 2, nvidia.com/mig-1g.10gb: 2, and no node that this pod can use has all of it; "
        "tried 1g.10gb (not together with the rest), gpu (forbidden by fallback.maxWholeGPUs: 1), 2g.20gb (not together with the rest); "
    )


def test_let_through():
    """The operator can let unmatched pods in, with a warning; a pod can ask to wait."""
    decision = decided(pod(container(**{"2g.20gb": 1})), rules="fallback: {unmatched: admit}")
    warning = "no node offers 2g.20gb ×1 now; the pod waits as it is (the webhook admits unmatched pods)"
    assert isinstance(decision, Allowed)
    assert decision.warnings == (warning,)
    assert len(warning) <= 120
    never = {"gpu-webhook.k8s.io/fallback-policy": "never"}
    decision = decided(pod(container(**{"2g.20gb": 1}), annotations=never), SMALL)
    assert isinstance(decision, Allowed)
    assert decision.warnings == (
        "no node offers 2g.20gb ×1 now; the pod waits as it is (the pod's fallback-policy is `never`)",
    )


@pytest.mark.parametrize(
    ("pods", "namespaces", "expected"),
    [
        ({}, {POLICY: "never"}, "waits"),
        ({POLICY: "any"}, {POLICY: "never"}, "waits"),  # a pod cannot allow itself what its namespace forbids
        ({POLICY: "never"}, {POLICY: "any"}, "waits"),
        ({POLICY: "larger"}, {POLICY: "any"}, "2g.20gb->3g.30gb"),
        ({POLICY: "any"}, {POLICY: "larger"}, "2g.20gb->3g.30gb"),
        ({POLICY: "smaller"}, {POLICY: "larger"}, "2g.20gb->gpu"),  # what both allow
        ({POLICY: "larger"}, {POLICY: "smaller"}, "2g.20gb->gpu"),
        ({POLICY: "smaller"}, {POLICY: "smaller"}, "2g.20gb->1g.10gb"),
        ({MIN_MEMORY: "5Gi"}, {MIN_MEMORY: "11Gi"}, "2g.20gb->3g.30gb"),  # the larger minimum
        ({MIN_MEMORY: "11Gi"}, {MIN_MEMORY: "5Gi"}, "2g.20gb->3g.30gb"),
        ({}, {MIN_MEMORY: "31Gi"}, "2g.20gb->gpu"),
    ],
)
def test_the_stricter_of_pod_and_namespace_holds(pods, namespaces, expected):
    """Directions that both allow, the larger minimum."""
    asker = pod(container(**{"2g.20gb": 1}), namespace="team", annotations=pods)
    nodes = [SMALL, node("three", **{"3g.30gb": 1}), node("gpu", gpu=1)]
    decision = decided(asker, *nodes, namespaces=(Namespace("team", annotations=namespaces),))
    if expected == "waits":
        assert isinstance(decision, Allowed)
        assert "waits" in decision.warnings[0]
    else:
        assert isinstance(decision, Patched)
        assert decision.audit == {"fallback": expected}


def test_exempt_namespace():
    """A namespace's label exempts it."""
    asker = pod(container(**{"2g.20gb": 1}), namespace="team")
    exempt = Namespace("team", labels={"gpu-webhook": "disabled"})
    assert decided(asker, namespaces=(exempt,)) == Allowed("namespace team is exempt (gpu-webhook=disabled)")


@pytest.mark.parametrize("bound", BOUND)
@pytest.mark.parametrize(
    ("asks", "annotations", "rules", "words"),
    [
        ({"2g.20gb": 99}, {}, "", "asked for nvidia.com/mig-2g.20gb: 99"),
        ({"2g.20gb": 1}, {MIN_MEMORY: "20"}, "", 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "20"'),
        ({"2g.20gb": 1}, {POLICY: "nevr"}, "", "metadata.annotations[gpu-webhook.k8s.io/fallback-policy]:"),
        ({f"1g.{i}gb": 1 for i in range(1, 10)}, {}, "", "asked for nvidia.com/mig-1g.1gb: 1, nvidia.com"),
        ({"1g.10gb": 1, "gpu": 1}, V100, "injection: {resourceMap: {V100: {nvidia.com/gpu: {}, nvidia.com/mig-1g.10gb: {}}}}", "GPU type V100: the pod asks for"),
    ],
)  # fmt: skip
def test_bound_pods_are_never_rejected(bound, asks, annotations, rules, words):
    """Whatever is wrong with a pod that is bound to one node, it is let in as it is, with a warning: its controller would stall."""
    nodes = [replace(SMALL, allocatable=amounts({"1g.10gb": 28, "gpu": 1}))]
    free = decided(pod(container(**asks), annotations=annotations), *nodes, rules=rules)
    assert isinstance(free, Denied)
    decision = decided(pod(container(**asks), annotations=annotations, **bound), *nodes, rules=rules)
    assert isinstance(decision, Allowed)
    assert decision.warnings[0].startswith(f'bound to node "small", so left as it is: {words}')
    assert decision.reason.endswith(f'bound to node "small", so left as it is: {free.message}')


def test_bound_pods_get_their_limits():
    """A pod that is let in as it is still has what the API server insists on."""
    decision = decided(pod(container(limits={}, **{"2g.20gb": 99}), node_name="small"), SMALL)
    assert decision.edits == (SetAmount("containers", 0, "limits", MIG + "2g.20gb", Quantity.parse("99")),)
    terms = (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("small", "other")),)),)
    free = pod(container(**{"2g.20gb": 99}), required_terms=terms)
    assert isinstance(decided(free, SMALL), Denied), "two nodes to choose from: not bound"


def test_switched_off():
    """Without fallback nothing is rewritten and no pod rejected; limits and injection go on, and annotations are not read."""
    off = "fallback: {enabled: false}\ninjection: {resourceMap: {V100: {nvidia.com/mig-2g.20gb: {resourceList: [{name: cpu, coefficient: 4}]}}}}"
    asker = pod(container(limits={}, **{"2g.20gb": 1}), annotations={POLICY: "nevr", **V100})
    four = Quantity.parse("4")
    decision = decided(asker, rules=off)
    assert decision.edits == (
        SetAmount("containers", 0, "requests", "cpu", four),
        SetAmount("containers", 0, "limits", MIG + "2g.20gb", ONE),
        SetAmount("containers", 0, "limits", "cpu", four),
    )
    assert decision.reason.startswith("fallback is disabled; limits added")
    assert decided(pod(container(**{"2g.20gb": 1})), rules=off) == Allowed("fallback is disabled")


@pytest.mark.parametrize(
    ("requests", "limits"),
    [
        ({"2g.20gb": 1, "1g.10gb": 1}, {"1g.10gb": 1}),
        ({"2g.20gb": 1, "1g.10gb": 1}, {"2g.20gb": 1}),
        ({"2g.20gb": 1, "1g.10gb": 1}, {}),
        (
            {"1g.10gb": 1},
            {"2g.20gb": 1, "1g.10gb": 1},
        ),  # as kubectl has it, before the API server fills requests in
        ({"2g.20gb": 1}, {"2g.20gb": 1, "3g.30gb": 1}),  # the same: both become 1g.10gb, which was in neither
        ({"2g.20gb": 1}, {"3g.30gb": 1}),
        ({"2g.20gb": 1}, {"1g.10gb": 1}),  # 1g.10gb stays what it is
    ],
)
def test_limits_are_complete_before_keys_are_merged(requests, limits):
    """Whatever was left out, requests and limits are equal in the end."""
    both = pod(Container("main", amounts(requests), amounts(limits)))
    decision = decided(both, SMALL)
    after = {
        (edit.section, edit.resource): edit.amount for edit in decision.edits if isinstance(edit, SetAmount)
    }
    two = Quantity.parse("2")
    assert after == {("requests", MIG + "1g.10gb"): two, ("limits", MIG + "1g.10gb"): two}


def test_what_was_injected_before():
    """A pod that has all that its rule gives stays as it is, and is not said to be injected."""
    rules = (
        "injection: {resourceMap: {V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 4}]}}}}"
    )
    four = Container("main", amounts({"gpu": 1, "cpu": 4}), amounts({"gpu": 1, "cpu": 4}))
    decision = decided(pod(four, annotations=V100), node("n", gpu=1), rules=rules)
    assert isinstance(decision, Allowed)
    assert decision.reason == "has the resources of GPU type V100 per gpu already"


def test_names_with_a_plus():
    """`+` may stand in no resource's name: nothing is done, not even a limit added, and the right name is reported."""
    plus = amounts({MIG + "1g.10gb+me": 1})
    decision = decided(pod(Container("main", plus, {})), node("n", **{"1g.10gb.me": 1, "1g.10gb": 1}))
    warning = f'"{MIG}1g.10gb+me" is no resource name, did you mean {MIG}1g.10gb.me? Nothing is done about it'
    assert decision == Allowed("asks for nothing that fallback or injection looks at", (warning,))
    assert len(warning) <= 120


@pytest.mark.parametrize(
    ("asks", "has", "warning"),
    [
        (
            16,
            8,
            "nvidia.com/gpu: 16: no node that this pod can use has more than 8; the pod stays as it is and waits",
        ),
        (1, 0, "nvidia.com/gpu: 1: no node that this pod can use has any; the pod stays as it is and waits"),
        (8, 8, None),
    ],
)
def test_a_word_about_whole_gpus(asks, has, warning):
    """Whole GPUs are left alone; that no node has so many is said."""
    decision = decided(pod(container(gpu=asks)), node("n", gpu=has))
    assert isinstance(decision, Allowed)
    assert decision.warnings == ((warning,) if warning else ())


INJECTS = """
injection:
  resourceMap:
    V100:
      nvidia.com/mig-2g.20gb: {resourceList: [{name: cpu, coefficient: 32}, {name: example.com/shm, coefficient: 1}]}
      nvidia.com/mig-1g.10gb: {resourceList: [{name: cpu, coefficient: 8}]}
"""


def test_room_for_what_is_injected():
    """A node that could never hold the pod with what is injected into it offers nothing to it."""
    asker = pod(container(**{"2g.20gb": 1}), annotations=V100)
    both = {"2g.20gb": 1, "1g.10gb": 1}
    assert decided(asker, node("n", cpu=16, **both), rules=INJECTS).audit == {
        "fallback": "2g.20gb->1g.10gb",
        "injection": "V100",
    }
    assert decided(asker, node("n", cpu=32, **both), rules=INJECTS).audit == {"injection": "V100"}
    decision = decided(asker, node("n", cpu=4, **both), rules=INJECTS)
    assert isinstance(decision, Denied)
    assert decision.message.startswith(
        "asked for nvidia.com/mig-2g.20gb: 1, and no node that this pod can use has room for it and for what is injected; "
        "tried 1g.10gb (no node has room for it and for what is injected), gpu (not offered); "
    )


def test_injected_resources_that_no_node_has():
    """They exclude no pod, and are warned of; where some nodes have them, the others do not count."""
    asker = pod(container(**{"2g.20gb": 1}), annotations=V100)
    without = node("n", **{"2g.20gb": 1})
    assert decided(asker, without, rules=INJECTS).warnings == (
        "injected example.com/shm: no node has it now",
    )
    has = node("m", **{"1g.10gb": 1, "example.com/shm": 1})
    decision = decided(asker, without, has, rules=INJECTS)
    assert decision.audit == {"fallback": "2g.20gb->1g.10gb", "injection": "V100"}
    assert len(decision.warnings) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fallback-policy", "nevr", 'metadata.annotations[gpu-webhook.k8s.io/fallback-policy]: "nevr" is not one of never, smaller, larger, any'),
        ("min-memory", "20", 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "20" is less than 1Gi, which every profile has; did you mean 20Gi?'),
        ("min-memory", "900Mi", 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "900Mi" is less than 1Gi, which every profile has'),
        ("min-memory", "-20Gi", 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "-20Gi" is less than 1Gi, which every profile has'),
        ("min-memory", "20GB", 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "20GB" is not an amount of memory such as 20Gi'),
        ("min-memory", "../\n\x1b[31m" + "x" * 300_000, 'metadata.annotations[gpu-webhook.k8s.io/min-memory]: "../\\n\\x1b[31m' + "x" * 51 + '"… is not an amount of memory such as 20Gi'),
    ],
)  # fmt: skip
def test_fault_10_bad_annotations(key, value, message):
    """A value that means nothing denies the pod in one clean line: a guess could give it less than it needs."""
    asker = pod(container(**{"2g.20gb": 1}), annotations={"gpu-webhook.k8s.io/" + key: value})
    assert decided(asker, SMALL) == Denied("bad_annotation", message)
    assert isinstance(decided(pod(container(cpu=1), annotations=asker.annotations), SMALL), Allowed)


def test_mirror_pod():
    """A kubelet's mirror pods are left alone."""
    asker = pod(container(**{"2g.20gb": 1}), annotations={"kubernetes.io/config.mirror": "x"})
    assert decided(asker) == Allowed("a mirror pod: its kubelet runs it already")
