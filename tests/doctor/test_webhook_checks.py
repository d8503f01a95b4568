"""Faults of the webhook, planted one by one: each is found, and nothing else is said to be wrong."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tessera.doctor.checks import webhook as webhook_checks
from tessera.doctor.observations import Observations
from tessera.kube import errors
from tessera.kube.rest import client
from tessera.protocol import yaml
from tessera.protocol.kubernetes.webhook import Version
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import Document
from tessera.webhook.certificates.authorities import InvalidAuthorities, read_authorities
from tests.build import bridged, object_of
from tests.doctor.authorities import DAY, NOW, authority, key_of, signed_by
from tests.doctor.clusters import (
    DAEMON_SETS,
    admit_like_the_webhook,
    encoded,
    examined,
    gpu_pod,
    healthy,
    refusing,
    webhook_pod,
)

Objects = dict[Any, list[Document]]
UNLIMITED = 'Pod "x" is invalid: spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources'


def _webhook(objects: Objects) -> Document:
    found: Document = objects[kinds.MUTATING_WEBHOOKS][0]["webhooks"][0]
    return found


async def test_healthy_cluster_is_healthy():
    """Where nothing is wrong, nothing is found; every check was made but the one that needs a node's files."""
    found = await examined(healthy(authority()), now=NOW)
    assert found.findings == []
    assert [name for name, result in found.results.items() if result.failed] == []


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


def _pods_missing(objects: Objects) -> None:
    objects[kinds.DEPLOYMENTS][0]["status"]["readyReplicas"] = 2
    del objects[kinds.PODS][0]


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
    ("another installation", _elsewhere, "installed", "problem", "leads to Service other/gpu-webhook", "tessera doctor --tessera-namespace other --webhook-name gpu-webhook"),
    ("scaled to zero", _scaled_to_zero, "running", "problem", "is scaled to 0", "kubectl scale -n gpu-webhook deployment/gpu-webhook --replicas=3"),
    ("crashing", _replicas(0, _CRASHING), "running", "problem", "0 of 3 replicas are ready; pod gpu-webhook-x: CrashLoopBackOff, last exit code 2 (Error)", "kubectl logs -n gpu-webhook gpu-webhook-x --previous"),
    ("one crashing", _replicas(2, _CRASHING), "running", "warning", "2 of 3 replicas are ready", "--previous"),
    ("no image", _replicas(2, _NO_IMAGE), "running", "warning", "ErrImagePull: no such image", "kubectl describe pod"),
    ("not scheduled", _replicas(2, _UNSCHEDULED), "running", "warning", "not scheduled: 0/1 nodes are available", "kubectl describe pod"),
    ("not ready", _replicas(2, webhook_pod("gpu-webhook-x", ready=False)), "running", "warning", "running, not ready", "kubectl logs -n gpu-webhook gpu-webhook-x"),
    ("no pods", _pods_missing, "running", "warning", "2 of 3 replicas are ready, and 1 have no pod", "reason=FailedCreate"),
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
    """Where the pod that was tried came back changed, a missing Deployment and Service are reported, and nothing is to be deleted."""
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
    ("component", "severity", "text"),
    [
        ("dra-driver", "note", "the webhook is not installed, and the DRA driver can do without it; "),
        ("device-plugin", "note", "the webhook is not installed, and the device plugin can do without it; "),
        ("another", "problem", "there is no MutatingWebhookConfiguration gpu-allocation-webhook: no pod is changed"),
    ],
)  # fmt: skip
async def test_a_webhook_that_is_not_installed_is_told_once(component, severity, text):
    """Device plugin and DRA driver can do without it; where nothing of Tessera is there, that is the one problem."""
    labels = {"app.kubernetes.io/component": component}
    daemons = object_of("some", labels=labels, spec={}, status={"desiredNumberScheduled": 0})
    objects = {kinds.NAMESPACES: [object_of("default")], DAEMON_SETS: [daemons]}
    found = await examined(objects, now=NOW, admission=refusing(422, UNLIMITED))
    finding = found.one("installed")
    assert finding.severity == severity
    assert finding.text.startswith(text)
    assert finding.commands[0].startswith("helm install tessera charts/tessera -n gpu-webhook ")
    problems = [name for name, result in found.results.items() if result.failed]
    assert problems == (["installed"] if severity == "problem" else [])
    asked = ("running", "service", "trust", "trial", "selection", "policy", "configuration")
    assert {found.states[one] for one in asked} == {"not applicable"}


@pytest.mark.parametrize(
    ("bundle", "secret", "severity", "text"),
    [
        (b"", authority(), "problem", "caBundle is empty"),
        (b"rubbish", authority(), "problem", "no certificates in PEM"),
        (authority("old", NOW - DAY), authority("old", NOW - DAY), "problem", "has expired"),
        (authority("future", NOW + 400 * DAY), authority("future", NOW + 400 * DAY), "problem", "not valid yet" ),
        (authority("soon", NOW + 10 * DAY), authority("soon", NOW + 10 * DAY), "warning", "ends in 10 days"),
        (authority("theirs"), authority(), "problem", "does not hold the authority of Secret gpu-webhook/gpu-webhook-ca"),
        (authority("theirs") + authority(), authority(), None, ""),
        (authority(), b"rubbish", "problem", "ca.crt: one CA certificate in PEM is expected"),
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
    assert found.one("trust").commands == ("tessera certs rotate --tessera-namespace gpu-webhook",)
    objects = healthy(ending)
    template = objects[kinds.DEPLOYMENTS][0]["spec"]["template"]["spec"]
    template["containers"] = [{"name": "webhook", "args": ["webhook", "--tls-cert=/etc/tls.crt"]}]
    objects[kinds.SECRETS][0]["data"] = {"tls.crt": encoded(signed_by(ending))}
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
        (500, 'failed calling webhook "other.example.com": EOF', "unseen", "another webhook, other.example.com, fails", ""),
        (403, 'admission webhook "gpu-allocation.k8s.io" denied the request: no', "problem", "refuses a pod that asks for one GPU", ""),
        (403, 'pods is forbidden: User "eve" cannot create resource "pods"', "unseen", "could not be tried in namespace default: pods is forbidden", "--try-namespace"),
        (404, 'namespaces "default" not found', "unseen", "could not be tried", "--try-namespace"),
        (403, "exceeded quota: gpus", "unseen", "could not be tried in namespace default: exceeded quota", "--try-namespace"),
    ],
)  # fmt: skip
async def test_trial_is_understood(code, message, severity, text, command):
    """What the API server says to the pod that is tried is turned into what is wrong and what to type."""
    found = await examined(healthy(authority()), now=NOW, admission=refusing(code, message))
    assert found.findings == ([("trial", severity)] if severity == "problem" else [])
    assert found.states["trial"] == ("seen" if severity == "problem" else "not seen")
    finding = found.one("trial")
    assert text in finding.text
    assert command in "\n".join(finding.commands)


async def test_a_webhook_for_workloads_is_no_problem():
    """Beside the one for pods: it is called for no pod, and needs no conditions."""
    objects = healthy(authority())
    (configuration,) = objects[kinds.MUTATING_WEBHOOKS]
    (pods,) = configuration["webhooks"]
    rules = [{"operations": ["CREATE"], "apiGroups": ["batch"], "apiVersions": ["*"], "resources": ["jobs"]}]
    workloads = {**pods, "name": "workloads.gpu-allocation.k8s.io", "rules": rules}
    del workloads["matchConditions"]
    configuration["webhooks"].append(workloads)
    assert (await examined(objects, now=NOW)).findings == []
    for one in configuration["webhooks"]:
        one["timeoutSeconds"] = 29
    assert (await examined(objects, now=NOW)).findings == [("policy", "warning")]  # once


async def test_observe_mode_is_no_problem(monkeypatch):
    """The pod is refused for want of a limit, and the webhook's warning says what it would have done."""
    told = '299 - "other", 299 - "observe mode: would be changed: limits added where a GPU request had none"'
    plain = errors.error_of
    monkeypatch.setattr(client, "error_of", lambda code, body, wait, _: plain(code, body, wait, told))
    found = await examined(healthy(authority()), now=NOW, admission=refusing(422, UNLIMITED))
    assert found.findings == []
    assert "observes in namespace default" in found.one("trial").text


async def test_pod_that_passes_unchanged_is_a_problem():
    """A pod that is stored without limits did not meet the webhook."""

    async def pass_by(target, document, dry_run):
        from tessera.simulation.control_plane.apiserver import Admitted

        return Admitted(document)

    found = await examined(healthy(authority()), now=NOW, admission=pass_by)
    assert found.findings == [("trial", "problem")]


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        (("1", "29+", "v1.29.3"), True),
        (("1", "30", "v1.30.0"), False),
        (("1", "36+", "v1.36.3-gke.1"), False),
        (("2", "0", "v2.0.0"), False),
        (("", "", ""), True),
    ],
)
def test_old_kubernetes_is_named(version: tuple[str, str, str], warned: bool):
    """A release older than any that was tried is worth a warning."""
    found = list(webhook_checks.version(Observations(version=Version(*version))))
    assert [str(one.severity) for one in found] == ["warning"] * warned


def test_chart_and_doctor_ask_for_the_same_kubernetes():
    """The oldest release is the chart's `kubeVersion`; the doctor names no other one."""
    chart = yaml.load((Path(__file__).parents[2] / "charts/tessera/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={webhook_checks.OLDEST[0]}.{webhook_checks.OLDEST[1]}.0-0"


_ON_ITS_WAY = {
    "containerStatuses": [{"name": "webhook", "state": {"waiting": {"reason": "ContainerCreating"}}}]
}


@pytest.mark.parametrize(
    ("ready", "pod", "age", "severity"),
    [
        (2, webhook_pod("gpu-webhook-x", ready=False, **_ON_ITS_WAY), 5, "note"),
        (2, webhook_pod("gpu-webhook-x", ready=False), 5, "note"),
        (0, webhook_pod("gpu-webhook-x", ready=False, **_ON_ITS_WAY), 5, "warning"),
        (2, webhook_pod("gpu-webhook-x", ready=False, **_ON_ITS_WAY), 600, "warning"),
        (2, _CRASHING, 5, "warning"),
        (2, _NO_IMAGE, 5, "warning"),
        (0, _CRASHING, 5, "problem"),
    ],
)  # fmt: skip
async def test_rollout_is_no_alarm(ready, pod, age, severity):
    """A replica that has just been made and starts is reported, not complained about; one that fails or hangs is."""
    objects = healthy(authority())
    _replicas(ready, pod)(objects)
    found = await examined(objects, now=NOW, age=age)
    assert [str(one.severity) for one in found.of("running")] == [severity]
    assert ("gpu-webhook-x start" in found.one("running").text) == (
        age == 5 and pod not in (_CRASHING, _NO_IMAGE)
    )


async def test_replica_that_ends_is_not_missed():
    """A pod that is being deleted is no replica that is not ready."""
    objects = healthy(authority())
    ending = webhook_pod("gpu-webhook-x", ready=False)
    ending["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    objects[kinds.PODS].append(ending)
    objects[kinds.DEPLOYMENTS][0]["status"]["readyReplicas"] = 2  # not yet counted again
    assert (await examined(objects, now=NOW)).of("running") == []


def _given(leaf: bytes, bundle: bytes) -> Objects:
    """The certificate comes from a Secret that others made."""
    objects = healthy(bundle)
    template = objects[kinds.DEPLOYMENTS][0]["spec"]["template"]["spec"]
    mounts = [{"name": "tls", "mountPath": "/etc/tessera/tls"}]
    args = ["webhook", "--tls-cert=/etc/tessera/tls/tls.crt"]
    template["containers"] = [{"name": "webhook", "args": args, "volumeMounts": mounts}]
    template["volumes"].append({"name": "tls", "secret": {"secretName": "given"}})
    objects[kinds.SECRETS] = [{"metadata": {"name": "given"}, "data": {"tls.crt": encoded(leaf)}}]
    return objects


@pytest.mark.parametrize(
    ("leaf", "severity", "text"),
    [
        (signed_by(authority()), None, ""),
        (signed_by(authority(), NOW - DAY), "problem", "the certificate in Secret given ended on 2027-01-14 08:00 UTC"),
        (signed_by(authority(), NOW + DAY), "warning", "ends on 2027-01-16 08:00 UTC, and has not been renewed"),
        (signed_by(authority("theirs")), "problem", "the caBundle does not trust the certificate in Secret given"),
        (signed_by(authority(), host="other.svc"), "problem", "is for other.svc, and the webhook is called gpu-webhook.gpu-webhook.svc"),
        (b"rubbish", "problem", "tls.crt is no certificate"),
    ],
    ids=["good", "ended", "ends soon", "another authority", "another name", "rubbish"],
)  # fmt: skip
async def test_given_certificate_is_judged(leaf, severity, text):
    """A certificate from files: its end, its names, and whether the published caBundle trusts it."""
    found = await examined(_given(leaf, authority()), now=NOW)
    assert found.findings == ([("trust", severity)] if severity else [])
    if severity:
        assert text in found.one("trust").text


async def test_given_certificate_that_is_not_there_is_named():
    """Without the Secret that was promised no replica starts."""
    objects = _given(signed_by(authority()), authority())
    del objects[kinds.SECRETS]
    assert "Secret given, in which the webhook's certificate should be" in (await examined(objects, now=NOW)).one("trust").text  # fmt: skip


def test_chain_by_an_intermediate_is_trusted():
    """A certificate may come with those that stand between it and the authority."""
    from cryptography.x509 import load_pem_x509_certificate as load

    from tessera.protocol.pem import leads_to

    root, stranger = authority("root"), authority("stranger")
    middle = signed_by(root, NOW + 30 * DAY, "middle")
    leaf = signed_by(middle)
    one, between, top, other = map(load, (leaf, middle, root, stranger))
    assert leads_to([one, between], [top])
    assert leads_to([one], [one])
    assert not leads_to([one], [top])
    assert not leads_to([one, between, one], [other])
    assert not leads_to([], [top])


_DAMAGED = {"ca.crt": b"rubbish", "ca.key": b"x"}


@pytest.mark.parametrize(
    "data",
    [
        _DAMAGED,
        {"ca.key": key_of(authority())},
        {"ca.crt": authority()},
        {"ca.crt": authority() * 2, "ca.key": key_of(authority())},
        {"ca.crt": authority(), "ca.key": b"\xff\x00"},
        {"ca.crt": authority(), "ca.key": key_of(authority("theirs"))},
        {"ca.crt": authority(), "ca.key": key_of(authority()), "next.crt": b"rubbish"},
        {"ca.crt": authority(), "ca.key": key_of(authority()), "retiring-since": b"yesterday"},
        {**_DAMAGED, "damaged-ca.crt": b"old"},
        {**_DAMAGED, "password": b"theirs"},
    ],
    ids=["rubbish", "no certificate", "no key", "two", "rubbish key", "another's key", "next", "since", "again", "another program's"],
)  # fmt: skip
async def test_damaged_authority_is_told_in_the_words_of_the_controllers_log(data):
    """What is wrong, what happens next and what to type: the same in `tessera doctor` as in the log."""
    assert authority("theirs")
    objects = healthy(authority())
    objects[kinds.SECRETS][0]["data"] = {name: encoded(value) for name, value in data.items()}
    found = await examined(objects, now=NOW)
    assert found.findings == [("trust", "problem")]
    finding = found.one("trust")
    with pytest.raises(InvalidAuthorities) as log:
        read_authorities(data, "Secret gpu-webhook/gpu-webhook-ca")
    wrong, _, remedy = str(log.value).partition("; ")
    assert finding.text.startswith(re.sub(r" \([a-z ]+\)$", "", wrong))  # the log adds OpenSSL's own word
    said, _, command = remedy.partition(": kubectl")
    assert finding.text.endswith(said)
    if command:
        assert finding.commands == (f"kubectl{command}",)
    assert not any("delete" in command for command in finding.commands)


@pytest.mark.parametrize(
    ("more", "text", "command"),
    [
        ({}, "after some minutes Tessera saves all of it as damaged-…", "kubectl logs -n gpu-webhook -l app=gpu-webhook-certificates"),
        ({"damaged-ca.crt": b"old"}, "empty the Secret", 'kubectl patch secret gpu-webhook-ca -n gpu-webhook --type=json -p \'[{"op":"remove","path":"/data"}]\''),
        ({"password": b"theirs"}, "it also holds password", "helm upgrade tessera charts/tessera -n gpu-webhook --reset-then-reuse-values --set certificates.secretName=…"),
    ],
    ids=["the first time", "again", "another program's"],
)  # fmt: skip
async def test_emptying_is_asked_for_only_where_it_is_needed(more, text, command):
    """Damage is repaired within minutes; only what was kept of an earlier damage is in the way."""
    objects = healthy(authority())
    objects[kinds.SECRETS][0]["data"] = {name: encoded(value) for name, value in {**_DAMAGED, **more}.items()}
    finding = (await examined(objects, now=NOW)).one("trust")
    assert text in finding.text
    assert finding.commands == (command,)


async def test_what_was_kept_of_a_damaged_authority_is_noted():
    """It is in the way of repairing the next damage, and it holds a private key."""
    objects = healthy(authority())
    objects[kinds.SECRETS][0]["data"] |= {"damaged-ca.crt": encoded(b"x"), "damaged-ca.key": encoded(b"y")}
    found = await examined(objects, now=NOW)
    assert found.findings == []
    finding = found.one("trust")
    assert finding.severity == "note"
    assert "is still there (damaged-ca.crt, damaged-ca.key)" in finding.text
    assert finding.commands == (
        (
            "kubectl patch secret gpu-webhook-ca -n gpu-webhook --type=json -p "
            """'[{"op":"remove","path":"/data/damaged-ca.crt"},{"op":"remove","path":"/data/damaged-ca.key"}]'"""
        ),
    )


@pytest.mark.parametrize("bundle", [authority(), b""], ids=["published", "empty caBundle"])
async def test_deleted_authority_is_to_be_created_empty(bundle):
    """The controller may not create Secrets: an empty one is filled. The words are those of the controller's log."""
    objects = healthy(bundle, ca=authority())
    del objects[kinds.SECRETS]
    finding = (await examined(objects, now=NOW)).of("trust")[-1]
    assert finding.text == (
        "Secret gpu-webhook/gpu-webhook-ca does not exist, and the right to create it is not given; "
        "create it empty, and Tessera fills it"
    )
    assert finding.commands == ("kubectl create secret generic gpu-webhook-ca -n gpu-webhook",)


def _controller(objects: Objects) -> Any:
    return next(one for one in objects[kinds.DEPLOYMENTS] if one["metadata"]["name"].endswith("-certificates"))  # fmt: skip


async def test_empty_bundle_leads_to_the_controller_and_its_account():
    """Who writes the caBundle is the certificate controller, under the account that its Deployment names."""
    objects = healthy(b"", ca=authority())
    _controller(objects)["spec"]["template"]["spec"]["serviceAccountName"] = "writer"
    finding = (await examined(objects, now=NOW)).one("trust")
    assert "Deployment gpu-webhook-certificates has not written it yet, or may not" in finding.text
    assert finding.commands == (
        "kubectl logs -n gpu-webhook -l app=gpu-webhook-certificates",
        (
            "kubectl auth can-i patch mutatingwebhookconfigurations/gpu-allocation-webhook "
            "--as=system:serviceaccount:gpu-webhook:writer"
        ),
    )


async def test_webhook_that_keeps_its_own_authority_is_told_apart():
    """Without `--read-only-certificates` and without a controller, the webhook itself writes."""
    objects = healthy(b"", ca=authority())
    objects[kinds.DEPLOYMENTS].remove(_controller(objects))
    objects[kinds.DEPLOYMENTS][0]["spec"]["template"]["spec"]["containers"] = []
    finding = (await examined(objects, now=NOW)).one("trust")
    assert "Deployment gpu-webhook has not written it yet" in finding.text
    assert finding.commands[0] == "kubectl logs -n gpu-webhook -l app=gpu-webhook"
    assert finding.commands[1].endswith("--as=system:serviceaccount:gpu-webhook:gpu-webhook")


async def test_empty_bundle_of_a_given_certificate_is_the_givers():
    """No log of Tessera's says why cert-manager, or a person, wrote none."""
    finding = (await examined(_given(signed_by(authority()), b""), now=NOW)).one("trust")
    assert finding.text.endswith("it was not given, or cert-manager has not written it yet")


@pytest.mark.parametrize(
    ("change", "text", "command"),
    [
        (lambda one: one["spec"].update(replicas=0), "Deployment gpu-webhook-certificates is scaled to 0", "kubectl scale -n gpu-webhook deployment/gpu-webhook-certificates --replicas=1"),
        (lambda one: one["status"].update(readyReplicas=0), "Deployment gpu-webhook-certificates: 0 of 1 replicas are ready, and 1 have no pod", "kubectl describe -n gpu-webhook deployment/gpu-webhook-certificates"),
        (None, "there is no Deployment gpu-webhook/gpu-webhook-certificates", "helm upgrade tessera charts/tessera -n gpu-webhook --reset-then-reuse-values"),
    ],
    ids=["scaled to 0", "no pod", "gone"],
)  # fmt: skip
async def test_certificate_controller_must_run(change, text, command):
    """Without it the webhook goes on, and nothing is renewed: the doctor says so before the alert can."""
    objects = healthy(authority())
    if change:
        change(_controller(objects))
    else:
        objects[kinds.DEPLOYMENTS].remove(_controller(objects))
    found = await examined(objects, now=NOW)
    assert found.findings == [("trust", "problem")]
    assert found.one("trust").text.startswith(text)
    assert found.one("trust").commands[0] == command


_METRICS = 'gpu_webhook_certificate_expiry_timestamp_seconds{{certificate="serving"}} {ends}\ngpu_webhook_certificate_trusted {trusted}\n'


@pytest.mark.parametrize(
    ("ends", "trusted", "texts"),
    [
        (NOW + 6 * DAY, 1, []),
        (NOW - 60, 1, ["serves ended on 2027-01-15 07:59 UTC"]),
        (
            NOW + 6 * DAY,
            0,
            ["says that the published caBundle does not trust what it serves, or cannot be read"],
        ),
    ],
)
async def test_replicas_say_what_they_serve(ends, trusted, texts):
    """What is served is read from the replicas, where the API server's proxy may be used."""
    found = await examined(healthy(authority()), now=NOW, metrics=_METRICS.format(ends=ends, trusted=trusted))
    assert len(found.of("trust")) == 3 * len(texts)
    for finding, text in zip(found.of("trust"), texts, strict=False):
        assert finding.text.startswith(("the certificate that pod gpu-webhook-0", "pod gpu-webhook-0"))
        assert text in finding.text


BRIDGE = "fallback: {dra: first-available}"
KEY = {"current": encoded(bytes(32)), "next": encoded(bytes(32))}


@pytest.mark.parametrize(
    ("config", "namespace", "data", "severity", "text"),
    [
        ("", "", None, "n/a", "the bridge is off"),
        ("", "extended-resources", None, "n/a", "the bridge is off"),
        (BRIDGE, "", KEY, None, ""),
        ("", "first-available", KEY, None, ""),
        (BRIDGE, "", None, "problem", "Secret gpu-webhook/tessera-ticket-key, the key of tickets, is not there: "),
        ("", "first-available", None, "problem", "the key of tickets, is not there: "),
        (BRIDGE, "", {}, "problem", "the key of tickets, holds no key: the webhook converts no request"),
        (BRIDGE, "", {"current": encoded(bytes(31))}, "problem", "the key of tickets, holds no key: "),
    ],
)  # fmt: skip
async def test_with_the_bridge_on_there_is_a_key_for_tickets(config, namespace, data, severity, text):
    """Requests become claims only with a key: where the bridge is on, for all or for one namespace, its absence is a problem."""
    objects = healthy(authority())
    objects[kinds.CONFIG_MAPS][0]["data"]["config.yaml"] = config
    if namespace:
        objects[kinds.NAMESPACES][0]["metadata"]["annotations"]["gpu-webhook.k8s.io/dra"] = namespace
    if data is not None:
        objects[kinds.SECRETS].append(object_of("tessera-ticket-key", data=data))
    found = await examined(objects, now=NOW)
    assert [str(one.severity) for one in found.of("tickets")] == ([severity] if severity else [])
    assert all(text in one.text for one in found.of("tickets"))
    if severity == "problem":
        assert found.one("tickets").commands[0] == "kubectl logs -n gpu-webhook -l app=tessera-controller"


LEFT_BEHIND = {
    "holderIdentity": "one",
    "leaseDurationSeconds": 15,
    "renewTime": datetime.fromtimestamp(NOW - 2400, UTC).isoformat(),
}
FRESH = {**LEFT_BEHIND, "renewTime": datetime.fromtimestamp(NOW - 2, UTC).isoformat()}
SINCE = "(since 2027-01-15 07:20:00 UTC): "
AWAY = "; the webhook converts no request to a claim, and pods wait whose claims have no template yet"


def _running(ready: int) -> Any:
    return object_of("tessera-controller", spec={"replicas": 2}, status={"readyReplicas": ready})


@pytest.mark.parametrize(
    ("config", "lease", "deployments", "texts"),
    [
        ("", None, [], ["the bridge is off: no request becomes a claim"]),
        (BRIDGE, FRESH, [_running(2)], []),
        (BRIDGE, None, [], [
            f"tessera controller is unavailable: there is no Lease gpu-webhook/tessera-controller, and no Deployment gpu-webhook/tessera-controller{AWAY}",
        ]),
        (BRIDGE, LEFT_BEHIND, [_running(0)], [
            f"tessera controller has been unavailable for 40 min {SINCE}its Lease gpu-webhook/tessera-controller has not been renewed by one{AWAY}",
            "Deployment tessera-controller: 0 of 2 replicas are ready, and 2 have no pod",
        ]),
    ],
    ids=["off", "at work", "never there", "dead"],
)  # fmt: skip
async def test_with_the_bridge_on_there_is_a_controller(config, lease, deployments, texts):
    """Where requests become claims, a controller that is dead is a problem, since when it is, and what its Deployment says."""
    objects = healthy(authority())
    objects[kinds.CONFIG_MAPS][0]["data"]["config.yaml"] = config
    objects[kinds.LEASES] = [object_of("tessera-controller", spec=lease)] if lease else []
    objects[kinds.DEPLOYMENTS] += deployments
    found = await examined(objects, now=NOW)
    assert [one.text for one in found.of("controller")] == texts
    assert found.results["controller"].failed is bool(config and texts)
    if lease is None and config:
        assert found.one("controller").commands[0].endswith("--set controller.enabled=true")


@pytest.mark.parametrize("by", ["annotation", "pod"])
async def test_where_the_bridge_is_in_use_the_controller_is_checked(by):
    """By a namespace's annotation, or by a pod that carries alternatives, whatever the configuration says."""
    objects = healthy(authority())
    if by == "annotation":
        objects[kinds.NAMESPACES][0]["metadata"]["annotations"]["gpu-webhook.k8s.io/dra"] = "first-available"
    else:
        objects[kinds.PODS].append(bridged(gpu_pod("p", {}), "1*2g.20gb=2g.20gb/two,1g.10gb/one"))
    found = await examined(objects, now=NOW)
    assert ("controller", "problem") in found.findings
    if by == "pod":
        told = found.one("pending").text
        assert told.startswith(
            "pod default/p waits: its resource claim tessera-gpu is not there: tessera controller is unavailable"
        )


async def test_a_lease_that_may_not_be_read_is_unseen():
    """With the bridge on, who may not read the Lease is told so."""
    objects = healthy(authority())
    objects[kinds.CONFIG_MAPS][0]["data"]["config.yaml"] = BRIDGE
    found = await examined(objects, now=NOW, forbidden=frozenset({"leases"}))
    assert found.one("controller").text == "could not run: the controller's Lease: leases is forbidden"


async def test_a_key_of_tickets_that_may_not_be_read_is_unseen():
    """With the bridge on, who may not read the Secret is told so."""
    objects = healthy(authority())
    objects[kinds.CONFIG_MAPS][0]["data"]["config.yaml"] = BRIDGE
    found = await examined(objects, now=NOW, forbidden=frozenset({"secrets"}))
    assert found.states["tickets"] == "not seen"
    assert (
        found.one("tickets").text
        == "could not run: Secret gpu-webhook/tessera-ticket-key: secrets is forbidden"
    )


async def test_what_may_not_be_read_is_unseen_not_wrong():
    """A person without permissions gets the checks that are possible, and is told what could not be looked at."""
    found = await examined(
        healthy(authority()), now=NOW, forbidden=frozenset({"secrets", "configmaps", "nodes", "events"})
    )
    assert found.findings == []
    unseen = {name for name, state in found.states.items() if state == "not seen"}
    blind = {
        "configuration",
        "controller",
        "tickets",
        "free",
        "plugin",
        "layouts",
        "silent",
        "driver",
        "pools",
        "offers",
        "refused",
        "pending",
    }
    assert unseen == blind
    assert "nodes is forbidden" in found.one("offers").text


async def test_trust_without_the_secret_rests_on_the_trial():
    """Who may not read Secrets is told so, unless the pod that was tried proves that the certificate is trusted."""
    hidden = frozenset({"secrets"})
    assert (await examined(healthy(authority()), now=NOW, forbidden=hidden)).states["trust"] == "seen"
    refused = refusing(403, "exceeded quota")
    found = await examined(healthy(authority()), now=NOW, forbidden=hidden, admission=refused)
    assert found.states["trust"] == "not seen"
    assert (
        "could not compare the caBundle with what is served: secrets is forbidden" in found.one("trust").text
    )


async def test_without_any_permission_nothing_is_well():
    """Where nothing may be read no check says ok, but for a node's files, which were not asked for."""
    found = await examined(healthy(authority()), now=NOW, forbidden=None)
    assert {name for name, state in found.states.items() if state != "not seen"} == {"cdi"}
    assert found.findings == []


async def test_where_nothing_is_installed_little_is_well():
    """Without an installation there is one problem with its cause, and nothing else is called right or wrong."""
    objects = {
        kinds.NODES: healthy(authority())[kinds.NODES],
        kinds.NAMESPACES: healthy(authority())[kinds.NAMESPACES],
    }
    found = await examined(objects, now=NOW, admission=refusing(422, UNLIMITED))
    assert found.findings == [("installed", "problem")]
    seen = {name for name, state in found.states.items() if state == "seen"}
    assert seen == {"version", "installed", "offers", "pending"}


@pytest.mark.parametrize(("mode", "told"), [("observe", True), ("enforce", False)])
async def test_namespaces_that_act_while_the_rest_observes(mode, told):
    """Who went back to observing sees in which namespaces the webhook still acts: their label wins."""
    objects = healthy(authority())
    objects[kinds.CONFIG_MAPS][0]["data"]["config.yaml"] = f"mode: {mode}"
    _label("enforce")(objects)
    found = await examined(objects, now=NOW)
    assert [one.text for one in found.of("selection")] == (
        [
            "the configuration's mode is observe, and the webhook changes pods in 1 namespace labelled gpu-webhook=enforce: default"
        ]
        if told
        else []
    )


async def test_exempt_namespace_with_gpu_pods_is_a_note():
    """An exemption is the operator's wish: it is reported, not complained about."""
    from tests.doctor.clusters import gpu_pod

    objects = healthy(authority())
    _label("disabled")(objects)
    objects[kinds.PODS].append(gpu_pod("mine", {"nvidia.com/mig-2g.20gb": "1"}, node="gpu-1"))
    found = await examined(objects, now=NOW, admission=admit_like_the_webhook)
    assert found.findings == []
    assert "namespace default is exempt" in found.one("selection").text
