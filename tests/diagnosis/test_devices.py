"""Pods that wait for devices by DRA: what is missing is named, and nothing is guessed."""

from typing import Any

import pytest

from tessera.simulation.control_plane import kinds
from tests.build import MIG, bridged
from tests.diagnosis.clusters import CLAIMS, CLASSES, node, pod, why

DRIVER = "gpu.tessera.dev"
TWO = "tessera-2g-20gb"


def device_class(
    name: str = TWO, *expressions: str, stands_for: str = "", profile: str = "2g.20gb"
) -> dict[str, Any]:
    own = (f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].profile == '{profile}'",)
    selectors = [{"cel": {"expression": one}} for one in expressions or own]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, "extendedResourceName": stands_for}}


def devices(*profiles: str, driver: str = DRIVER) -> dict[str, Any]:
    found = [
        {
            "name": f"d{number}",
            "attributes": {
                "profile": {"string": profile},
                "resource": {"string": MIG + profile},
                "card": {"int": 0},
            },
        }
        for number, profile in enumerate(profiles)
    ]
    return {
        "metadata": {"name": "a"},
        "spec": {
            "driver": driver,
            "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
            "devices": found,
        },
    }


def claim(*classes: str, **status: Any) -> dict[str, Any]:
    wanted = [{"name": f"s{number}", "deviceClassName": one} for number, one in enumerate(classes)]
    request = {"name": "gpu", **({"exactly": wanted[0]} if len(wanted) == 1 else {"firstAvailable": wanted})}
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}, "status": status}


def claiming(**status: Any) -> dict[str, Any]:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    return pod("p", spec=spec, status=status)


WAITS = "node a has room for it, and the scheduler says: 0/1 nodes are available"


@pytest.mark.parametrize(
    ("classes", "slices", "claims", "cause", "answer"),
    [
        ([], [], [], "claim-missing", "its resource claim c is not there"),
        ([], [], [claim("x")], "class-missing", "device class x is not there (claim c, request gpu)"),
        (
            [device_class("y")],
            [devices("2g.20gb")],
            [claim("y", "x")],
            "class-missing",
            "device class x is not there (claim c, request gpu)",
        ),
        (
            [device_class()],
            [],
            [claim(TWO)],
            "no-devices",
            f"no ResourceSlice has a device that would do, of class {TWO} (claim c, request gpu)",
        ),
        (
            [device_class()],
            [devices("1g.10gb"), devices("2g.20gb", driver="other")],
            [claim(TWO)],
            "no-devices",
            f"no ResourceSlice has a device that would do, of class {TWO} (claim c, request gpu)",
        ),
        ([device_class()], [devices("2g.20gb")], [claim(TWO)], "room", WAITS),
        ([device_class()], [], [claim(TWO, allocation={})], "room", WAITS),
        ([device_class("y", "device.driver == 'other' || true")], [devices("1g.10gb")], [claim("y")], "room", WAITS),
        ([device_class("y", "!(true && device.driver == 'other' && true)")], [devices("1g.10gb")], [claim("y")], "room", WAITS),
        ([device_class("y", "device.newer() == 'x'")], [devices("1g.10gb")], [claim("y")], "room", WAITS),
    ],
    ids=["no claim", "no class", "no second class", "no slice", "no such device", "device", "allocated", "or", "not", "more"],
)  # fmt: skip
async def test_claims(classes: Any, slices: Any, claims: Any, cause: str, answer: str):
    """A claim or class that is not there, or whose devices no slice has, comes first; what expressions mean is not guessed."""
    for number, one in enumerate(slices):
        one["metadata"]["name"] = f"slice-{number}"
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [claiming()],
        CLASSES: classes,
        kinds.RESOURCE_SLICES: slices,
        CLAIMS: claims,
    }
    found = await why("p", objects)
    assert (found.cause, found.answer) == (cause, f"pod team/p waits: {answer}")


async def test_what_the_request_itself_says():
    """The claim's own expression counts as the class's does."""
    asked = claim("any")
    asked["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
        {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == \"3g.30gb\""}}
    ]
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [claiming()],
        CLASSES: [device_class("any", f"device.driver == '{DRIVER}'")],
        kinds.RESOURCE_SLICES: [devices("2g.20gb")],
        CLAIMS: [asked],
    }
    found = await why("p", objects)
    assert found.cause == "no-devices"
    assert [one.commands for one in found.remedies] == [("kubectl get resourceslices",)]


async def test_claims_from_templates():
    """The claim that was made for the pod is looked at; one that was not made yet is not there."""
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
    objects = {kinds.NODES: [node("a", {})], CLAIMS: [claim("x")]}
    made = pod("p", spec=spec, status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]})
    assert (await why("p", {**objects, kinds.PODS: [made]})).cause == "class-missing"
    found = await why("p", {**objects, kinds.PODS: [pod("p", spec=spec)]})
    assert found.answer == "pod team/p waits: its resource claim gpu is not there"


SERVING = device_class(stands_for=MIG + "2g.20gb")
TAINTED = devices("2g.20gb")
TAINTED["spec"]["devices"][0]["taints"] = [{"key": "gpu.tessera.dev/unhealthy", "effect": "NoSchedule"}]
HELD = {
    "metadata": {"name": "of-another"},
    "spec": {"devices": {}},
    "status": {"allocation": {"devices": {"results": [{"driver": DRIVER, "pool": "a", "device": "d0", "request": "r"}]}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("classes", "slices", "claims", "answer"),
    [
        ([], [], [], "no node offers 1 × 2g.20gb"),
        ([], [devices("2g.20gb")], [], f"no node offers 1 × 2g.20gb; ResourceSlices have such devices, but no device class has extendedResourceName: {MIG}2g.20gb"),
        ([SERVING], [], [], f"no node offers 1 × 2g.20gb; no ResourceSlice has a device of class {TWO}, which stands for it"),
        ([SERVING], [TAINTED], [], f"no node offers 1 × 2g.20gb; device class {TWO} stands for it, of whose devices the scheduler found none for this pod"),
        ([SERVING], [devices("2g.20gb")], [HELD], "1 × 2g.20gb is taken on node a (2g.20gb: 1 of 1 in use)"),
        ([SERVING], [devices("2g.20gb")], [], WAITS),
    ],
    ids=["nothing", "no class", "no device", "tainted", "held", "room"],
)  # fmt: skip
async def test_extended_resources(classes: Any, slices: Any, claims: Any, answer: str):
    """What no device plugin offers may come through a class: which one, or that there is none; who holds it counts."""
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [pod("p", {"2g.20gb": 1})],
        CLASSES: classes,
        kinds.RESOURCE_SLICES: slices,
        CLAIMS: claims,
    }
    found = await why("p", objects)
    assert found.answer == f"pod team/p waits: {answer}"


@pytest.mark.parametrize(
    ("stands_for", "has"),
    [(MIG + "2g.20gb", "1 × 2g.20gb"), ("", f"1 × deviceclass.resource.kubernetes.io/{TWO}")],
)
async def test_what_a_node_has_instead(stands_for: str, has: str):
    """A device is counted once: by the name of its class only where it has no other."""
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [pod("p", {"3g.30gb": 1})],
        CLASSES: [device_class(stands_for=stands_for)],
        kinds.RESOURCE_SLICES: [devices("2g.20gb")],
    }
    found = await why("p", objects)
    assert [one.reason for one in found.nodes] == [f"no 3g.30gb; it has {has}"]


@pytest.mark.parametrize(
    ("labels", "slices", "answer"),
    [
        ({"tessera.dev/devices": "dra"}, [], f"no node offers 1 × 2g.20gb; no ResourceSlice has a device of class {TWO}, which stands for it; the DRA driver of node a is unavailable: no pod of it runs there"),
        ({}, [devices("1g.10gb")], f"no node offers 1 × 2g.20gb; no ResourceSlice has a device of class {TWO}, which stands for it"),
        ({}, [devices("2g.20gb")], "1 × 2g.20gb is taken on node a (2g.20gb: 1 of 1 in use)"),
    ],
    ids=["the driver comes", "cut otherwise", "held"],
)  # fmt: skip
async def test_a_node_that_moved_to_dra(labels: Any, slices: Any, answer: str):
    """The kubelet remembers a device plugin that has stopped: its capacity is no unhealthy devices, and no plugin is missed."""
    moved = node("a", {"2g.20gb": 0, "3g.30gb": 0}, capacity={"2g.20gb": 4, "3g.30gb": 1}, labels=labels)
    small = device_class("one", stands_for=MIG + "1g.10gb", profile="1g.10gb")
    objects = {
        kinds.NODES: [moved],
        kinds.PODS: [pod("p", {"2g.20gb": 1})],
        CLASSES: [SERVING, small],
        kinds.RESOURCE_SLICES: slices,
        CLAIMS: [HELD] if slices else [],
    }
    found = await why("p", objects)
    assert found.answer == f"pod team/p waits: {answer}"
    assert not any("recover" in one.text or "comes back" in one.text for one in found.remedies)


async def test_a_node_that_moved_to_dra_offers_nothing_of_its_plugin():
    """Where no DeviceClass stands for what the plugin offered, the pod waits for it in vain: what would be decided now says the same."""
    moved = node("a", {"2g.20gb": 0}, capacity={"2g.20gb": 4}, labels={"tessera.dev/devices": "dra"})
    objects = {kinds.NODES: [moved, node("b", {"1g.10gb": 4})], kinds.PODS: [pod("p", {"2g.20gb": 1})]}
    found = await why("p", objects)
    assert found.answer == "pod team/p waits: no node offers 1 × 2g.20gb"
    assert found.admission[-1] == (
        "created now it would be changed: 2g.20gb is not offered, 1g.10gb is the first that is"
    )


async def test_a_container_that_the_kubelet_takes_for_a_device_plugins():
    """After a node's move to DRA the kubelet starts no container with what the plugin served: the remedy is named."""
    said = (
        "no devices found allocated in local cache for pod u, container main, resource nvidia.com/mig-2g.20gb"
    )
    waits = {"waiting": {"reason": "CreateContainerConfigError", "message": said}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waits}]}
    one = pod("p", {"2g.20gb": 1}, on="a", status=status)
    found = await why("p", {kinds.NODES: [node("a", {})], kinds.PODS: [one]})
    assert (found.cause, found.answer) == (
        "starts",
        f"pod team/p has node a with 1 × 2g.20gb, and a container waits: CreateContainerConfigError: {said}",
    )
    (remedy,) = found.remedies
    assert (remedy.kind, remedy.commands) == ("wait", ("systemctl restart kubelet   # on node a",))
    assert remedy.text == (
        "the kubelet of node a forgets the device plugin that served this before the node moved to DRA: five minutes after the "
        "plugin stopped, or when the kubelet is restarted; it tries again by itself"
    )


async def test_what_may_not_be_read():
    """Without the rights for DRA, a pod with claims is told what could not be read; one without loses nothing."""
    rights = frozenset({"deviceclasses", "resourceslices", "resourceclaims"})
    objects = {kinds.NODES: [node("a", {})], CLAIMS: [claim("x")]}
    found = await why("p", {**objects, kinds.PODS: [claiming()]}, forbidden=rights)
    assert found.answer == f"pod team/p waits: {WAITS}"
    assert found.unseen == {name: f"{name} is forbidden" for name in rights}
    found = await why("p", {**objects, kinds.PODS: [pod("p", {"2g.20gb": 1})]}, forbidden=rights)
    assert (found.answer, found.unseen) == ("pod team/p waits: no node offers 1 × 2g.20gb", {})


ALTERNATIVES = "1*2g.20gb=2g.20gb/two,1g.10gb/one"


async def test_bridged_pods():
    """A bridged pod waits for its alternatives: they are named, with who holds them."""
    small = device_class(
        "one", f"device.attributes['{DRIVER}'].profile == '1g.10gb'", stands_for=MIG + "1g.10gb"
    )
    large = device_class(
        "two", f"device.attributes['{DRIVER}'].profile == '2g.20gb'", stands_for=MIG + "2g.20gb"
    )
    status = {"resourceClaimStatuses": [{"name": "tessera-gpu", "resourceClaimName": "c"}]}
    holder = bridged(
        pod("holder", on="a", annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"}), ALTERNATIVES
    )
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [bridged(pod("p", status=status), ALTERNATIVES), holder],
        CLASSES: [small, large],
        kinds.RESOURCE_SLICES: [devices("1g.10gb")],
        CLAIMS: [claim("two", "one"), HELD],
    }
    found = await why("p", objects)
    assert (found.cause, found.answer) == (
        "taken",
        "pod team/p waits: 1 × 2g.20gb, else 1 × 1g.10gb is taken on node a (1g.10gb: 1 of 1 in use)",
    )
    assert found.admission[0] == "its request became a claim when it was created: 2g.20gb, else 1g.10gb"
    assert [(one.pod, dict(one.holds)) for one in found.holders] == [("team/holder", {MIG + "1g.10gb": 1})]
    assert [one.text for one in found.remedies if one.kind == "pod-ends"] == [
        "a pod ends on node a: team/holder (1 × 1g.10gb, for 3 h)"
    ]
    runs = await why("holder", objects)
    assert runs.answer == "pod team/holder runs on node a with 1 × 1g.10gb (asked for 2g.20gb)"
