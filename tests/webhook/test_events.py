"""Events on a pod's owner: fallbacks and rejections, nothing of dry runs, nothing of pods without an owner."""

import json
from functools import partial
from typing import Any

import pytest

from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.kube.event_recorder import About, Event
from tessera.protocol.admission.review import AdmissionRequest, decode
from tessera.protocol.kubernetes.objects import OwnerReference
from tessera.serving.logs import Log, Record
from tessera.webhook.endpoint import Admission, CachedResponse, Endpoint
from tessera.webhook.metrics import Metrics, OutcomeLabel
from tessera.webhook.process import report_to_owner
from tests.build import node, review

REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-1", "controller": True}
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u-2"}
ABOUT = About("apps/v1", "ReplicaSet", "web", "team", "u-1")
FALLBACK = Event(ABOUT, "GPUFallback", "a pod gets 1g.10gb in place of 2g.20gb: 2g.20gb is not offered, 1g.10gb is the first that is")  # fmt: skip


class Told(list[Event]):
    """A recorder that remembers."""

    full = False

    def is_full(self) -> bool:
        return self.full

    def record(self, event: Event) -> None:
        self.append(event)


def body(profile: str = "2g.20gb", owners: Any = (REPLICA_SET,), **request: Any) -> bytes:
    resources = {"limits": {f"nvidia.com/mig-{profile}": "1"}}
    pod = {
        "metadata": {"generateName": "web-", "ownerReferences": owners},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }
    return review(pod, namespace="team", **request)


def told(*bodies: bytes, offers: Offers | None = None) -> list[Event]:
    """What is recorded while these are admitted."""
    recorder: Any = Told()
    admission = Admission(offers or Offers([node("a", **{"1g.10gb": 7})]), Policy())
    endpoint = Endpoint(
        admission, lambda: None, Metrics("1"), Log("json", "error"), partial(report_to_owner, recorder)
    )
    for one in bodies:
        assert endpoint.handle(one).status == 200
    return list(recorder)


def test_fallback_is_told_for_every_pod():
    """Each pod of a controller is one more of the same event; what is not changed is not reported."""
    assert told(body(), body(), body("1g.10gb")) == [FALLBACK, FALLBACK]


def test_rejection_is_a_warning():
    """A rejected pod: the message that its creator got, on the owner."""
    (event,) = told(body(), offers=Offers([node("plain")]))
    assert (event.about, event.reason, event.type) == (ABOUT, "GPURejected", "Warning")
    assert event.message.startswith("a pod is rejected: asked for nvidia.com/mig-2g.20gb: 1")


@pytest.mark.parametrize(
    "one",
    [
        body(dryRun=True),
        body(owners=None),
        body(owners=[]),
        body(owners="x"),
        body(owners=[{**REPLICA_SET, "uid": ""}]),
    ],
    ids=["dry run", "no owners", "empty", "unreadable", "no uid"],
)
def test_nothing_is_told(one: bytes):
    """Of a dry run nothing may remain, and without an owner there is no object to write it on."""
    assert told(one) == []


def test_nothing_is_made_for_a_full_recorder():
    """While too many events wait, pods are answered without one."""
    recorder: Any = Told()
    verdict = CachedResponse(
        b"", OutcomeLabel.PATCHED, "info", Record(reason="why"), (("2g.20gb", "1g.10gb"),)
    )
    recorder.full = True
    report_to_owner(recorder, decode(body()), verdict)
    assert recorder == []
    recorder.full = False
    report_to_owner(recorder, decode(body()), verdict)
    assert len(recorder) == 1


@pytest.mark.parametrize(
    ("owners", "expected"),
    [([OTHER, REPLICA_SET], "web"), ([OTHER], "x"), ([], None)],
)
def test_owner_is_the_controller(owners: Any, expected: str | None):
    """The controller, or else the first owner."""
    found = decode(body(owners=owners)).owner()
    assert (found.name if isinstance(found, OwnerReference) else found) == expected


def test_observe_mode_is_told_as_would():
    """What observe mode does not do is reported as what would be done."""
    recorder: Any = Told()
    request: AdmissionRequest = decode(body())
    for decision, rejected, replaced in (
        ("would be rejected", "not_offered", ()),
        ("would be patched", None, (("2g.20gb", "1g.10gb"),)),
    ):
        record = Record(decision=decision, reason="why")
        verdict = CachedResponse(
            b"", OutcomeLabel.UNCHANGED, "info", record, replaced, rejected=rejected, observed=True
        )
        report_to_owner(recorder, request, verdict)
    assert [(one.reason, one.message) for one in recorder] == [
        ("GPUWouldReject", "a pod would be rejected: why"),
        ("GPUWouldFallBack", "a pod would get 1g.10gb in place of 2g.20gb: why"),
    ]


def test_dry_run_is_read():
    """`dryRun` of a review, which may be absent or null."""
    given = json.loads(body())
    assert [decode(json.dumps({**given, "request": {**given["request"], "dryRun": value}}).encode()).dry_run for value in (True, False, None)] == [True, False, False]  # fmt: skip
    assert decode(body()).dry_run is False
