"""Fallback by what is free (`fallback.when: full`), at the decision: what is chosen, for whom what is free does not matter, what is said."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission import explanation
from tessera.core.admission.decision import decide, decide_template
from tessera.core.admission.fallback.full import EVERY_BY
from tessera.core.admission.outcome import Allowed, Denied, Patched, observed
from tessera.core.admission.policy import Policy, When
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, WaitingPod, usage_of
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Namespace, Node, is_other, why_excluded
from tessera.core.kubernetes.pod import Pod, needs
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import CORDONED, NodeSelectorTerm, Requirement
from tessera.core.requests.alternatives import own_expression
from tessera.core.requests.asking import asked_profiles
from tessera.core.requests.record import MARK_ANNOTATION, apply, mark_text
from tessera.core.resources import of_short
from tests.build import MIG, amounts, container, node, offers, pod, policy, resource
from tests.examples import examples

FULL = "fallback: {when: full}"
WHEN = "gpu-webhook.k8s.io/fallback-when"
ORIGIN = Origin("default", "u", "web-")


def ask(**gpus):
    return pod(container(**gpus))


def bound(where: str, **asks: object) -> BoundPod:
    return BoundPod(where, usage_of(pod(container(**asks))), ORIGIN)


def waiting(**asks: object) -> WaitingPod:
    return WaitingPod(Shape.of(pod(container(**asks))), ORIGIN)


def cluster(
    *nodes: Node, pods: tuple[BoundPod | WaitingPod, ...] = (), namespaces: tuple[Namespace, ...] = ()
) -> Offers:
    """Nodes, of which these pods have taken something."""
    view = offers(*nodes, namespaces=namespaces)
    view.follow_pods().replace_pods(((f"default/{i}", one) for i, one in enumerate(pods)), 0.0)
    return view


def outcome(decision):
    """What was replaced, or that nothing was."""
    if isinstance(decision, Denied):
        return decision.code
    return dict(decision.replaced) if isinstance(decision, Patched) and decision.replaced else "as asked"


BOTH = node("n", cpu=8, memory="64Gi", pods=4, **{"2g.20gb": 1, "1g.10gb": 2})
TAKEN = bound("n", **{"2g.20gb": 1})
SMALL_TAKEN = bound("n", **{"1g.10gb": 2})


# 1. What is chosen


@pytest.mark.parametrize(
    ("nodes", "pods", "asks", "rules", "becomes"),
    [
        pytest.param((BOTH,), (), {"2g.20gb": 1}, "", "as asked", id="free as asked"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "", {"2g.20gb": "1g.10gb"}, id="taken by a bound pod: the first that is free"),
        pytest.param((BOTH,), (waiting(**{"2g.20gb": 1}),), {"2g.20gb": 1}, "", {"2g.20gb": "1g.10gb"}, id="room of a pod that waits"),
        pytest.param((BOTH,), (TAKEN, SMALL_TAKEN), {"2g.20gb": 1}, "", "as asked", id="nothing free: as asked, and it waits"),
        pytest.param((BOTH,), (TAKEN, SMALL_TAKEN), {"3g.40gb": 1}, "", {"3g.40gb": "2g.20gb"}, id="nothing free and not offered: as missing"),
        pytest.param((BOTH,), (TAKEN,), {"3g.40gb": 1}, "", {"3g.40gb": "1g.10gb"}, id="not offered: the first that is free"),
        pytest.param((node("n", **{"2g.20gb": 3, "1g.10gb": 3}),), (bound("n", **{"2g.20gb": 2}),), {"2g.20gb": 2}, "", {"2g.20gb": "1g.10gb"}, id="enough of it on one node, or none"),
        pytest.param((node("a", **{"2g.20gb": 1, "1g.10gb": 1}), node("b", **{"2g.20gb": 1})), (bound("a", **{"2g.20gb": 1}),), {"2g.20gb": 1}, "", "as asked", id="free on another node"),
        pytest.param((BOTH,), (bound("n", cpu=1),), {"2g.20gb": 1, "cpu": 8}, "", "as asked", id="no cpu left for anything: it waits"),
        pytest.param((BOTH, node("b", **{"1g.10gb": 1})), (bound("n", cpu=6),), {"2g.20gb": 1, "cpu": 4}, "", {"2g.20gb": "1g.10gb"}, id="cpu counts too, where nodes say it"),
        pytest.param((BOTH, node("b", **{"1g.10gb": 1})), (bound("n", memory="60Gi"),), {"2g.20gb": 1, "memory": "8Gi"}, "", {"2g.20gb": "1g.10gb"}, id="and memory"),
        pytest.param((BOTH, node("b", **{"1g.10gb": 1})), (bound("n", cpu=1),) * 4, {"2g.20gb": 1}, "", {"2g.20gb": "1g.10gb"}, id="and a place among the node's pods"),
        pytest.param((replace(BOTH, taints=(CORDONED,)), node("b", **{"1g.10gb": 1})), (), {"2g.20gb": 1}, "", {"2g.20gb": "1g.10gb"}, id="a cordoned node has nothing free"),
        pytest.param((replace(BOTH, ready=False), node("b", **{"1g.10gb": 1})), (), {"2g.20gb": 1}, "", {"2g.20gb": "1g.10gb"}, id="nor has one that is not ready"),
        pytest.param((replace(BOTH, taints=(CORDONED,)),), (), {"2g.20gb": 1}, "", "as asked", id="but what passes changes no pod where nothing is free"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "fallback: {when: full, downgrades: false}", "as asked", id="policies hold"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "fallback: {when: full, minMemory: 20Gi}", "as asked", id="minimums hold"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "fallback: {when: full, minMemoryFraction: 0.6}", "as asked", id="fractions hold"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "fallback: {when: full, chains: {2g.20gb: []}}", "as asked", id="chains hold"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "fallback: {when: full, enabled: false}", "as asked", id="fallback is off"),
        pytest.param((BOTH,), (TAKEN, SMALL_TAKEN), {"2g.20gb": 1}, "fallback: {when: full, autoscaled: [1g.10gb]}", {"2g.20gb": "1g.10gb"}, id="a candidate that the autoscaler brings counts as free"),
        pytest.param((BOTH,), (TAKEN,), {"2g.20gb": 1}, "fallback: {when: full, autoscaled: [2g.20gb]}", "as asked", id="what was asked for can come: a waiting pod brings a node"),
        pytest.param((replace(BOTH, allocatable=amounts({"1g.10gb": 2}), unavailable=amounts({"2g.20gb": 1})),), (TAKEN,), {"2g.20gb": 1}, "", "as asked", id="within its grace a resource is as with missing"),
        pytest.param((BOTH,), (), {"gpu": 1}, "", "as asked", id="whole GPUs are left alone"),
        pytest.param((node("n", gpu=1, **{"2g.20gb": 1}),), (TAKEN,), {"2g.20gb": 1}, "", {"2g.20gb": "gpu"}, id="a whole GPU that is free"),
        pytest.param((node("n", gpu=1, **{"2g.20gb": 1}), node("s", cpu=1, gpu=4, labels={"nvidia.com/gpu.replicas": "4"})), (TAKEN, bound("s", gpu=4)), {"2g.20gb": 1}, "", "as asked", id="shares under that name are taken: a whole GPU is none all the same"),
        pytest.param((node("n", cpu=4, gpu=1, **{"2g.20gb": 1}), node("s", cpu=4, gpu=4, labels={"nvidia.com/gpu.replicas": "4"})), (TAKEN, bound("s", cpu=4)), {"2g.20gb": 1, "cpu": 1}, "", "as asked", id="nor where the node with shares has no cpu left"),
    ],
)  # fmt: skip
def test_the_first_that_is_free(nodes, pods, asks, rules, becomes):
    """Candidates in their order, the first of which one node that the pod can use has enough free, for all that it asks for together; else as `missing`."""
    decision = decide(ask(**asks), cluster(*nodes, pods=pods), policy(rules or FULL))
    assert outcome(decision) == becomes


def test_only_nodes_that_the_pod_can_use():
    """What is free elsewhere is not free for this pod."""
    nodes = (node("a", labels={"zone": "a"}, **{"2g.20gb": 1, "1g.10gb": 1}), node("b", **{"2g.20gb": 1}))
    view = cluster(*nodes, pods=(bound("a", **{"2g.20gb": 1}),))
    here = pod(container(**{"2g.20gb": 1}), node_selector={"zone": "a"})
    assert outcome(decide(here, view, policy(FULL))) == {"2g.20gb": "1g.10gb"}


def test_two_profiles_must_be_free_together():
    """One node must have all of it free: what is free on two nodes is not enough."""
    nodes = (node("a", **{"2g.20gb": 1, "1g.10gb": 2}), node("b", **{"3g.40gb": 1, "1g.10gb": 2}))
    two = pod(container("x", **{"2g.20gb": 1}), container("y", **{"3g.40gb": 1}))
    assert outcome(decide(two, cluster(*nodes), policy(FULL))) == {"3g.40gb": "1g.10gb"}
    taken = cluster(*nodes, pods=(bound("a", **{"2g.20gb": 1}),))
    assert outcome(decide(two, taken, policy(FULL))) == {"2g.20gb": "1g.10gb"}


def test_quotas_hold():
    """Nothing is chosen that a quota has no room for, however free it is."""
    view = cluster(BOTH, pods=(TAKEN,))
    view.put_quota(Quota("default", "q", {MIG + "2g.20gb": 4}, {}))
    assert outcome(decide(ask(**{"2g.20gb": 1}), view, policy(FULL))) == "as asked"


def test_injection_counts():
    """What injection adds must be free too. A replacement that injection would refuse is none: the pod is not rejected."""
    rules = "fallback: {{when: full}}\ninjection: {{resourceMap: {{V100: {{nvidia.com/mig-1g.10gb: {{resourceList: [{{name: cpu, coefficient: {}}}]}}}}}}}}"
    typed = {"task.bkbcs.tencent.com/gpu-type": "V100"}
    asker = pod(container(**{"2g.20gb": 1}), annotations=typed)
    view = cluster(BOTH, pods=(TAKEN,))
    assert outcome(decide(asker, view, policy(rules.format(8)))) == {"2g.20gb": "1g.10gb"}
    assert outcome(decide(asker, view, policy(rules.format(9)))) == "as asked"
    beside = pod(container(**{"2g.20gb": 1}), container("other", cpu=2), annotations=typed)
    decision = decide(beside, view, policy(rules.format(1)))
    assert outcome(decision) == "as asked"
    assert decision.by == "full"


# 2. For whom what is free does not matter


def marked(asker):
    return replace(asker, annotations={MARK_ANNOTATION: mark_text(asker)})


ONE = ask(**{"2g.20gb": 1})
TO_NODE = (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("n",)),)),)


@pytest.mark.parametrize(
    ("asker", "by"),
    [
        pytest.param(ONE, "full", id="usual"),
        pytest.param(replace(ONE, priority=0), "full", id="priority 0"),
        pytest.param(replace(ONE, priority=-5), "full", id="priority below 0"),
        pytest.param(replace(ONE, priority=0, priority_class="standard"), "full", id="a class of priority 0"),
        pytest.param(replace(ONE, scheduler="default-scheduler"), "full", id="Kubernetes' own scheduler by name"),
        pytest.param(replace(ONE, priority=1), "priority", id="priority above 0: it may preempt"),
        pytest.param(replace(ONE, priority_class="high"), "priority", id="unknown priority"),
        pytest.param(replace(ONE, queued=True), "kueue", id="a pod that Kueue manages"),
        pytest.param(replace(ONE, counted=True), "kueue", id="a pod of a workload that Kueue counts"),
        pytest.param(replace(ONE, gated=True), "gated", id="scheduling gates"),
        pytest.param(replace(ONE, annotations={"gpu-webhook.k8s.io/decided": "template"}), "template", id="decided with its template"),
        pytest.param(replace(ONE, node_name="n"), "bound", id="nodeName"),
        pytest.param(replace(ONE, required_terms=TO_NODE), "bound", id="a DaemonSet's"),
        pytest.param(replace(ONE, scheduler="volcano"), "scheduler", id="another scheduler"),
        pytest.param(marked(ONE), "marked", id="decided before"),
        pytest.param(pod(*(container(f"c{i}", **{"2g.20gb": 1}) for i in range(90))), "too_long", id="too large for a mark"),
    ],
)  # fmt: skip
def test_for_whom_it_does_not_matter(asker, by):
    """Whom what is free does not concern is decided about exactly as with `missing`; the decision says why, and is no momentary one."""
    large = node("n", **{"2g.20gb": 90, "1g.10gb": 90})
    view = cluster(large, pods=(bound("n", **{"2g.20gb": 90}),))
    decision = decide(asker, view, policy(FULL))
    assert decision.by == by
    if by == "full":
        assert outcome(decision) == {"2g.20gb": "1g.10gb"}
        assert isinstance(decision, Patched)
        assert decision.momentary is not None
    else:
        missing = decide(asker, view, policy())
        assert replace(decision, by="") == missing
        assert isinstance(decision, Allowed)
        assert decision.momentary is None


def test_every_reason_is_known():
    """The counter knows every reason beforehand."""
    assert set(EVERY_BY) == {"full", "no_view", "marked", "template", "bound", "kueue", "gated", "scheduler", "priority", "too_long"}  # fmt: skip


def test_a_template_is_decided_as_missing():
    """A workload's template is for all its pods: it gets no mark, and what is free does not matter."""
    view = cluster(BOTH, pods=(TAKEN,))
    decision = decide_template(ONE, view, policy(FULL))
    assert isinstance(decision, Patched)
    assert (decision.replaced, decision.momentary) == ((), None)
    assert [one.key for one in decision.edits] == ["gpu-webhook.k8s.io/decided"]  # type: ignore[union-attr]


def test_nobody_follows_pods():
    """Where nobody follows pods, `full` is `missing`."""
    decision = decide(ONE, offers(BOTH), policy(FULL))
    assert decision.by == "no_view"
    assert replace(decision, by="") == decide(ONE, offers(BOTH), policy())


@pytest.mark.parametrize(
    ("rules", "own", "of_namespace", "by"),
    [
        ("", "full", "full", ""),
        ("fallback: {full: {enabled: true}}", None, None, ""),
        ("fallback: {full: {enabled: true}}", "full", None, "full"),
        ("fallback: {full: {enabled: true}}", None, "full", "full"),
        ("fallback: {full: {enabled: true}}", "missing", "full", ""),
        (FULL, None, "missing", ""),
        (FULL, "full", "missing", "full"),
    ],
)
def test_who_says_it(rules, own, of_namespace, by):
    """The pod over its namespace over the configuration; annotations work only where the operator switched it on."""
    namespace = Namespace("default", annotations={WHEN: of_namespace} if of_namespace else {})
    view = cluster(BOTH, pods=(TAKEN,), namespaces=(namespace,))
    asker = replace(ONE, annotations={WHEN: own} if own else {})
    assert decide(asker, view, policy(rules)).by == by


def test_an_annotation_without_a_meaning():
    """It is refused as any other annotation; where the operator has not switched it on, nobody reads it."""
    asker = replace(ONE, annotations={WHEN: "always"})
    refused = decide(asker, cluster(BOTH), policy(FULL))
    assert refused == Denied(
        "bad_annotation", f'metadata.annotations[{WHEN}]: "always" is not one of missing, full'
    )
    assert outcome(decide(asker, cluster(BOTH), policy())) == "as asked"
    impatient = replace(ONE, annotations={"gpu-webhook.k8s.io/patience": "soon"})
    refused = decide(impatient, cluster(BOTH), policy(FULL))
    assert isinstance(refused, Denied)
    assert '"soon" is not a duration such as 30s, 2m or 1h' in refused.message
    assert outcome(decide(impatient, cluster(BOTH), policy())) == "as asked"


def test_the_bridge_goes_first():
    """Where a request can become a claim, the scheduler chooses by what is free: no mark, no room."""
    view = Offers([Node("n", dra={resource("2g.20gb"): 1, resource("1g.10gb"): 2})])
    classes = {
        resource(one): DeviceClass(one, (own_expression(resource(one)),), resource(one))
        for one in ("2g.20gb", "1g.10gb")
    }
    view.put_classes(classes, classes)
    view.follow_pods()
    decision = decide(ONE, view, policy("fallback: {when: full, dra: first-available}"))
    assert isinstance(decision, Patched)
    assert (decision.conversion, decision.by, decision.momentary) == ("claim", "", None)
    kept = decide(replace(ONE, claims=("own",)), view, policy("fallback: {when: full, dra: first-available}"))
    assert isinstance(kept, Allowed)
    assert (kept.conversion, kept.by) == ("own_claims", "full")


# 3. What is said, and the mark


def test_what_is_said():
    """Record, warning, audit and reason say that what was asked for is taken; the mark has what was decided."""
    decision = decide(ONE, cluster(BOTH, pods=(TAKEN,)), policy(FULL))
    assert isinstance(decision, Patched)
    assert decision.reason == "2g.20gb is taken, 1g.10gb is the first that is free"
    assert decision.warnings == (
        "GPU fallback 2g.20gb->1g.10gb: 2g.20gb is taken on every node that this pod can use; 1g.10gb is free",
    )
    assert decision.audit == {"fallback": "2g.20gb->1g.10gb", "fallback-reason": "full"}
    assert decision.cause == "full"
    assert decision.momentary is not None
    assert decision.momentary.mark.value == f'{{"main":{{"{MIG}1g.10gb":"1"}}}}'
    assert needs(decision.momentary.pod, lambda _: True) == {f"{MIG}1g.10gb": 1}
    annotations = {one.key for one in decision.edits if hasattr(one, "key")}
    assert annotations == {"gpu-webhook.k8s.io/fallback", "gpu-webhook.k8s.io/asked"}


@pytest.mark.parametrize(
    ("nodes", "pods", "asks", "reason", "warning"),
    [
        ((BOTH,), (), {"2g.20gb": 1}, "what it asks for is free", ""),
        ((BOTH,), (TAKEN, SMALL_TAKEN), {"2g.20gb": 1}, "what it asks for is offered; nothing that it may get is free now, so it waits", ""),
        ((BOTH,), (TAKEN, SMALL_TAKEN), {"3g.40gb": 1}, "3g.40gb is not offered, 2g.20gb is the first that is; nothing that it may get is free now, so it waits", "no node that this pod can use offers 3g.40gb as asked"),
        ((BOTH,), (), {"3g.40gb": 1}, "3g.40gb is not offered, 2g.20gb is the first that is", "no node that this pod can use offers 3g.40gb as asked"),
        ((BOTH,), (TAKEN,), {"3g.40gb": 1}, "3g.40gb is not offered, 1g.10gb is the first that is free", "no node that this pod can use offers 3g.40gb as asked; 1g.10gb is free"),
        ((BOTH, node("b", **{"1g.10gb": 1})), (bound("n", cpu=8),), {"2g.20gb": 1, "cpu": 1}, "2g.20gb is taken, 1g.10gb is the first that is free", "no node has 2g.20gb free with all else that this pod needs; 1g.10gb is free"),
    ],
)  # fmt: skip
def test_the_words(nodes, pods, asks, reason, warning):
    """The reason in the log, and the warning for the pod's owner, say what is the case."""
    decision = decide(ask(**asks), cluster(*nodes, pods=pods), policy(FULL))
    assert not isinstance(decision, Denied)
    assert decision.reason == reason
    assert [text.partition(": ")[2] for text in decision.warnings] == ([warning] if warning else [])
    assert all(len(text) <= 120 for text in decision.warnings)


def test_observed():
    """In observe mode the warning says what would be, and a pod that is placed as asked is not said to be changed."""
    would = observed(decide(ONE, cluster(BOTH, pods=(TAKEN,)), policy(FULL)))
    assert would.warnings == (
        "observe mode: would be changed to 1g.10gb: no node that this pod can use has 2g.20gb free",
    )
    assert observed(decide(ONE, cluster(BOTH), policy(FULL))).warnings == ()


def test_explained():
    """The explanation has what is free beside what is allocatable, and who says that it matters."""
    view = cluster(BOTH, node("b", cpu=1, **{"3g.40gb": 1}), pods=(TAKEN, bound("b", cpu=1)))
    asker = ask(**{"2g.20gb": 1, "cpu": 1})
    found = {
        one.candidate.removeprefix(MIG): (one.reason, one.chosen)
        for one in explanation.trials(asker, view, policy(FULL))
    }
    assert found == {
        "2g.20gb": ("offered, up to 1 a node; none free now", False),
        "1g.10gb": ("offered, up to 2 a node; up to 2 free on a node now", True),
        "3g.40gb": ("offered, up to 1 a node; free now only where the rest of the pod has no room", False),
        "nvidia.com/gpu": ("not offered", False),
    }
    assert "what is free now decides (fallback.when: full)" in explanation.rules(asker, view, policy(FULL))
    rules = list(explanation.rules(replace(asker, priority=7), view, policy(FULL)))
    assert (
        "what is free does not matter (fallback.when: full): its priority is 7, and the scheduler may evict pods for it"
        in rules
    )
    plain = {one.candidate.removeprefix(MIG): one.reason for one in explanation.trials(asker, view, policy())}
    assert plain["2g.20gb"] == "offered, up to 1 a node"


# Laws

PROFILES = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"]
has = st.dictionaries(st.sampled_from([*PROFILES, "gpu"]), st.integers(1, 3), min_size=1, max_size=3)
clusters = st.lists(st.tuples(has, st.sampled_from([{}, {"cpu": 2}, {"cpu": 8}])), min_size=1, max_size=3)
taken = st.lists(st.tuples(st.integers(0, 2), st.dictionaries(st.sampled_from([*PROFILES, "gpu", "cpu"]), st.integers(1, 2), min_size=1, max_size=2)), max_size=5)  # fmt: skip
askers = st.lists(st.dictionaries(st.sampled_from([*PROFILES, "gpu", "cpu"]), st.integers(1, 2), max_size=2), min_size=1, max_size=2).map(
    lambda every: pod(*(container(f"c{i}", **asks) for i, asks in enumerate(every)))
)  # fmt: skip
policies = st.sampled_from(
    [FULL, "fallback: {when: full, upgrades: false}", "fallback: {when: full, unmatched: admit}", "fallback: {when: full, minMemory: 15Gi, maxWholeGPUs: 2}"]
).map(policy)  # fmt: skip


def left(nodes: list[Node], pods: list[BoundPod]) -> dict[str, dict[str, int]]:
    """What each node has left, counted in the plainest way."""
    found = {
        one.name: {name: int(amount.value) * 10**9 for name, amount in one.allocatable.items()}
        for one in nodes
    }
    for one in pods:
        for name, amount in one.usage:
            if name in found[one.node]:
                found[one.node][name] -= amount
    return found


def fits(asker: Pod, nodes: list[Node], free: dict[str, dict[str, int]]) -> bool:
    """Whether one node has all that a pod needs left; a node that does not say its cpu has any amount."""
    wanted = needs(asker, lambda _: True)
    return any(
        why_excluded(asker, one) is None
        and all(
            free[one.name].get(name, 10**12 if name == "cpu" else 0) >= amount * 10**9
            for name, amount in wanted.items()
        )
        for one in nodes
    )


@given(clusters, taken, askers, policies)
@settings(max_examples=examples(300))
def test_never_what_is_not_free_and_never_rejected(shapes, pods, asker, rules):
    """A replacement that `missing` would not make is free by a plain count, what is free as asked stays, and who is admitted with `missing` is admitted."""
    nodes = [node(f"n{i}", **gpus, **others) for i, (gpus, others) in enumerate(shapes)]
    used = [bound(f"n{at}", **asks) for at, asks in pods if at < len(nodes)]
    free = left(nodes, used)
    view = cluster(*nodes, pods=tuple(used))
    decision, missing = decide(asker, view, rules), decide(asker, view, policy_missing(rules))
    assert isinstance(decision, Denied) == isinstance(missing, Denied)
    if isinstance(decision, Denied) or decision.by != "full":
        assert outcome(decision) == outcome(missing)
        return
    by = (
        {of_short(old): of_short(new) for old, new in decision.replaced}
        if isinstance(decision, Patched)
        else {}
    )
    if fits(asker, nodes, free):
        assert not by
    elif outcome(decision) != outcome(missing):
        assert by
        assert fits(apply(asker, by), nodes, free)
    assert decision.momentary is not None
    assert asked(decision.momentary.pod) == asked(apply(asker, by))
    again = replace(decision.momentary.pod, annotations={MARK_ANNOTATION: decision.momentary.mark.value})
    second = decide(again, view, rules)
    assert isinstance(second, Allowed), "a marked pod is not changed again, whatever became free or taken"
    assert second.by == ("marked" if asked_profiles(again) else "")
    offered = decide(replace(again, annotations={}), offers(*nodes), policy_missing(rules))
    assert isinstance(offered, Allowed), "what is given is offered"


def policy_missing(rules: Policy) -> Policy:
    return replace(rules, fallback=replace(rules.fallback, when=When.MISSING, full_enabled=False))


def asked(one):
    return needs(one, lambda name: not is_other(name))


@given(clusters, askers, policies)
@settings(max_examples=examples(200))
def test_nobody_follows_pods_is_missing(shapes, asker, rules):
    """Where nobody follows pods, `full` decides exactly like `missing`."""
    nodes = [node(f"n{i}", **gpus, **others) for i, (gpus, others) in enumerate(shapes)]
    decision, missing = (decide(asker, offers(*nodes), one) for one in (rules, policy_missing(rules)))
    assert replace(decision, by="") == missing
