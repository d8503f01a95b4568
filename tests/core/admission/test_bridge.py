"""The bridge: whose request becomes a claim, and which."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.core.admission import decision as decisions
from tessera.core.admission.outcome import Allowed, Denied, Patched
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.pod import (
    ClaimRequest,
    Container,
    DropAmount,
    SetAnnotation,
    SetClaims,
    SetPodClaims,
)
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import Requirement
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, own_expression, read, template_name
from tessera.core.requests.tickets import TICKET_ANNOTATION, TicketKey, TicketMaker
from tessera.core.resources import short
from tests.build import MIG, container, node, pod, policy, resource

FIRST = "fallback: {dra: first-available}"
GENERAL = "tessera-any"
LAYOUT = {"2g.20gb": 1, "1g.10gb": 2}


def decide(*args: Any) -> Any:
    """A decision of any kind: the tests say which they expect."""
    return decisions.decide(*args)


def dra_node(name="d", labels=None, **has):
    """A node whose devices DRA serves."""
    return Node(name, labels or {}, dra={resource(type_): count for type_, count in has.items()})


def cluster(*nodes, quotas=(), namespaces=(), general=True):
    """Offers with the chart's classes."""
    offers = Offers(nodes or (dra_node(**LAYOUT),), namespaces)
    types = {name for one in offers.nodes.values() for name in one.dra}
    offers.classes = {
        name: DeviceClass(f"tessera-{short(name).replace('.', '-')}", (own_expression(name),))
        for name in types
    }
    offers.class_names = frozenset(
        {one.name for one in offers.classes.values()} | ({GENERAL} if general else set())
    )
    for quota in quotas:
        offers.put_quota(quota)
    return offers


def alternatives_of(decision):
    """The text that the pod would carry."""
    assert isinstance(decision, Patched), decision
    assert decision.conversion == "claim"
    edits = (one for one in decision.edits if isinstance(one, SetAnnotation))
    return next(one.value for one in edits if one.key == ALTERNATIVES_ANNOTATION)


def test_a_request_becomes_a_claim():
    """The resource goes from requests and limits; the claim, its template and the text of alternatives come."""
    decision = decide(pod(container(**{"2g.20gb": 1, "cpu": 4})), cluster(), policy(FIRST))
    text = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
    assert decision == Patched(
        edits=(
            DropAmount("containers", 0, "requests", MIG + "2g.20gb"),
            DropAmount("containers", 0, "limits", MIG + "2g.20gb"),
            SetAnnotation(ALTERNATIVES_ANNOTATION, text),
            SetClaims("containers", 0, (ClaimRequest("tessera-gpu", "gpu-0"),)),
            SetPodClaims("tessera-gpu", template_name(text)),
        ),
        reason="2g.20gb becomes a claim for 2g.20gb, else 1g.10gb",
        warnings=("GPU request 2g.20gb is a claim: 2g.20gb, else 1g.10gb, the first that is free",),
        audit={"claim": text},
        conversion="claim",
    )


@pytest.mark.parametrize(
    ("asker", "rules", "nodes", "text"),
    [
        ({"2g.20gb": 1}, "", {"3g.30gb": 1, **LAYOUT}, "1*2g.20gb=2g.20gb,1g.10gb,3g.30gb"),
        ({"2g.20gb": 1}, "", {"gpu": 1, **LAYOUT}, "1*2g.20gb=2g.20gb,1g.10gb,gpu"),
        (
            {"1g.10gb": 2},
            "",
            {"gpu": 2, "2g.20gb": 2, "1g.10gb": 2},
            "2*1g.10gb=1g.10gb,2g.20gb",
        ),  # no two GPUs
        (
            {"2g.20gb": 2},
            "",
            {"3g.30gb": 1, "2g.20gb": 2, "1g.10gb": 2},
            "2*2g.20gb=2g.20gb,1g.10gb",
        ),  # one 3g
        (
            {"2g.20gb": 1},
            "chains: {2g.20gb: [gpu, 1g.10gb]}",
            {"gpu": 1, **LAYOUT},
            "1*2g.20gb=2g.20gb,gpu,1g.10gb",
        ),
        ({"2g.20gb": 1}, "downgrades: false", {"3g.30gb": 1, **LAYOUT}, "1*2g.20gb=2g.20gb,3g.30gb"),
        ({"2g.20gb": 1}, "minMemory: 20Gi", {"3g.30gb": 1, **LAYOUT}, "1*2g.20gb=2g.20gb,3g.30gb"),
        ({"3g.30gb": 1}, "", LAYOUT, "1*3g.30gb=2g.20gb,1g.10gb"),  # what was asked is not there
    ],
)
def test_alternatives_are_the_fallbacks_candidates(asker, rules, nodes, text):
    """In its order, with its policies, minimums and chains."""
    rules = f"fallback: {{dra: first-available, {rules}}}"
    found = alternatives_of(decide(pod(container(**asker)), cluster(dra_node(**nodes)), policy(rules)))
    assert found.replace(f"/{GENERAL}", "") == text


def test_eight_alternatives_at_most():
    """What is cut off is said."""
    many = {f"{n}g.{n}0gb": 1 for n in range(1, 11)}
    decision = decide(pod(container(**{"10g.100gb": 1})), cluster(dra_node(**many)), policy(FIRST))
    [request] = read(alternatives_of(decision)).requests
    assert [one.name for one in request.alternatives] == [f"{n}g-{n}0gb" for n in range(10, 2, -1)]
    assert decision.warnings[1] == (
        "GPU request 10g.100gb: a claim has at most 8 alternatives, which leaves out 2g.20gb, 1g.10gb"
    )


def test_several_containers():
    """A request for each container and profile; init containers use what containers have, sidecars have their own."""
    asker = pod(
        container("a", **{"2g.20gb": 1}),
        container("b", **{"2g.20gb": 1, "3g.30gb": 1}),
        init=(
            container("i", **{"2g.20gb": 1}),
            container("s", restartable=True, **{"2g.20gb": 1}),
            container("x"),
        ),
    )
    decision = decide(asker, cluster(dra_node(**{"3g.30gb": 3, "2g.20gb": 3, "1g.10gb": 3})), policy(FIRST))
    text = alternatives_of(decision).replace(f"/{GENERAL}", "")
    two, three = "1*2g.20gb=2g.20gb,1g.10gb,3g.30gb", "1*3g.30gb=3g.30gb,2g.20gb,1g.10gb"
    assert text == f"{two};{two};{two};{three}"

    def uses(*numbers):
        return tuple(ClaimRequest("tessera-gpu", f"gpu-{n}") for n in numbers)

    assert [one for one in decision.edits if isinstance(one, SetClaims)] == [
        SetClaims("initContainers", 1, uses(0)),
        SetClaims("containers", 0, uses(1)),
        SetClaims("containers", 1, uses(2, 3)),
        SetClaims("initContainers", 0, uses(0)),
    ]


def test_several_profiles_and_whole_gpus():
    """Each alone could become a whole GPU, and the pod may have one: then none does."""
    asker = pod(container(**{"2g.20gb": 1}), container(**{"1g.10gb": 1}))
    nodes = dra_node(gpu=2, **LAYOUT)
    text = alternatives_of(decide(asker, cluster(nodes), policy(FIRST))).replace(f"/{GENERAL}", "")
    assert text == "1*2g.20gb=2g.20gb,1g.10gb;1*1g.10gb=1g.10gb,2g.20gb"
    two = policy("fallback: {dra: first-available, maxWholeGPUs: 2}")
    assert alternatives_of(decide(asker, cluster(nodes), two)).count("gpu/") == 2


@pytest.mark.parametrize(
    ("way", "more", "words"),
    [
        ("kueue", {"queued": True}, "Kueue counts the pod's request, and cannot count alternatives"),
        ("priority", {"priority": 1}, "its priority is 1, and the scheduler evicts no pod for a claim"),
        ("priority", {"priority_class": "high"}, "the priority of class high is not known"),
        ("node_name", {"node_name": "d"}, "spec.nodeName is set, and a claim needs the scheduler"),
        ("scheduler", {"scheduler": "volcano"}, "its scheduler is volcano"),
        ("own_claims", {"claims": ("own",)}, "it has claims of its own"),
        ("own_claims", {"claims": ("",)}, "it has claims of its own"),
        (
            "never",
            {"annotations": {"gpu-webhook.k8s.io/fallback-policy": "never"}},
            "the pod's fallback-policy is `never`",
        ),
        (
            "replaced",
            {"annotations": {"gpu-webhook.k8s.io/fallback": "3g.30gb->2g.20gb"}},
            "what it asks for was chosen at an earlier admission",
        ),
        (
            "no_alternative",
            {"annotations": {"gpu-webhook.k8s.io/min-memory": "20Gi"}},
            "no other type may replace what it asks for",
        ),
    ],
)
def test_who_stays_an_extended_resource(way, more, words):
    """Each for a reason, which is reported."""
    decision = decide(pod(container(**{"2g.20gb": 1}), **more), cluster(), policy(FIRST))
    assert decision == Allowed(
        f"what it asks for is offered; no claim: {words}", conversion=decision.conversion
    )


def test_one_type_in_place_of_what_is_asked_is_no_list_of_alternatives():
    """A pod that is changed to the only type there is gets no warning that no other type may replace its own."""
    decision = decide(pod(container(**{"2g.20gb": 1})), cluster(dra_node(**{"1g.10gb": 7})), policy(FIRST))
    assert isinstance(decision, Patched)
    assert decision.reason == (
        "2g.20gb is not offered, 1g.10gb is the first that is; no claim: there is only one type to choose from"
    )


@pytest.mark.parametrize("more", [{"priority": 0}, {"priority": -5}, {"scheduler": "default-scheduler"}])
def test_who_is_bridged_all_the_same(more):
    """A priority of zero and less, and the scheduler that Kubernetes has."""
    assert decide(pod(container(**{"2g.20gb": 1}), **more), cluster(), policy(FIRST)).conversion == "claim"


def test_containers_that_keep_a_pod_from_it():
    """Whole GPUs besides; an init container that asks for more than any container; more devices than a claim has."""
    big = cluster(dra_node(gpu=8, **{"2g.20gb": 40, "1g.10gb": 40}))

    def way(*containers, init=()):
        decision = decide(pod(*containers, init=init), big, policy(FIRST))
        assert not isinstance(decision, Denied)
        return decision.conversion

    assert way(container(gpu=1), container(**{"2g.20gb": 1})) == "whole_gpus"
    one, two = container(**{"2g.20gb": 1}), container(**{"2g.20gb": 2})
    assert way(one, init=(two,)) == "init_containers"
    assert way(*[container(f"c{n}", **{"2g.20gb": 8}) for n in range(4)]) == "claim"
    assert way(container("c", cpu=1), init=(one,)) == "init_containers"


@pytest.mark.parametrize(
    ("requests", "limits", "way"),
    [(1, 1, "claim"), (None, 1, "claim"), (1, None, "claim"), (1, 2, "invalid"), (0, 1, "invalid"), (2, 1, "invalid")],
)  # fmt: skip
def test_limits_that_are_not_the_request(requests, limits, way):
    """The API server refuses such a pod; as a claim it would get one of the two."""
    name = MIG + "2g.20gb"
    both = [{} if n is None else {name: Quantity.parse(n)} for n in (requests, limits)]
    offers = cluster(dra_node(**{"2g.20gb": 3, "1g.10gb": 3}))
    other = container("other", **{"2g.20gb": 1})
    assert decide(pod(Container("main", both[0], both[1]), other), offers, policy(FIRST)).conversion == way


def test_too_many_devices():
    """A claim has 32 devices: more of them stay what they are."""
    offers = cluster(dra_node(**{"2g.20gb": 40, "1g.10gb": 40}))
    asker = pod(*[container(f"c{n}", **{"2g.20gb": 1}) for n in range(33)])
    admit = policy("fallback: {dra: first-available, unmatched: admit}")
    assert decide(asker, offers, admit).conversion == "too_many_devices"


def test_mixed_clusters():
    """A candidate that some usable node offers without DRA keeps the pod as it is; nodes that it cannot use do not count."""
    plugin = node("p", labels={"kind": "plugin"}, **{"1g.10gb": 2})
    dra = dra_node(labels={"kind": "dra"}, **LAYOUT)
    asker = pod(container(**{"2g.20gb": 1}))
    decision = decide(asker, cluster(plugin, dra), policy(FIRST))
    words = "1g.10gb can also come from a device plugin or an autoscaler"
    assert decision == Allowed(f"what it asks for is offered; no claim: {words}", conversion="not_dra")
    selecting = replace(asker, node_selector={"kind": "dra"})
    assert decide(selecting, cluster(plugin, dra), policy(FIRST)).conversion == "claim"
    other = node("p", **{"3g.30gb": 2})
    larger = policy("fallback: {dra: first-available, upgrades: false}")
    assert decide(asker, cluster(other, dra), larger).conversion == "claim", (
        "what may not be chosen does not matter"
    )
    autoscaled = policy("fallback: {dra: first-available, autoscaled: [1g.10gb]}")
    assert decide(asker, cluster(dra), autoscaled).conversion == "not_dra"


def test_fallback_goes_on_where_there_is_no_bridge():
    """A pod that is not bridged is replaced or rejected as ever."""
    plugin = node("p", **{"1g.10gb": 2})
    decision = decide(pod(container(**{"2g.20gb": 1})), cluster(plugin), policy(FIRST))
    assert isinstance(decision, Patched)
    assert (decision.replaced, decision.conversion) == ((("2g.20gb", "1g.10gb"),), "not_dra")
    nothing = decide(pod(container(**{"2g.20gb": 1})), cluster(node("n")), policy(FIRST))
    assert isinstance(nothing, Denied)


def test_the_ticket():
    """The controller knows the pod by it: made with the view's key, for the pod's namespace, whatever ticket the pod came with."""
    offers = cluster()
    maker = TicketMaker(TicketKey(b"c" * 32), 500_000)
    offers.put_ticket_maker(maker)
    for annotations in ({}, {TICKET_ANNOTATION: "forged"}):
        one = pod(container(**{"2g.20gb": 1}), namespace="team", annotations=annotations)
        decision = decide(one, offers, policy(FIRST))
        ticket = maker.ticket("team", alternatives_of(decision))
        assert SetAnnotation(TICKET_ANNOTATION, ticket) in decision.edits
        assert ticket not in str(decision.audit) + decision.reason


def test_without_a_key():
    """No key, no ticket: the controller would make no template, so requests stay what they are."""
    offers = cluster()
    offers.put_ticket_maker(None)
    decision = decide(pod(container(**{"2g.20gb": 1})), offers, policy(FIRST))
    assert (decision.conversion, "no key for tickets" in decision.reason) == ("controller_away", True)
    assert decision.warnings == (
        "GPU request is not a claim: the webhook has no key for tickets; tessera controller makes no template without one",
    )


@pytest.mark.parametrize("more", [{}, {"gpu-webhook.k8s.io/dra": "extended-resources"}])
def test_without_a_controller(more):
    """While its Lease is not fresh, requests stay what they are; the client that creates the pod gets a warning, where it could be a claim."""
    offers = cluster(namespaces=[Namespace("default", annotations=more)])
    offers.controller = False
    one = pod(container(**{"2g.20gb": 1}), namespace="default")
    decision = decide(one, offers, policy(FIRST))
    assert isinstance(decision, Allowed)
    if more:
        assert (decision.conversion, decision.warnings) == ("", ())
        return
    assert decision.conversion == "controller_away"
    assert decision.warnings == (
        "GPU request is not a claim: tessera controller does not renew its Lease; it makes the templates",
    )
    template: Any = decisions.decide_template(one, offers, policy(FIRST))
    assert template.warnings == ()


@pytest.mark.parametrize(
    ("configured", "annotation", "way"),
    [
        ("extended-resources", None, ""),
        ("off", None, ""),
        ("first-available", None, "claim"),
        ("first-available", "extended-resources", ""),
        ("extended-resources", "first-available", "claim"),
        ("off", "first-available", "claim"),
    ],
)
def test_the_namespaces_own_choice(configured, annotation, way):
    """A namespace's annotation wins over the configuration."""
    said = {} if annotation is None else {"gpu-webhook.k8s.io/dra": annotation}
    offers = cluster(namespaces=(Namespace("default", annotations=said),))
    rules = policy(f"fallback: {{dra: {configured}, unmatched: admit}}")
    assert decide(pod(container(**{"2g.20gb": 1})), offers, rules).conversion == way


def test_off():
    """What DRA offers does not count: as if no node had it."""
    rules = policy("fallback: {dra: 'off'}")
    assert isinstance(decide(pod(container(**{"2g.20gb": 1})), cluster(), rules), Denied)
    decision = decide(pod(container(**{"2g.20gb": 1})), cluster(dra_node(**LAYOUT), node("p", gpu=1)), rules)
    assert decision.replaced == (("2g.20gb", "gpu"),)


def test_an_annotation_without_a_meaning():
    """A slip in the namespace's annotation is reported, as for the others."""
    offers = cluster(namespaces=(Namespace("default", annotations={"gpu-webhook.k8s.io/dra": "yes"}),))
    assert decide(pod(container(**{"2g.20gb": 1})), offers, policy()) == Denied(
        "bad_annotation",
        'namespace default, metadata.annotations[gpu-webhook.k8s.io/dra]: "yes" is not one of off, '
        "extended-resources, first-available",
    )


def quota(**hard):
    used = {resource(name): pair[0] for name, pair in hard.items()}
    return Quota("default", "gpus", {resource(name): pair[1] for name, pair in hard.items()}, used)


@pytest.mark.parametrize(
    ("hard", "text"),
    [
        # the classes of the types, which are charged to requests.nvidia.com/…
        ({"2g.20gb": (0, 1), "1g.10gb": (0, 1)}, "1*2g.20gb=2g.20gb/tessera-2g-20gb,1g.10gb/tessera-1g-10gb"),
    ],
)  # fmt: skip
def test_a_class_for_each_type_where_a_quota_counts_gpus(hard, text):
    """Never out of a quota: claims of a type's own class are charged to its extended resource."""
    decision = decide(pod(container(**{"2g.20gb": 1})), cluster(quotas=[quota(**hard)]), policy(FIRST))
    assert alternatives_of(decision) == text
    ignoring = policy("fallback: {dra: first-available, quota: ignore}")
    decision = decide(pod(container(**{"2g.20gb": 1})), cluster(quotas=[quota(**hard)]), ignoring)
    assert alternatives_of(decision) == text, "what replacements respect does not matter for that"


@pytest.mark.parametrize(
    ("hard", "asker", "way"),
    [
        (
            {"2g.20gb": (1, 1), "1g.10gb": (0, 1)},
            {"2g.20gb": 1},
            "quota",
        ),  # the API server refuses the pod itself
        ({"2g.20gb": (0, 1), "1g.10gb": (1, 1)}, {"2g.20gb": 1}, "no_alternative"),  # no room for the other
        ({"2g.20gb": (0, 1)}, {"2g.20gb": 1}, "no_alternative"),  # the other is not named
        ({"1g.10gb": (0, 1)}, {"2g.20gb": 1}, "claim"),  # what was asked is not limited
    ],
)
def test_quotas_limit_the_alternatives(hard, asker, way):
    """A claim is charged for each alternative in full: those without room are left out."""
    decision = decide(pod(container(**asker)), cluster(quotas=[quota(**hard)]), policy(FIRST))
    assert decision.conversion == way


def test_quotas_and_several_containers():
    """Two containers are charged twice for an alternative that both have."""
    asker = pod(container("a", **{"2g.20gb": 1}), container("b", **{"2g.20gb": 1}))
    nodes = dra_node(**{"2g.20gb": 2, "1g.10gb": 2})
    enough = quota(**{"2g.20gb": (0, 2), "1g.10gb": (0, 2)})
    assert decide(asker, cluster(nodes, quotas=[enough]), policy(FIRST)).conversion == "claim"
    short = quota(**{"2g.20gb": (0, 2), "1g.10gb": (1, 2)})
    assert decide(asker, cluster(nodes, quotas=[short]), policy(FIRST)).conversion == "no_alternative"


@pytest.mark.parametrize(
    ("scope", "more", "way"),
    [
        ("NotTerminating", {}, "quota"),
        ("Terminating", {}, "claim"),  # it does not count the pod
        ("Terminating", {"has_deadline": True}, "quota"),
        ("NotBestEffort", {}, "quota"),  # injection may still bring the pod into it
        ("BestEffort", {}, "quota"),
    ],
)
def test_quotas_with_scopes(scope, more, way):
    """Kubernetes charges no claim to a quota with scopes: a pod that it counts keeps its request."""
    scoped = replace(
        quota(**{"2g.20gb": (0, 9), "1g.10gb": (0, 9)}), scopes=(Requirement(scope, "Exists", ()),)
    )
    asker = pod(container(**{"2g.20gb": 1}), **more)
    assert decide(asker, cluster(quotas=[scoped]), policy(FIRST)).conversion == way


def test_a_text_that_the_controller_would_not_take():
    """Classes with very long names and many containers: the pod would wait for ever for its template."""
    offers = cluster(dra_node(**{"2g.20gb": 32, "1g.10gb": 32}), general=False)
    offers.classes = {name: replace(one, name="c" * 253) for name, one in offers.classes.items()}

    def way(containers):
        return decide(
            pod(*(container(f"c{n}", **{"2g.20gb": 1}) for n in range(containers))), offers, policy(FIRST)
        ).conversion

    assert (way(15), way(16)) == ("claim", "too_many_devices")


def test_too_many_profiles():
    """More than can be placed together: neither is all that could stand for each of them looked for."""
    many = {f"1g.{n}gb": 1 for n in range(1, 10)}
    offers = cluster(dra_node(**many))
    assert decide(pod(container(**many)), offers, policy(FIRST)).conversion == "too_many_devices"
    del many["1g.9gb"]
    assert decide(pod(container(**many)), offers, policy(FIRST)).conversion == "claim"


@pytest.mark.parametrize("foreign", [True, False])
def test_classes_of_others(foreign):
    """The general class is the driver's own: where it is not there, or a type is another's, each type has its class."""
    offers = cluster(general=foreign)
    if foreign:
        offers.classes = {
            **offers.classes,
            MIG + "1g.10gb": DeviceClass("nvidia-1g", ("device.driver == 'x'",)),
        }
    text = alternatives_of(decide(pod(container(**{"2g.20gb": 1})), offers, policy(FIRST)))
    name = "nvidia-1g" if foreign else "tessera-1g-10gb"
    assert text == f"1*2g.20gb=2g.20gb/tessera-2g-20gb,1g.10gb/{name}"


def test_a_type_without_a_class():
    """An alternative whose class is not there would keep the pod waiting for ever."""
    offers = cluster()
    offers.classes = {}
    assert decide(pod(container(**{"2g.20gb": 1})), offers, policy(FIRST)).conversion == "not_dra"


def test_injection_goes_by_what_was_asked():
    """What the scheduler will take is not known yet."""
    rules = policy(
        """
        fallback: {dra: first-available}
        injection: {resourceMap: {V100: {nvidia.com/mig-2g.20gb: {resourceList: [{name: cpu, coefficient: 2}]}}}}
        """
    )
    asker = pod(container(**{"2g.20gb": 1}), annotations={"task.bkbcs.tencent.com/gpu-type": "V100"})
    decision = decide(asker, cluster(), rules)
    assert decision.conversion == "claim"
    assert decision.gpu_type == "V100"
    assert any(getattr(one, "resource", "") == "cpu" for one in decision.edits)


def test_templates_keep_their_request():
    """A workload's template is never given a claim; its pods, which were decided about with it, neither."""
    template = pod(container(**{"2g.20gb": 1}))
    sealed = decisions.decide_template(template, cluster(), policy(FIRST))
    assert sealed == Patched(
        (SetAnnotation("gpu-webhook.k8s.io/decided", "template"),), "what it asks for is offered"
    )
    made = replace(template, annotations={"gpu-webhook.k8s.io/decided": "template"})
    assert decide(made, cluster(), policy(FIRST)).conversion == "never"


def test_the_bridges_own_work_passes():
    """A bridged pod that comes again is left alone; one that asks for more is looked at."""
    text = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
    again = pod(container(cpu=1), annotations={ALTERNATIVES_ANNOTATION: text}, claims=(template_name(text),))
    assert decide(again, cluster(), policy(FIRST)) == Allowed("its request is a claim already")
    more = replace(again, containers=(container(**{"1g.10gb": 1}),))
    assert decide(more, cluster(), policy(FIRST)).conversion == "own_claims"
