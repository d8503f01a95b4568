"""A pod of a cluster as its creator sent it."""

import copy

import pytest

from tessera.protocol.admission.created import as_created
from tests.build import MIG, running_pod


@pytest.mark.parametrize(
    ("record", "asked"),
    [
        (None, "1g.10gb"),
        ("2g.20gb->1g.10gb", "2g.20gb"),
        ("3g.30gb->2g.20gb,2g.20gb->1g.10gb", "3g.30gb"),
        ("4g.40gb->gpu,3g.30gb->1g.10gb", "3g.30gb"),
        # which of several it was does not stand there: the largest
        ("3g.30gb->1g.10gb,2g.20gb->1g.10gb", "3g.30gb"),
        ("2g.20gb->1g.10gb,3g.30gb->1g.10gb", "3g.30gb"),
        ("nonsense", "1g.10gb"),
    ],
)
def test_a_pod_as_it_was_created(record, asked):
    """Without the scheduler's node, with its recorded fallback undone; all else stays, and the pod that came as it was."""
    given = running_pod(
        record, {"requests": {MIG + "1g.10gb": "1"}, "limits": {MIG + "1g.10gb": "1", "cpu": "1"}}
    )
    before = copy.deepcopy(given)
    found = as_created(given)
    assert given == before
    assert "nodeName" not in found["spec"]
    assert found["metadata"]["annotations"] == {"other": "x"}
    assert found["spec"]["containers"][0]["resources"] == {
        "requests": {MIG + asked: "1"},
        "limits": {MIG + asked: "1", "cpu": "1"},
    }


def test_a_pod_of_a_decided_template():
    """Its controller sent it as it is, with the record of what was done to the template."""
    given = running_pod("2g.20gb->1g.10gb", {"limits": {MIG + "1g.10gb": "1"}})
    given["metadata"]["annotations"]["gpu-webhook.k8s.io/decided"] = "template"
    found = as_created(given)
    assert "nodeName" not in found["spec"]
    assert found["metadata"] == given["metadata"]
    assert found["spec"]["containers"] == given["spec"]["containers"]


def test_a_bridged_pod_as_it_was_created():
    """Its request is back in place of the claim, and what the scheduler chose is forgotten; another claim stays."""
    text = "2*2g.20gb=2g.20gb/c,1g.10gb/c"
    given = running_pod("2g.20gb->1g.10gb", {"requests": {"cpu": "1"}, "claims": [
        {"name": "tessera-gpu", "request": "gpu-0"}, {"name": "own"},
    ]})  # fmt: skip
    given["metadata"]["annotations"]["gpu-webhook.k8s.io/alternatives"] = text
    given["spec"]["resourceClaims"] = [
        {"name": "tessera-gpu", "resourceClaimTemplateName": "t"},
        {"name": "own"},
    ]
    found = as_created(given)
    assert found["metadata"]["annotations"] == {"other": "x"}
    assert found["spec"]["resourceClaims"] == [{"name": "own"}]
    assert found["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {MIG + "2g.20gb": "2"},
        "claims": [{"name": "own"}],
    }


@pytest.mark.parametrize("claims", [5, "x", ["x"], [{"name": 1, "request": []}], {"name": "tessera-gpu"}])
def test_claims_that_are_none(claims):
    """What a container has in place of claims is the API server's to refuse."""
    given = running_pod("", {"claims": claims})
    given["metadata"]["annotations"]["gpu-webhook.k8s.io/alternatives"] = "1*2g.20gb=2g.20gb/c,1g.10gb/c"
    assert as_created(given)["spec"]["containers"] == given["spec"]["containers"]


def test_a_marked_pod_as_it_was_created():
    """A pod that was decided about by what was free came without its mark, placed as asked or not."""
    mark = {"gpu-webhook.k8s.io/decided-when": f'{{"c0":{{"{MIG}1g.10gb":"1"}}}}'}
    for record, asked in ((None, "1g.10gb"), ("2g.20gb->1g.10gb", "2g.20gb")):
        given = running_pod(record)
        given["metadata"]["annotations"].update(mark)
        found = as_created(given)
        assert found["metadata"]["annotations"] == {"other": "x"}
        assert list(found["spec"]["containers"][0]["resources"]["limits"]) == [MIG + asked]
