"""Webhook, controller and DRA drivers: at work, or unavailable, why and since when."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tessera.core.kubernetes.node import Node
from tessera.inventory.presence import controller_of, drivers_of, webhook_of
from tessera.kube.view.lease import SeenLease
from tessera.protocol.kubernetes.controllers import decode_workload
from tessera.protocol.kubernetes.dra import decode_claim, decode_slice
from tessera.protocol.kubernetes.lease import Lease
from tessera.protocol.kubernetes.pod import decode_pod
from tests.build import claim_document

SINCE = "2026-11-15T11:20:00Z"
NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC).timestamp()
LEFT = Lease("tessera-controller", holder="one", seconds=15, renewed=SINCE)
FOR = "has been unavailable for 40 min (since 2026-11-15 11:20:00 UTC): "
OURS = "gpu.tessera.dev"
DRA = {"tessera.dev/devices": "dra"}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (SeenLease(at_work=True, lease=LEFT), ""),
        (
            SeenLease(at_work=True, lease=replace(LEFT, reconcilers=("patience",))),
            "tessera controller is unavailable: its Lease tools/tessera-controller says that it makes no claims",
        ),
        (SeenLease(), "tessera controller is unavailable: there is no Lease tools/tessera-controller"),
        (
            SeenLease(lease=LEFT),
            f"tessera controller {FOR}its Lease tools/tessera-controller has not been renewed by one",
        ),
        (
            SeenLease(lease=Lease("tessera-controller", renewed=SINCE)),
            f"tessera controller {FOR}its Lease tools/tessera-controller has no holder",
        ),
        (
            SeenLease(lease=Lease("tessera-controller", holder="one", renewed="junk")),
            "tessera controller is unavailable: its Lease tools/tessera-controller has not been renewed by one",
        ),
    ],
    ids=["at work", "no claims", "none", "left behind", "given up", "no time"],
)
def test_the_controller(seen: SeenLease, words: str):
    """By its Lease: there, or since when it is not, as far as the Lease says."""
    found = controller_of(seen, "tools")
    assert (found.words(NOW) if not found.at_work else "") == words
    assert found.at_work is bool(not found.command)


@pytest.mark.parametrize(
    ("replicas", "status", "words"),
    [
        (3, {"readyReplicas": 1}, ""),
        (3, {}, "the webhook is unavailable: no replica of Deployment tools/hook is ready"),
        (0, {}, "the webhook is unavailable: Deployment tools/hook is scaled to 0"),
        (
            3,
            {"conditions": [{"type": "Available", "status": "False", "lastTransitionTime": SINCE}]},
            f"the webhook {FOR}no replica of Deployment tools/hook is ready",
        ),
    ],
)
def test_the_webhook(replicas: int, status: dict[str, Any], words: str):
    """By its Deployment: one replica that is ready is enough."""
    metadata = {"name": "hook", "namespace": "tools"}
    document = {"metadata": metadata, "spec": {"replicas": replicas}, "status": status}
    found = webhook_of(decode_workload(json.dumps(document).encode()))
    assert (found.words(NOW) if not found.at_work else "") == words


def _pod(ready: str, **metadata: Any) -> Any:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": SINCE}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {
        "conditions": [condition],
        "containerStatuses": [] if ready == "True" else [{"name": "d", "state": state}],
    }
    metadata = {"name": "driver-x", "namespace": "tools", **metadata}
    return decode_pod(
        json.dumps({"metadata": metadata, "spec": {"nodeName": "a"}, "status": status}).encode()
    )


def _slice(driver: str = OURS) -> Any:
    pool = {"name": "a/tessera"}
    spec = {"driver": driver, "nodeName": "a", "pool": pool}
    return decode_slice(json.dumps({"metadata": {"name": "s"}, "spec": spec}).encode())


def _claim(driver: str = OURS) -> Any:
    document = claim_document("c", {"driver": driver, "pool": "a/tessera", "device": "d"}, spec={})
    return decode_claim(json.dumps(document).encode())


CRASHES = f"the DRA driver of node a {FOR}pod driver-x: CrashLoopBackOff"
NO_POD = "the DRA driver of node a is unavailable: no pod of it runs there"
SILENT = "the DRA driver of node a is unavailable: it has no ResourceSlices"
HELD = ", and claims hold its devices"


@pytest.mark.parametrize(
    ("labels", "slices", "claims", "pods", "installed", "words"),
    [
        ({}, [], [], [], True, None),
        ({}, [_slice("other")], [_claim("other")], [], True, None),
        (DRA, [_slice()], [_claim()], [_pod("True")], True, ""),
        ({}, [_slice()], [_claim()], [], False, ""),
        ({}, [_slice()], [], [], True, NO_POD),
        (DRA, [], [], [], False, NO_POD),
        (DRA, [_slice()], [_claim()], [], False, NO_POD + HELD),
        (DRA, [_slice()], [_claim()], None, False, ""),
        ({}, [], [_claim()], [], False, NO_POD + HELD),
        ({}, [_slice()], [_claim()], [_pod("False")], True, CRASHES),
        ({}, [_slice()], [], [_pod("True", deletionTimestamp=SINCE)], True, NO_POD),
        (DRA, [], [], [_pod("True")], True, ""),
        (DRA, [], [_claim()], [_pod("True")], True, SILENT + HELD),
        (DRA, None, [], None, False, ""),
        (DRA, [], [], None, False, SILENT),
        (DRA, None, [_claim()], [_pod("True")], True, ""),
    ],
    ids=[
        "no driver", "of another driver", "at work", "not as a pod", "slices without a pod", "labelled",
        "uninstalled a moment ago", "labelled, pods unseen", "held", "crashes",
        "on its way out", "no devices", "silent", "unseen", "pods unseen", "slices unseen",
    ],
)  # fmt: skip
def test_the_driver_of_a_node(
    labels: dict[str, str], slices: Any, claims: Any, pods: Any, installed: bool, words: str | None
):
    """Where its pod, its slices, its label or claims say that it should be, it is at work or not; elsewhere it is not expected."""
    found = drivers_of([Node("a", labels)], slices, claims, pods, installed=installed, now=NOW)
    assert {name: "" if one.at_work else one.words(NOW) for name, one in found.items()} == (
        {} if words is None else {"a": words}
    )


def test_a_driver_that_starts():
    """A young pod with which nothing has gone wrong is on its way."""
    made = datetime.fromtimestamp(NOW - 20, UTC).isoformat()
    pod = _pod("True", creationTimestamp=made)
    pod.status.conditions[0].status = "False"
    found = drivers_of([Node("a")], [], [], [pod], installed=True, now=NOW)["a"]
    assert (found.at_work, found.starts) == (False, True)
