"""Pods that need a part of Tessera that is unavailable: the part is named, since when, and what to do."""

from typing import Any

import pytest

from tessera.dashboard.reasons import asking
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.kube.watch.table import Key
from tessera.simulation.control_plane import kinds
from tests.build import MIG, bridged, claim_document, policy
from tests.diagnosis.clusters import CLAIMS, CLASSES, node, pod, refused, why
from tests.diagnosis.in_process import client_of
from tests.diagnosis.test_agreement import serving
from tests.diagnosis.test_devices import ALTERNATIVES, claim, claiming, device_class, devices

FIRST = policy("fallback: {dra: first-available}")
OURS = "gpu.tessera.dev"
SINCE = "2026-11-15T11:20:00.000000Z"
GONE = (
    "tessera controller has been unavailable for 40 min (since 2026-11-15 11:20:00 UTC): "
    "its Lease gpu-webhook/tessera-controller has not been renewed by one"
)
LOOK = "kubectl get deployments,pods -n gpu-webhook -l app=tessera-controller"


def lease(renewed: str = SINCE) -> dict[str, Any]:
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"metadata": {"name": "tessera-controller", "namespace": "gpu-webhook"}, "spec": spec}


@pytest.mark.parametrize(
    ("leases", "cause", "answer", "remedy", "command"),
    [
        ([lease()], "controller-away", f": {GONE}; it makes the claim's template", "tessera controller runs again", LOOK),
        ([], "controller-away",
         ": tessera controller is unavailable: there is no Lease gpu-webhook/tessera-controller; it makes the claim's template",
         "tessera controller runs (the chart's value controller.enabled: true)", LOOK),
        ([lease("2026-11-15T11:59:59.000000Z")], "claim-missing",
         "; tessera controller is at work, and makes its template, or writes an Event GPUClaimTemplate that says why not",
         "the claim tessera-gpu is made", "kubectl get events -n team --field-selector involvedObject.name=p"),
    ],
    ids=["dead", "never there", "at work"],
)  # fmt: skip
async def test_a_claim_that_nobody_makes(leases: Any, cause: str, answer: str, remedy: str, command: str):
    """A pod waits for its claim: `why` says whether the controller, which makes the template, is at work, and since when not."""
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [bridged(pod("p"), ALTERNATIVES)],
        kinds.LEASES: leases,
    }
    found = await why("p", objects)
    assert found.cause == cause
    assert found.answer == f"pod team/p waits: its resource claim tessera-gpu is not there{answer}"
    assert [(one.text, one.commands) for one in found.remedies] == [(remedy, (command,))]


def _served(*leases: Any) -> Any:
    """A node whose 1g.10gb and 2g.20gb come from DRA; the large one is held by another pod, and one waits for it."""
    classes = [
        device_class(f"of-{name}", stands_for=MIG + name, profile=name) for name in ("1g.10gb", "2g.20gb")
    ]
    held = claim_document("h", {"driver": OURS, "pool": "a", "device": "d1"}, namespace="team", spec={})
    return {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [pod("p", {"2g.20gb": 1})],
        CLASSES: classes,
        kinds.RESOURCE_SLICES: [devices("1g.10gb", "2g.20gb")],
        CLAIMS: [held],
        kinds.LEASES: list(leases),
    }


async def test_a_request_that_became_no_claim():
    """The controller was dead when the pod came: that is the reason, and not a DeviceClass that is there."""
    found = await why("p", _served(lease()), policy=FIRST)
    assert found.cause == "taken"
    assert f"{GONE}; no request becomes a claim" in found.admission
    assert found.admission[-1] == (
        "created now it would stay as it is: what it asks for is offered; "
        "no claim: tessera controller does not renew its Lease; it makes the templates"
    )
    first = found.remedies[0]
    assert first.text == (
        "tessera controller runs again: created again, 2g.20gb becomes a claim for 2g.20gb, else 1g.10gb"
    )
    assert first.commands == (LOOK,)


async def test_with_a_controller_it_would_be_a_claim():
    """The classes are read as the webhook reads them."""
    found = await why("p", _served(lease("2026-11-15T11:59:59Z")), policy=FIRST)
    assert (
        found.admission[-1]
        == "created now it would be changed: 2g.20gb becomes a claim for 2g.20gb, else 1g.10gb"
    )
    assert not any("controller" in one for one in (*found.admission, *(one.text for one in found.remedies)))


async def test_what_may_not_be_read():
    """Who may not read the Lease or the classes is told so; nothing is said about them that is not known."""
    forbidden = frozenset({"leases", "deviceclasses"})
    found = await why("p", _served(), policy=FIRST, forbidden=forbidden)
    assert found.unseen == {
        "the controller's Lease": "leases is forbidden",
        "deviceclasses": "deviceclasses is forbidden",
    }
    assert not any("DeviceClass" in line or "controller" in line for line in found.admission)
    assert (await why("p", _served(), forbidden=frozenset({"leases"}))).unseen == {}


def _driver(ready: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": SINCE}
    state = [] if ready == "True" else [{"name": "d", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    labels = {"app.kubernetes.io/component": "dra-driver"}
    return {
        "metadata": {"name": "driver-a", "namespace": "gpu-webhook", "labels": labels},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running", "conditions": [condition], "containerStatuses": state},
    }


CRASHES = (
    "the DRA driver of node a has been unavailable for 40 min (since 2026-11-15 11:20:00 UTC): "
    "pod driver-a: CrashLoopBackOff"
)
REPAIR = [("the DRA driver of node a runs again", ("kubectl logs -n gpu-webhook driver-a --previous",))]


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        ({"status": {"phase": "Pending"}}, "has node a and starts"),
        (
            {"metadata": {"deletionTimestamp": SINCE}},
            (
                "is ending on node a: its containers' time has been over for 40 min, and the kubelet has not reported their end; "
                "it does so once driver gpu.tessera.dev has released the pod's claim"
            ),
        ),
    ],
    ids=["starts", "ends"],
)
async def test_a_claim_on_a_node_whose_driver_is_gone(more: Any, answer: str):
    """A pod with a claim neither starts nor ends without the driver of its node; where the driver is at work, it is not mentioned."""
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    result = {"driver": OURS, "pool": "a/tessera", "device": "d0", "request": "gpu"}
    held = claim(
        "x", allocation={"devices": {"results": [result]}}, reservedFor=[{"resource": "pods", "name": "p"}]
    )
    objects: Any = {kinds.NODES: [node("a", {})], CLAIMS: [held], kinds.RESOURCE_SLICES: [devices("2g.20gb")]}
    for ready, words, remedies in (("False", f"; {CRASHES}", REPAIR), ("True", "", [])):
        found = await why("p", {**objects, kinds.PODS: [pod("p", on="a", spec=spec, **more), _driver(ready)]})
        assert found.answer == f"pod team/p {answer}{words}"
        assert [(one.text, one.commands) for one in found.remedies] == remedies


async def test_devices_that_no_slice_has_since_the_driver_is_gone():
    """The kubelet removes the slices of a driver that is gone: a claim, and a pod that asks by name, are told of the driver."""
    waits = [claiming(), pod("by-name", {"2g.20gb": 1}), _driver("False")]
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: waits,
        CLASSES: [device_class("two", stands_for=MIG + "2g.20gb")],
        CLAIMS: [claim("two")],
    }
    found = await why("p", objects)
    assert (found.cause, found.answer) == (
        "driver-away",
        f"pod team/p waits: no ResourceSlice has a device that would do, of class two (claim c, request gpu); {CRASHES}",
    )
    assert [(one.text, one.commands) for one in found.remedies] == REPAIR
    found = await why("by-name", objects)
    assert found.answer == (
        "pod team/by-name waits: no node offers 1 × 2g.20gb; no ResourceSlice has a device of class two, which stands for it; "
        f"{CRASHES}"
    )
    assert (found.remedies[0].text, found.remedies[0].commands) == REPAIR[0]
    ask = asking(client_of(serving(objects)), PolicySource(given=UsedPolicy()))
    on_the_page = await ask({Key("team", "p"), Key("team", "by-name"), Key("team", "gone")})
    assert set(on_the_page) == {Key("team", "p"), Key("team", "by-name")}
    for answer in on_the_page.values():
        assert "; the DRA driver of node a has been unavailable for " in answer


async def test_devices_of_another_driver():
    """What another driver's class lacks has nothing to do with Tessera's driver."""
    other = device_class("two", "device.driver == 'other'")
    objects = {
        kinds.NODES: [node("a", {})],
        kinds.PODS: [claiming(), _driver("False")],
        CLASSES: [other],
        CLAIMS: [claim("two")],
    }
    assert (await why("p", objects)).cause == "no-devices"


async def test_pods_that_are_not_created_without_the_webhook():
    """Under failurePolicy Fail no pod is created while the webhook is down: since when is said, and what to look at."""
    down = {"type": "Available", "status": "False", "lastTransitionTime": SINCE}
    deployment = {
        "metadata": {"name": "gpu-webhook", "namespace": "gpu-webhook"},
        "spec": {"replicas": 3},
        "status": {"conditions": [down]},
    }
    message = 'Internal error occurred: failed calling webhook "gpu-allocation.k8s.io": connection refused'
    objects = {kinds.NODES: [node("a", {"1g.10gb": 1})], kinds.DEPLOYMENTS: [deployment]}
    found = await why("rs/web", {**objects, **refused(message, {"1g.10gb": 1})})
    words = (
        "the webhook has been unavailable for 40 min (since 2026-11-15 11:20:00 UTC): "
        "no replica of Deployment gpu-webhook/gpu-webhook is ready"
    )
    assert found.answer.endswith(f"they cannot be created: {message}; {words}")
    assert f"{words}; pods are created without its decision, or not at all" in found.admission
    assert [one.commands for one in found.remedies] == [
        ("tessera doctor --check running --tessera-namespace gpu-webhook --webhook-name gpu-webhook",)
    ]
