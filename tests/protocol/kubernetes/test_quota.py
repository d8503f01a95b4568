"""ResourceQuotas as the API server has them, and what they ask about pods."""

import json
import tracemalloc

import pytest

from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import Requirement
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import decode_quota, quota_of
from tessera.protocol.kubernetes.objects import InvalidObject

ONE_G = "nvidia.com/mig-1g.10gb"


def read(spec=None, status=None, **metadata):
    document = {"metadata": {"name": "q", "namespace": "team", **metadata}, "spec": spec, "status": status}
    return quota_of(decode_quota(json.dumps(document).encode()))


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        (None, None, Quota("team", "q", {}, {})),
        ({"hard": {"cpu": "4", "pods": "10", "requests.memory": "1Gi"}}, None, Quota("team", "q", {}, {})),
        ({"hard": {"requests." + ONE_G: "2", "pods": "9"}}, None, Quota("team", "q", {ONE_G: 2}, {})),
        ({"hard": {ONE_G: "2", "limits." + ONE_G: "2"}}, None, Quota("team", "q", {}, {})),
        (
            {"hard": {"requests." + ONE_G: "2"}},
            {"hard": {"requests." + ONE_G: "3"}, "used": {"requests." + ONE_G: "1", "pods": "1"}},
            Quota("team", "q", {ONE_G: 3}, {ONE_G: 1}),
        ),
        (
            {
                "hard": {"requests.nvidia.com/gpu": 1},
                "scopes": ["NotBestEffort"],
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                },
            },
            None,
            Quota(
                "team",
                "q",
                {"nvidia.com/gpu": 1},
                {},
                (Requirement("NotBestEffort", "Exists"), Requirement("PriorityClass", "In", ("high",))),
            ),
        ),
    ],
    ids=["empty", "no GPU", "requests", "not counted", "status", "scopes"],
)
def test_read(spec, status, expected):
    """Only `requests.` of GPUs is counted; the status holds, once there is one."""
    assert read(spec, status) == expected


def test_an_amount_without_a_meaning_is_refused():
    """With the place."""
    with pytest.raises(InvalidObject, match=r'quota q, hard\[nvidia.com/gpu\]: "many" is not'):
        read({"hard": {"requests.nvidia.com/gpu": "many"}})


def affinity(kind, *terms, preferred=False):
    if preferred:
        some = [{"weight": 1, "podAffinityTerm": term} for term in terms]
        return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": some}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        ({}, (False, "", False)),
        ({"activeDeadlineSeconds": 0, "priorityClassName": "high"}, (True, "high", False)),
        (affinity("podAffinity", {"topologyKey": "zone"}), (False, "", False)),
        (affinity("podAffinity", {"namespaces": ["other"]}), (False, "", True)),
        (affinity("podAntiAffinity", {"namespaceSelector": {}}, preferred=True), (False, "", True)),
        ({"affinity": {"nodeAffinity": {}}}, (False, "", False)),
    ],
)
def test_what_scopes_ask_about_a_pod(spec, facts):
    """A deadline, a priority class, and pod affinity that names namespaces."""
    pod = pod_of(decode_lean_pod(json.dumps({"spec": spec}).encode()))
    assert (pod.has_deadline, pod.priority_class, pod.looks_across_namespaces) == facts


def test_five_thousand_namespaces_with_quotas_take_little_memory():
    """Less than 10 MiB; of a quota only what is about GPUs is kept."""
    names = ("pods", "requests.cpu", "requests.memory", "requests.nvidia.com/gpu", "requests." + ONE_G)
    offers, amounts = Offers(), dict.fromkeys(names, "100")
    tracemalloc.start()
    try:
        for number in range(5000):
            offers.put_quota(
                read({"hard": amounts}, {"hard": amounts, "used": amounts}, namespace=f"team-{number}")
            )
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(offers.quotas), taken < 10 * 2**20) == (5000, True)
