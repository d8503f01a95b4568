"""Laws of admission, over random pods, nodes and configurations.

Each pod goes the whole way, as bytes of a review through the webhook's handler, and its patch is applied by an
independent implementation of RFC 6902.
"""

import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jsonpatch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.policy import Dra, FallbackPolicy, Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Node, why_excluded
from tessera.core.kubernetes.pod import requested
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import Taint
from tessera.core.mig.profile import MigProfile
from tessera.core.requests import alternatives
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, own_expression
from tessera.core.resources import is_whole_or_mig
from tessera.protocol.admission import patch
from tessera.protocol.admission import review as reviews
from tessera.webhook.endpoint import Admission
from tests.build import amounts, policy, resource, respond, review
from tests.examples import examples

PROFILES = ["1g.10gb", "1g.10gb.me", "1g.20gb", "2g.20gb", "3g.30gb", "7g.80gb"]
GPUS = [*PROFILES, "gpu"]
INJECTION = policy(
    """
    injection:
      resourceMap:
        V100:
          nvidia.com/gpu:
            resourceList: [{name: cpu, coefficient: 3.7}, {name: memory, coefficient: 7, unit: Gi}, {name: nvidia.com/shm, coefficient: 2}]
            annotations: {a.b/c_d: e}
          nvidia.com/mig-1g.10gb: {resourceList: [{name: cpu, coefficient: 1}, {name: ephemeral-storage, coefficient: 10, unit: G}]}
          amd.com/gpu: {resourceList: [{name: memory, coefficient: 1, unit: Gi}]}
    """
).injection

nodes = st.lists(
    st.builds(
        lambda i, labels, taint, has, away, cpu, dra: Node(
            f"n{i}", labels, (Taint(taint),) if taint else (), amounts({**has, **cpu}),
            amounts({name: count for name, count in away.items() if not has.get(name)}),
            {resource(name): count for name, count in dra.items()},
        ),
        st.integers(0, 5),
        st.fixed_dictionaries({"zone": st.sampled_from(["a", "b"])}, optional={
            "nvidia.com/gpu.memory": st.sampled_from(["16160", "81559"]), "nvidia.com/gpu.replicas": st.just("4"),
        }),
        st.sampled_from(["", "dedicated", "ToBeDeletedByClusterAutoscaler"]),
        st.dictionaries(st.sampled_from([*GPUS, "1g.10gb.shared"]), st.integers(0, 4), max_size=4),
        st.dictionaries(st.sampled_from(GPUS), st.integers(1, 2), max_size=1),
        st.sampled_from([{}, {"cpu": 4}, {"cpu": 64, "memory": "1Ti"}]),
        st.dictionaries(st.sampled_from(GPUS), st.integers(1, 3), max_size=2),
    ),
    max_size=4,
)  # fmt: skip
policies = st.builds(
    Policy,
    st.builds(
        FallbackPolicy,
        downgrades=st.booleans(),
        upgrades=st.booleans(),
        whole_gpu=st.booleans(),
        enabled=st.sampled_from([True, True, True, False]),
        max_whole_gpus=st.integers(0, 3),
        min_memory=st.sampled_from([None, Quantity.parse("15Gi")]),
        chains=st.dictionaries(
            st.sampled_from(PROFILES).map(resource), st.lists(st.sampled_from(GPUS).map(resource), max_size=3, unique=True).map(tuple), max_size=2
        ),
        autoscaled=st.frozensets(st.sampled_from(GPUS).map(resource), max_size=1),
        reject_unmatched=st.booleans(),
    ),
    st.just(INJECTION) | st.just(Policy().injection),
)  # fmt: skip
counts = st.integers(0, 3).map(str) | st.integers(1, 3)
gpu_names = st.sampled_from(GPUS).map(resource) | st.just("amd.com/gpu")
plain_amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage"]),
    st.sampled_from(["1", "500m", "1Gi", "2.5", 3]),
    max_size=2,
)


@st.composite
def resources(draw, names=gpu_names, numbers=counts):
    """A container's resources in every state of being half there."""
    gpus = draw(st.dictionaries(names, numbers, max_size=2))
    plain = draw(plain_amounts)
    shape = draw(st.sampled_from(["both", "requests", "limits", "empty", "null", "absent", "claims"]))
    match shape:
        case "both":
            return {"resources": {"requests": {**plain, **gpus}, "limits": gpus}}
        case "requests" | "limits":
            return {"resources": {shape: {**gpus, **plain}}}
        case "empty":
            return {"resources": {}}
        case "null":
            return {"resources": {"requests": None, "limits": gpus}}
        case "claims":
            return {"resources": {"claims": [{"name": "x"}], "requests": {**gpus, **plain}}}
    return {}


@st.composite
def pods(draw, names=gpu_names, numbers=counts):
    """A pod document, with all sorts of things that must not move."""

    def container(name):
        return {
            "name": name,
            "image": "busybox",
            "env": [{"name": "A", "value": "nvidia.com/mig-2g.20gb"}],
            **draw(resources(names, numbers)),
        }

    spec: dict[str, Any] = {
        "containers": [container(f"c{i}") for i in range(draw(st.integers(1, 3)))],
        "schedulerName": "x",
    }
    if draw(st.booleans()):
        init = container("i")
        if draw(st.booleans()):
            init["restartPolicy"] = "Always"
        spec["initContainers"] = [init]
    if draw(st.booleans()):
        spec["resources"] = {
            section: draw(
                st.dictionaries(
                    st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "4Gi", "8", "20Gi"]), max_size=2
                )
            )
            for section in draw(st.sets(st.sampled_from(["requests", "limits"])))
        }
    if draw(st.booleans()):
        spec["nodeSelector"] = {"zone": draw(st.sampled_from(["a", "b"]))}
    if draw(st.integers(0, 3)) == 0:
        spec["nodeName"] = draw(st.sampled_from(["n0", "n1"]))
    if draw(st.booleans()):
        spec["tolerations"] = [{"operator": "Exists"}]
    metadata = {"generateName": "p-"}
    annotations = draw(
        st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "task.bkbcs.tencent.com/gpu-type": st.sampled_from(["V100", "T4"]),
                "gpu-webhook.k8s.io/fallback-policy": st.sampled_from(["never", "smaller", "larger", "any"]),
                "gpu-webhook.k8s.io/min-memory": st.sampled_from(["10Gi", "20Gi"]),
                "gpu-webhook.k8s.io/fallback": st.sampled_from(["7g.80gb->gpu", "2g.20gb->1g.10gb", "junk"]),
                "gpu-webhook.k8s.io/asked": st.sampled_from(
                    ['{"c0":{"nvidia.com/mig-2g.20gb":"1"}}', "junk"]
                ),
                "keep/me": st.just("as~1I/am"),
            },
        )
    )
    if annotations is not None or draw(st.booleans()):
        metadata["annotations"] = annotations
    return {"kind": "Pod", "metadata": metadata, "spec": spec} if draw(st.booleans()) else {"spec": spec}


def is_ours(path):
    """Whether a path is one that admission may write."""
    parts = [part.replace("~1", "/") for part in path.split("/")]
    if parts[1] == "metadata":
        return len(parts) == 2 or (
            parts[2] == "annotations" and (len(parts) == 3 or parts[3] in OUR_ANNOTATIONS)
        )
    if parts[4:5] != ["resources"]:
        return False
    return len(parts) <= 6 or is_whole_or_mig(parts[6]) or parts[6] in OUR_RESOURCES


OUR_ANNOTATIONS = {"gpu-webhook.k8s.io/fallback", "gpu-webhook.k8s.io/asked", "a.b/c_d"}
OUR_RESOURCES = {"cpu", "memory", "ephemeral-storage", "nvidia.com/shm", "amd.com/gpu"}


@given(pods(), nodes, policies)
@settings(max_examples=examples(500))
def test_admission(document, cluster, rules):
    """The patch applies and moves only what is ours; admitted again, the result passes unchanged."""
    offers = Offers(cluster)
    response = respond(review(document), offers, rules)
    if not response["allowed"]:
        assert response["status"]["message"]
        assert not document["spec"].get("nodeName"), "pods that are bound to one node are never rejected"
        assert rules.fallback.enabled or not response["status"]["message"].startswith("asked for"), (
            "no pod is rejected for want of an offer"
        )
        return
    operations = response.get("patch", [])
    before = copy.deepcopy(document)
    after = jsonpatch.JsonPatch(operations).apply(document)
    assert document == before
    assert patch.apply(document, operations) == after, "our own application agrees with the independent one"
    for operation in operations:
        assert is_ours(operation["path"]), operation
    assert {operation["op"] for operation in operations} <= {"add", "remove"}

    pod = reviews.decode(review(document)).read()
    result = reviews.decode(review(after)).read()
    assert_offered(pod, result, offers, rules)
    again = respond(review(after), offers, rules)
    assert again["allowed"]
    assert again.get("patch", []) == [], "admitting the result again changes nothing"
    assert_counts_stay(pod, result)


profiles_only = {"names": st.sampled_from(PROFILES).map(resource), "numbers": st.integers(1, 3)}


@given(pods(**profiles_only), nodes, policies)
@settings(max_examples=examples(500))
def test_what_dra_serves_is_left_alone(document, cluster, rules):
    """A pod that DRA can serve as it is, on a node that has nothing else, keeps what it asks for; it is not rejected."""
    pod = reviews.decode(review(document)).read()
    asked = {r: q for r, q in requested(pod).items() if MigProfile.of_resource(r) and q}
    server = Node("dra", {"zone": "a"}, dra={r: int(q.value) for r, q in asked.items()})
    if why_excluded(pod, server) is not None:
        return
    response = respond(review(document), Offers([*cluster, server]), rules)
    if not response["allowed"]:  # for another reason: injection, or an annotation that says nothing
        assert not response["status"]["message"].startswith("asked for")
        return
    after = jsonpatch.JsonPatch(response.get("patch", [])).apply(document)
    result = reviews.decode(review(after)).read()
    assert {r: q for r, q in requested(result).items() if MigProfile.of_resource(r) and q} == asked


whole_gpus = {"names": st.just(resource("gpu"))}


def annotated(document):
    document.setdefault("metadata", {})["annotations"] = {"task.bkbcs.tencent.com/gpu-type": "V100"}
    return document


@given(pods(**whole_gpus, numbers=st.integers(0, 2)).map(annotated))
@settings(max_examples=examples(500))
def test_injection_breaks_no_pod_level_resources(document):
    """What injection writes fits in the pod's own `spec.resources`, or the pod is rejected and they are named."""
    response = respond(review(document), Offers(), Policy(injection=INJECTION))
    if response["allowed"]:
        after = jsonpatch.JsonPatch(response.get("patch", [])).apply(document)
        assert_pod_level_holds(reviews.decode(review(document)).read(), reviews.decode(review(after)).read())


@given(pods(**whole_gpus, numbers=st.sampled_from(["-1", "1", "-4", 5, "0.5", -1.5, "1e30"])).map(annotated))
@settings(max_examples=examples(500))
def test_every_number_has_an_answer(document):
    """Negative, fractional and huge numbers of GPUs are refused in words; they do not fail, nor make up for each other."""
    response = respond(review(document), Offers(), Policy(injection=INJECTION))
    said = [
        Quantity.parse(number)
        for one in [*document["spec"]["containers"], *document["spec"].get("initContainers", [])]
        for section, amounts in (one.get("resources") or {}).items()
        if section != "claims"
        for name, number in (amounts or {}).items()
        if name == resource("gpu")
    ]
    if any(number not in {Quantity.parse(1), Quantity.parse(5)} for number in said):
        bound = "nodeName" in document["spec"]  # those are let in, with a warning in place of the refusal
        assert response["allowed"] is bound
        told = response["warnings"][0] if bound else response["status"]["message"]
        assert ("so left as it is: " if bound else "GPUs are asked for in whole numbers") in told
        assert "patch" not in response


@given(st.lists(pods(), min_size=2, max_size=4), nodes, policies)
@settings(max_examples=examples(100))
def test_memory_changes_no_answer(documents, cluster, rules):
    """Whatever was answered before, a pod gets the answer that it would get first, its own annotations or not."""
    offers = Offers(cluster)
    admission = Admission(offers, rules)
    for document in documents:
        twin = copy.deepcopy(document)
        annotations = twin.get("metadata", {}).get("annotations")
        if annotations is not None:
            annotations["example.com/run"] = "its own"
        for body in (review(document), review(twin)):
            assert admission.answer(body) == Admission(offers, rules).answer(body)


dra_nodes = st.lists(
    st.dictionaries(st.sampled_from(GPUS).map(resource), st.integers(1, 8), min_size=2, max_size=5), min_size=1, max_size=3
).map(lambda some: [Node(f"n{i}", {"zone": "a"}, dra=dra) for i, dra in enumerate(some)])  # fmt: skip
profile_pods = pods(names=st.sampled_from(PROFILES).map(resource), numbers=st.integers(0, 2))


def meddled(document, how):
    """A bridged pod as another webhook might leave it before it comes again."""
    document = copy.deepcopy(document)
    spec = document["spec"]
    match how:
        case "sidecar":
            spec["containers"].insert(0, {"name": "mesh", "resources": {"limits": {"cpu": "1"}}})
            spec.setdefault("initContainers", []).insert(0, {"name": "first", "restartPolicy": "Always"})
        case "annotation":
            document["metadata"]["annotations"]["example.com/run"] = "x"
        case "claim":
            spec["resourceClaims"].insert(0, {"name": "x", "resourceClaimTemplateName": "y"})
        case "priority":
            spec["priority"] = 1000
        case "node":
            spec["nodeName"] = "n0"
        case "slice":
            spec["containers"].insert(0, {"name": "more", "resources": {"limits": {resource("1g.10gb"): 1}}})
    return document


meddlings = st.sampled_from(["", "sidecar", "annotation", "claim", "priority", "node", "slice"])


@given(profile_pods, dra_nodes, policies, st.booleans(), meddlings)
@settings(max_examples=examples(500))
def test_bridge(document, cluster, rules, general, how):
    """A claim takes the place of what was asked, all of it; its text is the claim; admitted again, nothing changes.

    Whatever another webhook has done to it meanwhile: what it asks for besides is looked at, and is no second claim.
    """
    for field in ("schedulerName", "nodeName", "nodeSelector"):
        document["spec"].pop(field, None)
    for one in (*document["spec"]["containers"], *document["spec"].get("initContainers", ())):
        (one.get("resources") or {}).pop("claims", None)  # of no claim of the pod: the API server refuses it
    offers = Offers(cluster)
    offers.classes = {
        resource(name): DeviceClass(f"c-{name}", (own_expression(resource(name)),)) for name in GPUS
    }
    offers.class_names = frozenset({"tessera-any"} if general else ())
    rules = replace(rules, fallback=replace(rules.fallback, dra=Dra.FIRST_AVAILABLE, autoscaled=frozenset()))
    response = respond(review(document), offers, rules)
    if not response["allowed"]:
        return
    after = jsonpatch.JsonPatch(response.get("patch", [])).apply(document)
    assert patch.apply(document, response.get("patch", [])) == after
    again = respond(review(after), offers, rules)
    assert again["allowed"]
    assert again.get("patch", []) == [], "admitting the result again changes nothing"
    if "resourceClaims" not in after["spec"]:
        return
    between = respond(review(meddled(after, how)), offers, rules)
    operations = between.get("patch", [])
    assert how == "slice" or (between["allowed"] and not operations)
    assert not [one for one in operations if one["path"].endswith(("/resourceClaims", "/claims"))]
    if between["allowed"]:
        twice = jsonpatch.JsonPatch(operations).apply(meddled(after, how))
        assert respond(review(twice), offers, rules).get("patch", []) == []
    before, result = (reviews.decode(review(one)).read() for one in (document, after))
    text = result.annotations[ALTERNATIVES_ANNOTATION]
    found = alternatives.read(text)
    assert result.claims == (alternatives.template_name(text),)
    lasting = [c for c in before.all_containers() if c.restartable or c in before.containers]
    asked = [
        (r, int(amount.value))
        for c in lasting
        for r in c.resources()
        if MigProfile.of_resource(r) and (amount := c.asked(r))
    ]
    assert sorted((one.asked, one.count) for one in found.requests) == sorted(asked)
    assert not [
        r for c in result.all_containers() for r in c.resources() if MigProfile.of_resource(r) and c.asked(r)
    ]
    assert any(len(one.alternatives) > 1 for one in found.requests), "or the claim would be of no use"
    names = {one.device_class for request in found.requests for one in request.alternatives}
    assert (names == {"tessera-any"}) == general


def assert_counts_stay(before, after):
    """The number of MIG devices and GPUs of each container stays, whatever they are called now."""
    for one, other in zip(before.all_containers(), after.all_containers(), strict=True):
        assert gpus_of(one) == gpus_of(other)


def assert_pod_level_holds(before, after):
    """Where the API server would accept the pod as it came, its patch breaks none of `spec.resources`.

    Written as `validatePodResourceConsistency` has it, apart from the code under test.
    """

    def broken(pod):
        requests = requested(replace(pod, pod_requests={}, overhead={}))
        return {
            *(name for name, most in pod.pod_requests.items() if name in requests and requests[name] > most),
            *(
                name
                for container in pod.containers
                for name, limit in container.limits.items()
                if name in pod.pod_limits and limit > pod.pod_limits[name]
            ),
        }

    assert broken(after) <= broken(before)


def gpus_of(container):
    return sum((container.asked(r).value for r in container.resources() if is_whole_or_mig(r)), Fraction(0))


def assert_offered(before, after, offers, rules):
    """What was chosen fits together on a node that the pod could be placed on, with all that it needs besides."""
    asked = [
        r for c in before.all_containers() for r in c.resources() if MigProfile.of_resource(r) and c.asked(r)
    ]
    if not asked or rules.fallback.autoscaled or not rules.fallback.reject_unmatched or before.bound_to:
        return
    if not rules.fallback.enabled or before.annotations.get("gpu-webhook.k8s.io/fallback-policy") == "never":
        return
    assert serves(after, offers)


def serves(pod, offers):
    needs = {r: q for r, q in requested(pod).items() if (is_whole_or_mig(r) or r == "cpu") and q}

    def has(one, r, q):
        there = one.allocatable.get(r)
        if not there and r in one.dra:  # as the scheduler: what is not allocatable there, DRA serves
            return one.dra[r] >= q.value
        return (
            q if there is None and r == "cpu" else there or one.unavailable.get(r, Quantity.parse("0"))
        ) >= q

    return any(
        why_excluded(pod, one) is None and all(has(one, r, q) for r, q in needs.items())
        for one in offers.nodes.values()
    )
