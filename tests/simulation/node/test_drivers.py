"""Claims on a node: who is asked to prepare them, and which container has what."""

import pytest

from tessera.simulation import node_drivers as drivers
from tessera.simulation.control_plane.kinds import RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import Store
from tessera.simulation.node_drivers import Drivers, PrepareFailed, Use, uses


def test_uses():
    """A container has the requests that it names, of a claim or all of it, and those that stand for its extended resources."""
    pod = {
        "spec": {
            "initContainers": [{"name": "init", "resources": {"claims": [{"name": "x", "request": "r"}]}}],
            "containers": [
                {"name": "a", "resources": {"claims": [{"name": "x", "request": "r"}, {"name": "y"}]}},
                {"name": "b"},
            ],
            "resourceClaims": [
                {"name": "x", "resourceClaimTemplateName": "t"},
                {"name": "y", "resourceClaimName": "by-hand"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "x", "resourceClaimName": "p-x-1"}],
            "extendedResourceClaimStatus": {
                "resourceClaimName": "p-e",
                "requestMappings": [{"containerName": "b", "resourceName": "n", "requestName": "c-1"}],
            },
        },
    }
    assert uses(pod) == {
        "init": [Use("p-x-1", "r")],
        "a": [Use("p-x-1", "r"), Use("by-hand")],
        "b": [Use("p-e", "c-1")],
    }


@pytest.mark.parametrize(
    ("use", "names"),
    [(Use("c", "one"), ["k=1"]), (Use("c"), ["k=1", "k=2", "k=3"]), (Use("other"), [])],
)
def test_grants(use, names):
    """CDI names, by claim and request."""
    prepared = {("c", "one"): ["k=1"], ("c", "two"): ["k=2", "k=3"]}
    assert [one.name for one in use.grant(prepared).cdi_devices] == names


async def test_a_driver_that_is_not_there(tmp_path, monkeypatch):
    """A claim that it would have to prepare is not; one that has no devices needs no driver."""
    monkeypatch.setattr(drivers, "_TIMEOUT", 0.05)
    kubelet, store = Drivers(tmp_path), Store()
    claim = store.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": {}})
    assert await kubelet.prepare("default/p", [claim]) == {}
    given = {"results": [{"driver": "gone.example", "pool": "p", "device": "d"}]}
    claim = store.set_status(RESOURCE_CLAIMS, "c", {"allocation": {"devices": given}}, "default")
    with pytest.raises(PrepareFailed, match=r"DRA driver gone\.example is not registered"):
        await kubelet.prepare("default/p", [claim])
    await kubelet.unprepare("default/p")
