"""Pods as the API server stores them, and the lean reading of them that the webhook has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Toleration
from tessera.protocol.admission.review import decode
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.objects import InvalidObject
from tessera.protocol.kubernetes.pod import decode_pod
from tests.build import GPU, MIG


def optional(**fields):
    """Any of these fields, each there or not."""
    return st.fixed_dictionaries({}, optional=fields)


words = st.sampled_from(["a", "b", "train", "2g.20gb->1g.10gb"])
amounts = st.dictionaries(
    st.sampled_from(["cpu", GPU, MIG + "1g.10gb"]), st.sampled_from(["1", 2, "500m", "0", "many"]), max_size=2
)
resources = optional(requests=amounts, limits=amounts)
container = optional(
    name=words, image=words, resources=resources, restartPolicy=st.just("Always"), args=st.lists(words)
)
requirement = optional(
    key=words, operator=st.sampled_from(["In", "Exists"]), values=st.lists(words, max_size=2)
)
node_terms = st.lists(optional(matchExpressions=st.lists(requirement, max_size=2)), max_size=2)
pod_terms = st.lists(optional(namespaces=st.lists(words), namespaceSelector=st.just({})), max_size=1)
ignored = "DuringSchedulingIgnoredDuringExecution"
affinity = optional(
    nodeAffinity=optional(**{f"required{ignored}": optional(nodeSelectorTerms=node_terms)}),
    podAffinity=optional(**{f"required{ignored}": pod_terms}),
    podAntiAffinity=optional(
        **{f"preferred{ignored}": st.lists(optional(podAffinityTerm=pod_terms.map(lambda some: some[0] if some else {})))}
    ),
)  # fmt: skip
metadata = optional(
    name=words,
    generateName=words,
    namespace=words,
    uid=words,
    labels=st.dictionaries(st.sampled_from(["app", "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed"]), words),
    annotations=st.dictionaries(st.sampled_from(["gpu-webhook.k8s.io/fallback", "other"]), words),
    creationTimestamp=st.sampled_from([None, "2026-11-15T09:00:00Z"]),
    ownerReferences=st.lists(optional(kind=words, uid=words, controller=st.booleans()), max_size=1),
)  # fmt: skip
spec = optional(
    initContainers=st.lists(container, max_size=2),
    containers=st.none() | st.lists(container, max_size=3),
    activeDeadlineSeconds=st.integers(1, 9),
    nodeName=words,
    nodeSelector=st.dictionaries(words, words, max_size=2),
    affinity=affinity,
    schedulerName=words,
    tolerations=st.lists(optional(key=words, operator=st.just("Exists"), effect=words), max_size=2),
    priorityClassName=words,
    priority=st.integers(-5, 5),
    overhead=amounts,
    resourceClaims=st.lists(optional(name=words, resourceClaimTemplateName=words), max_size=2),
    resources=resources,
    schedulingGates=st.lists(optional(name=words), max_size=1),
    volumes=st.lists(optional(name=words), max_size=1),
)
status = optional(
    phase=words,
    conditions=st.lists(optional(type=words, status=words, reason=words, message=words), max_size=2),
    containerStatuses=st.lists(optional(name=words, state=st.just({"running": {}}), resources=resources)),
)
pods = optional(kind=st.just("Pod"), metadata=metadata, spec=spec, status=status)


def reading(read):
    """What is read, or what is wrong with it."""
    try:
        return read()
    except InvalidInput as error:
        return str(error)


@given(pods)
def test_both_readings_are_the_same(document):
    """The lean structs and the full ones give the same pod, or the same complaint; so does a review of it."""
    raw = json.dumps(document).encode()
    full = reading(lambda: pod_of(decode_pod(raw)))
    assert reading(lambda: pod_of(decode_lean_pod(raw))) == full
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "object": document},
    }
    assert reading(lambda: decode(json.dumps(review).encode()).read()) == full


def test_claims_of_a_pod():
    """By the names that the pod gives them: the named one, the one that was made, and the one that was not made yet."""
    document = {
        "metadata": {},
        "spec": {
            "resourceClaims": [
                {"name": "mine", "resourceClaimName": "shared"},
                {"name": "gpu", "resourceClaimTemplateName": "one"},
                {"name": "late", "resourceClaimTemplateName": "two"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x7"}]},
    }
    found = decode_pod(json.dumps(document).encode())
    assert found.claims == {"mine": "shared", "gpu": "p-gpu-x7", "late": None}
    assert found.claim_templates == {"mine": "", "gpu": "one", "late": "two"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"status": {"phase": 3}}, "status.phase: expected str, got int"),
        ({"metadata": {"labels": ["x"]}}, "metadata.labels: expected object | null, got array"),
        ({"status": {"conditions": [{"type": 1}]}}, "status.conditions[0].type: expected str, got int"),
        ([], "expected object, got array"),
    ],
)
def test_what_is_no_pod(document, message):
    """The message says where, what was expected, and what is there."""
    with pytest.raises(InvalidObject) as error:
        decode_pod(json.dumps(document).encode())
    assert str(error.value) == message


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": {"name": "p"}, "spec": None, "status": None},
        {
            "metadata": {"name": "p", "uid": None},
            "spec": {"nodeName": None},
            "status": {"phase": None, "reason": None},
        },
    ],
)
def test_null_is_absent(document):
    """A field that is null, as people write it in files, counts as one that is not there."""
    one = decode_pod(json.dumps(document).encode())
    assert (one.metadata.name, one.metadata.uid, one.spec.node_name, one.status.phase) == ("p", "", "", "")


def test_other_types_stay_errors():
    """What is wrong beside a null is still said."""
    with pytest.raises(InvalidObject, match=r"spec.nodeName: expected str, got int"):
        decode_pod(b'{"metadata": {"name": "p"}, "spec": {"nodeName": 1}, "status": null}')


def test_null_in_what_is_read_late_is_absent():
    """The same goes for annotations, affinity and tolerations, which are read when a decision needs them."""
    exists = {"key": "a", "operator": "Exists", "values": None}
    document = {
        "metadata": {"annotations": {"a": "b", "c": None}},
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [exists], "matchFields": None}]
                    }
                }
            },
            "tolerations": [{"key": None, "operator": "Exists", "value": None}],
        },
    }
    found = pod_of(decode_lean_pod(json.dumps(document).encode()))
    assert found.annotations == {"a": "b"}
    assert found.required_terms == (NodeSelectorTerm((Requirement("a", "Exists"),)),)
    assert found.tolerations == (Toleration(operator="Exists"),)
