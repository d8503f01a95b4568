"""What the stand-in API server does to pods by itself."""

import pytest

from tessera.simulation.control_plane.admission import check, with_defaults
from tessera.simulation.control_plane.store import StatusError


def pod(**resources):
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "resources": resources}]}}


def test_a_limit_is_a_request():
    """Limits without requests come with requests filled in, as webhooks see them on a real server."""
    given = pod(limits={"nvidia.com/gpu": 1, "cpu": "2"}, requests={"cpu": "1"})
    (container,) = with_defaults(given)["spec"]["containers"]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": 1, "cpu": "1"}
    assert with_defaults(given)["status"] == {"phase": "Pending"}
    assert given["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}, "the given pod stays"


@pytest.mark.parametrize(
    ("resources", "complaint"),
    [
        ({"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": 1}}, ""),
        ({"requests": {"cpu": "4"}}, ""),
        (
            {"requests": {"nvidia.com/gpu": 1}},
            "resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"limits": {"a.com/b": 1}, "requests": {"a.com/b": 2}},
            'resources.requests: Invalid value: "2": must be equal to a.com/b limit of 1',
        ),
        (
            {"limits": {"a.com/b": "500m"}, "requests": {"a.com/b": "500m"}},
            'resources.requests[a.com/b]: Invalid value: "500m": must be an integer',
        ),
        (
            {"limits": {"cpu": 1}, "requests": {"cpu": 2}},
            'resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
    ],
)
def test_checks(resources, complaint):
    """What Kubernetes refuses about resources is refused in its words."""
    if not complaint:
        check(pod(**resources))
        return
    with pytest.raises(StatusError) as refused:
        check(pod(**resources))
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    assert refused.value.message == f'Pod "p" is invalid: spec.containers[0].{complaint}'
