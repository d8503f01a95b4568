"""Faults of the webhook, planted one by one: each is found, and nothing else is said to be wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import Document
from tests.doctor.authorities import DAY, NOW, authority
from tests.doctor.clusters import admit_like_the_webhook, examined, healthy, refusing, webhook_pod

Objects = dict[Any, list[Document]]
UNLIMITED = 'Pod "x" is invalid: spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources'


def _webhook(objects: Objects) -> Document:
    found: Document = objects[kinds.MUTATING_WEBHOOKS][0]["webhooks"][0]
    return found


async def test_healthy_cluster_is_healthy():
    """Where nothing is wrong, nothing is found; every check was made but the one that needs a node's files."""
    found = await examined(healthy(authority()), now=NOW)
    assert found.findings == []
    assert [name for name, answer in found.answers.items() if answer.failed] == []


def _no_configuration(objects: Objects) -> None:
    del objects[kinds.MUTATING_WEBHOOKS]


def _empty_configuration(objects: Objects) -> None:
    objects[kinds.MUTATING_WEBHOOKS][0]["webhooks"] = []


def _left_behind(objects: Objects) -> None:
    _webhook(objects)["failurePolicy"] = "Fail"
    for kind in (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.PODS, kinds.CONFIG_MAPS, kinds.SECRETS):
        del objects[kind]


def _elsewhere(objects: Objects) -> None:
    _webhook(objects)["clientConfig"]["service"]["namespace"] = "other"


def _replicas(ready: int, *pods: Document) -> Callable[[Objects], None]:
    def plant(objects: Objects) -> None:
        objects[kinds.DEPLOYMENTS][0]["status"]["readyReplicas"] = ready
        whole = objects[kinds.PODS][: 3 - len(pods)]
        objects[kinds.PODS] = [*whole, *pods]

    return plant


def _scaled_to_zero(objects: Objects) -> None:
    objects[kinds.DEPLOYMENTS][0]["spec"]["replicas"] = 0
    objects[kinds.DEPLOYMENTS][0]["status"] = {}
    objects[kinds.PODS] = []


_CRASHING = webhook_pod(
    "gpu-webhook-x",
    ready=False,
    containerStatuses=[
        {
            "name": "webhook",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 2}},
        }
    ],
)
_NO_IMAGE = webhook_pod(
    "gpu-webhook-x",
    ready=False,
    containerStatuses=[
        {"name": "webhook", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    ],
)
_UNSCHEDULED = webhook_pod(
    "gpu-webhook-x",
    ready=False,
    phase="Pending",
    conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}],
    containerStatuses=[],
)


def _selector(objects: Objects) -> None:
    objects[kinds.SERVICES][0]["spec"]["selector"] = {"app": "web"}


def _port(objects: Objects) -> None:
    _webhook(objects)["clientConfig"]["service"]["port"] = 8443


def _set(**fields: Any) -> Callable[[Objects], None]:
    return lambda objects: _webhook(objects).update(fields)


def _single_fail(objects: Objects) -> None:
    _webhook(objects)["failurePolicy"] = "Fail"
    objects[kinds.DEPLOYMENTS][0]["spec"]["replicas"] = 1
    objects[kinds.DEPLOYMENTS][0]["status"]["readyReplicas"] = 1


def _open_selector(objects: Objects) -> None:
    _webhook(objects)["namespaceSelector"]["matchExpressions"] = [
        {"key": "gpu-webhook", "operator": "NotIn", "values": ["disabled"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
    ]


def _label(value: str) -> Callable[[Objects], None]:
    def plant(objects: Objects) -> None:
        objects[kinds.NAMESPACES][0]["metadata"]["labels"] = {"gpu-webhook": value}

    return plant


def _config(text: str) -> Callable[[Objects], None]:
    def plant(objects: Objects) -> None:
        objects[kinds.CONFIG_MAPS][0]["data"] = {"config.yaml": text}

    return plant


def _no_config(objects: Objects) -> None:
    objects[kinds.CONFIG_MAPS][0]["data"] = {}


FAULTS: list[tuple[str, Callable[[Objects], None], str, str, str, str]] = [
    ("no configuration", _no_configuration, "installed", "problem", "no pod is changed", "helm install tessera"),
    ("empty configuration", _empty_configuration, "installed", "problem", "has no webhook in it", "helm upgrade"),
    ("another installation", _elsewhere, "installed", "problem", "leads to Service other/gpu-webhook", "tessera doctor -n other --name gpu-webhook"),
    ("scaled to zero", _scaled_to_zero, "running", "problem", "is scaled to 0", "kubectl scale -n gpu-webhook deployment/gpu-webhook --replicas=3"),
    ("crashing", _replicas(0, _CRASHING), "running", "problem", "0 of 3 replicas are ready; pod gpu-webhook-x: CrashLoopBackOff, last exit code 2 (Error)", "kubectl logs -n gpu-webhook gpu-webhook-x --previous"),
    ("one crashing", _replicas(2, _CRASHING), "running", "warning", "2 of 3 replicas are ready", "--previous"),
    ("no image", _replicas(2, _NO_IMAGE), "running", "warning", "ErrImagePull: no such image", "kubectl describe pod"),
    ("not scheduled", _replicas(2, _UNSCHEDULED), "running", "warning", "not scheduled: 0/1 nodes are available", "kubectl describe pod"),
    ("not ready", _replicas(2, webhook_pod("gpu-webhook-x", ready=False)), "running", "warning", "running, not ready", "kubectl logs -n gpu-webhook gpu-webhook-x"),
    ("no pods", _replicas(2), "running", "warning", "the others have no pod", "reason=FailedCreate"),
    ("Service selects others", _selector, "service", "problem", "selects app=web, which no pod of the webhook has", "--show-labels"),
    ("wrong port", _port, "service", "problem", "called at port 8443, and Service gpu-webhook has 443", "kubectl get service"),
    ("no rule for pods", _set(rules=[{"operations": ["UPDATE"], "resources": ["pods"]}]), "selection", "problem", "never called", "helm upgrade"),
    ("MIG not sent", _set(matchConditions=[{"name": "x", "expression": '"nvidia.com/gpu" task.bkbcs.tencent.com/gpu-type'}]), "selection", "problem", "do not mention nvidia.com/mig-", ""),
    ("every pod sent", _set(matchConditions=[]), "selection", "warning", "every pod of the cluster waits", "helm upgrade"),
    ("own namespace sent", _open_selector, "selection", "warning", "namespace gpu-webhook is not left out", "helm upgrade"),
    ("side effects", _set(sideEffects="Unknown"), "selection", "problem", "every dry run is refused", ""),
    ("no reinvocation", _set(reinvocationPolicy="Never"), "selection", "warning", "what other webhooks add later", ""),
    ("mistyped exemption", _label("Disabled"), "selection", "warning", "gpu-webhook=Disabled, which means nothing", "kubectl label --overwrite namespace default gpu-webhook=disabled"),
    ("Fail with one replica", _single_fail, "policy", "warning", "single replica", "--replicas=3"),
    ("long timeout", _set(timeoutSeconds=30), "policy", "warning", "timeoutSeconds is 30", ""),
    ("mistake in the configuration", _config("fallback: {upgrads: true}"), "configuration", "problem", 'fallback.upgrads: unknown field; did you mean "upgrades"?', "kubectl edit configmap -n gpu-webhook gpu-webhook"),
    ("no YAML", _config("fallback: ["), "configuration", "problem", "the last good one stays in use", "kubectl edit configmap"),
    ("no key", _no_config, "configuration", "problem", "has no key config.yaml", "kubectl get configmap"),
    ("resource not sent", _config("injection: {resourceMap: {V100: {example.com/npu: {}}}}"), "configuration", "warning", "injection is configured for example.com/npu", "webhook.extraResources={example.com/npu}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("plant", "check", "severity", "text", "command"),
    [fault[1:] for fault in FAULTS],
    ids=[f[0] for f in FAULTS],
)
async def test_planted_fault_is_found(plant, check, severity, text, command):
    """Each fault is found by its check, in words that say what, with the command that helps; no other check complains."""
    objects = healthy(authority())
    plant(objects)
    found = await examined(objects, now=NOW)
    assert found.findings == [(check, severity)]
    finding = next(one for one in found.of(check) if one.severity == severity)
    assert text in finding.text
    assert command in "\n".join(finding.commands)


async def test_configuration_left_behind_is_to_be_deleted():
    """A webhook configuration without its webhook under Fail stops all GPU pods: the doctor says to delete it."""
    objects = healthy(authority())
    _left_behind(objects)
    found = await examined(objects, now=NOW, admission=refusing(500, 'failed calling webhook "gpu-allocation.k8s.io": service "gpu-webhook" not found'))  # fmt: skip
    finding = found.one("installed")
    assert "under failurePolicy Fail no GPU pod can be created" in finding.text
    assert finding.commands == ("kubectl delete mutatingwebhookconfiguration gpu-allocation-webhook",)
    assert [name for name, _ in found.findings] == ["installed", "running", "service", "trial"]


async def test_a_webhook_that_answers_is_there():
    """Where the pod that was tried came back changed, a missing Deployment and Service are told, and nothing is to be deleted."""
    objects = healthy(authority())
    _left_behind(objects)
    found = await examined(objects, now=NOW)
    assert found.findings == []
    assert found.of("installed") == []
    for check, text in (
        ("running", "and the webhook answers"),
        ("service", "reaches the webhook without it"),
    ):
        finding = found.one(check)
        assert (finding.severity, finding.commands) == ("note", ())
        assert text in finding.text


@pytest.mark.parametrize(
    ("bundle", "secret", "severity", "text"),
    [
        (b"", authority(), "problem", "caBundle is empty"),
        (b"rubbish", authority(), "problem", "no certificates in PEM"),
        (authority("old", NOW - DAY), authority("old", NOW - DAY), "problem", "has expired"),
        (authority("future", NOW + 400 * DAY), authority("future", NOW + 400 * DAY), "problem", "not valid yet" ),
        (authority("soon", NOW + 10 * DAY), authority("soon", NOW + 10 * DAY), "warning", "ends in 10 days"),
        (authority("theirs"), authority(), "problem", "does not hold the authority of Secret gpu-webhook-ca"),
        (authority("theirs") + authority(), authority(), None, ""),
        (authority(), b"rubbish", "problem", "ca.crt is no certificate"),
        (authority(), b"", None, ""),
    ],
    ids=["empty", "rubbish", "expired", "future", "soon", "another", "both", "broken Secret", "empty Secret"],
)  # fmt: skip
async def test_bundle_is_judged(bundle, secret, severity, text):
    """The caBundle must be there, be valid, and hold the authority that signs; old and new side by side are fine."""
    found = await examined(healthy(bundle, ca=secret), now=NOW)
    if severity is None:
        assert found.findings == []
    else:
        assert found.findings == [("trust", severity)]
        assert text.replace("not valid yet", "valid yet") in found.one("trust").text


async def test_remedy_depends_on_whose_authority_it_is():
    """Self-managed, the webhook rotates; from files, their maker does."""
    ending = authority("soon", NOW + 10 * DAY)
    found = await examined(healthy(ending), now=NOW)
    assert found.one("trust").commands == ("tessera certs rotate -n gpu-webhook",)
    objects = healthy(ending)
    template = objects[kinds.DEPLOYMENTS][0]["spec"]["template"]["spec"]
    template["containers"] = [{"name": "webhook", "args": ["webhook", "--tls-cert=/etc/tls.crt"]}]
    found = await examined(objects, now=NOW)
    assert found.one("trust").commands[0].startswith("helm upgrade … --set-file certificates.caBundle=")


CALLING = 'Internal error occurred: failed calling webhook "gpu-allocation.k8s.io": failed to call webhook: Post "https://gpu-webhook.gpu-webhook.svc:443/mutate?timeout=5s": '


@pytest.mark.parametrize(
    ("code", "message", "severity", "text", "command"),
    [
        (422, UNLIMITED, "problem", "is not changed in namespace default", "kubectl logs"),
        (500, CALLING + "tls: failed to verify certificate: x509: certificate signed by unknown authority", "problem", "does not trust the webhook's certificate", "tessera certs show"),
        (500, CALLING + "tls: failed to verify certificate: x509: certificate has expired or is not yet valid", "problem", "is not valid now", "tessera certs show"),
        (500, CALLING + "tls: failed to verify certificate: x509: certificate is valid for a.b.svc, not gpu-webhook.gpu-webhook.svc", "problem", "for another name", "tessera certs show"),
        (500, CALLING + "no endpoints available for service", "problem", "leads to no ready pod", "kubectl get pods"),
        (500, CALLING + "dial tcp 10.0.0.1:443: connect: connection refused", "problem", "no process listens", "kubectl get pods"),
        (500, CALLING + "context deadline exceeded", "problem", "does not answer in time", "networkpolicy"),
        (500, CALLING + "EOF", "problem", "TLS handshake", "tessera certs show"),
        (500, CALLING + "something new", "problem", "cannot call the webhook: ", "kubectl get pods"),
        (500, 'failed calling webhook "other.example.com": EOF', "warning", "another webhook, other.example.com, fails", ""),
        (403, 'admission webhook "gpu-allocation.k8s.io" denied the request: no', "problem", "refuses a pod that asks for one GPU", ""),
        (403, "exceeded quota: gpus", "warning", "could not be tried in namespace default: exceeded quota", "--try-namespace"),
    ],
)  # fmt: skip
async def test_trial_is_understood(code, message, severity, text, command):
    """What the API server says to the pod that is tried is turned into what is wrong and what to type."""
    found = await examined(healthy(authority()), now=NOW, admission=refusing(code, message))
    assert found.findings == [("trial", severity)]
    finding = found.one("trial")
    assert text in finding.text
    assert command in "\n".join(finding.commands)


async def test_pod_that_passes_unchanged_is_a_problem():
    """A pod that is stored without limits did not meet the webhook."""

    async def pass_by(target, document, dry_run):
        from tessera.simulation.control_plane.apiserver import Admitted

        return Admitted(document)

    found = await examined(healthy(authority()), now=NOW, admission=pass_by)
    assert found.findings == [("trial", "problem")]


async def test_old_kubernetes_is_named():
    """A release older than any that is tested is worth a warning."""
    from tessera.doctor.evidence import Evidence
    from tessera.doctor.webhook import version
    from tessera.doctor.wire import Version

    assert [str(one.severity) for one in version(Evidence(version=Version("1", "29+", "v1.29.3")))] == [
        "warning"
    ]
    assert list(version(Evidence(version=Version("1", "34", "v1.34.0")))) == []
    assert list(version(Evidence(version=Version("2", "0", "v2.0.0")))) == []


async def test_what_may_not_be_read_is_unseen_not_wrong():
    """A person without permissions gets the checks that are possible, and is told what could not be looked at."""
    found = await examined(
        healthy(authority()), now=NOW, forbidden=frozenset({"secrets", "configmaps", "nodes", "events"})
    )
    assert found.findings == []
    unseen = {name for name, answer in found.answers.items() if any(f.severity == "unseen" for f in answer.findings)}  # fmt: skip
    assert unseen == {"configuration", "plugin", "layouts", "silent", "offers", "refused", "pending"}
    assert "nodes is forbidden" in found.one("offers").text


async def test_exempt_namespace_with_gpu_pods_is_a_note():
    """An exemption is the operator's wish: it is told, not complained about."""
    from tests.doctor.clusters import gpu_pod

    objects = healthy(authority())
    _label("disabled")(objects)
    objects[kinds.PODS].append(gpu_pod("mine", {"nvidia.com/mig-2g.20gb": "1"}, node="gpu-1"))
    found = await examined(objects, now=NOW, admission=admit_like_the_webhook)
    assert found.findings == []
    assert "namespace default is exempt" in found.one("selection").text
