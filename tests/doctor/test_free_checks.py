"""Fallback by what is free: what it needs is missing, planted one by one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tessera.simulation.control_plane import kinds
from tests.build import object_of
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import Examined, examined, healthy

FULL = "fallback: {when: full}"
ALLOWED = "fallback: {full: {enabled: true}}"
PATIENT = "fallback: {patience: 5m}"
UPGRADE = "helm upgrade tessera charts/tessera -n gpu-webhook --reset-then-reuse-values --set "
METRICS = "gpu_webhook_free_view_known "


async def found(config: str, **more: Any) -> Examined:
    objects = healthy(authority())
    objects[kinds.CONFIG_MAPS][0]["data"]["config.yaml"] = config
    objects[kinds.NAMESPACES][0]["metadata"]["annotations"] |= more.pop("annotations", {})
    objects[kinds.LEASES] = more.pop("leases", [])
    objects[kinds.DEPLOYMENTS] += more.pop("deployments", [])
    return await examined(objects, now=NOW, **more)


MAY, MAY_NOT_WATCH = {"list": True, "watch": True}, {"list": True, "watch": False}
RIGHTS = ": the webhook's account default may not list and watch pods"


@pytest.mark.parametrize(
    ("config", "may", "metrics", "severity", "text", "command"),
    [
        ("", MAY_NOT_WATCH, "0", "n/a", "fallback.when is missing: what is free does not matter", ""),
        (FULL, MAY, None, None, "", ""),
        (FULL, MAY, "1", None, "", ""),
        (FULL, None, "1", None, "", ""),
        (FULL, MAY_NOT_WATCH, None, "problem", f"fallback.when: full is set, and pods are decided about as with `missing`{RIGHTS}", UPGRADE + "webhook.followPods=true"),
        (ALLOWED, {"list": False}, "0", "problem", f"fallback.full.enabled: true is set, and pods are decided about as with `missing`{RIGHTS}", UPGRADE + "webhook.followPods=true"),
        (FULL, MAY, "0", "problem", "fallback.when: full is set, and pods are decided about as with `missing`: gpu-webhook-0, gpu-webhook-1, gpu-webhook-2 did not get the pods from the API server", "kubectl logs -n gpu-webhook -l app=gpu-webhook"),
        (FULL, None, None, "unseen", "could not see whether the webhook may list and watch pods: ", "kubectl auth can-i watch pods -A --as=system:serviceaccount:gpu-webhook:default"),
    ],
    ids=["off", "may", "does", "says that it does", "may not", "may not even list", "does not", "nobody says"],
)  # fmt: skip
async def test_full_needs_the_right_to_follow_pods(config, may, metrics, severity, text, command):
    """Where `full` is switched on and the webhook cannot follow pods, that is a problem; by its rights, or by what its replicas say."""
    said = None if metrics is None else f"{METRICS}{metrics}\n"
    results = (await found(config, may=may, metrics=said)).of("free")
    assert [str(one.severity) for one in results] == ([severity] if severity else [])
    for one in results:
        assert one.text.startswith(text)
        assert not command or one.commands[0] == command


def lease(seconds_ago: float, runs: str | None) -> Any:
    renewed = datetime.fromtimestamp(NOW - seconds_ago, UTC).isoformat()
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": renewed}
    annotations = {} if runs is None else {"tessera.dev/reconcilers": runs}
    return object_of("tessera-controller", annotations=annotations, spec=spec)


def controller(*args: str) -> Any:
    template = {"spec": {"containers": [{"name": "controller", "args": ["controller", *args]}]}}
    spec = {"replicas": 2, "template": template}
    return object_of("tessera-controller", spec=spec, status={"readyReplicas": 2})


CONFIG = controller("--config=/etc/tessera/config/config.yaml")
NOBODY = "tessera controller is unavailable: "
SAYS = "its Lease gpu-webhook/tessera-controller says that it evicts no pods that wait"
HARM = "; pods wait although something else is free for them (fallback.patience)"


@pytest.mark.parametrize(
    ("leases", "deployments", "text", "command"),
    [
        ([lease(2, "claims,patience")], [CONFIG], "", ""),
        ([lease(2, "patience")], [], "", ""),
        ([], [], f"{NOBODY}there is no Lease gpu-webhook/tessera-controller, and no Deployment gpu-webhook/tessera-controller{HARM}", UPGRADE + "controller.enabled=true"),
        ([lease(2, "claims")], [controller()], f"{NOBODY}{SAYS}: it runs without --config{HARM}", UPGRADE + "controller.patience=true"),
        ([lease(2, None)], [controller()], f"{NOBODY}{SAYS}: it runs without --config{HARM}", UPGRADE + "controller.patience=true"),
        ([lease(2, "claims")], [CONFIG], f"{NOBODY}{SAYS}{HARM}", "kubectl get deployments,pods"),
        ([lease(2400, "claims,patience")], [CONFIG], "tessera controller has been unavailable for 40 min", "kubectl get deployments,pods"),
    ],
    ids=["runs", "runs elsewhere", "never there", "without --config", "of before", "cannot", "dead"],
)  # fmt: skip
async def test_patience_needs_a_controller_that_has_it(leases, deployments, text, command):
    """Where `fallback.patience` is set, a controller must run that has the configuration and says so on its Lease; what to type says what lacks."""
    results = (await found(PATIENT, leases=leases, deployments=deployments)).of("controller")
    assert [str(one.severity) for one in results] == (["problem"] if text else [])
    for one in results:
        assert one.text.startswith(text)
        assert one.commands[0].startswith(command)


async def test_a_lease_that_may_not_be_read_is_unseen():
    """With patience set, who may not read the Lease is told so."""
    results = await found(PATIENT, forbidden=frozenset({"leases"}))
    assert results.one("controller").text == "could not run: the controller's Lease: leases is forbidden"
