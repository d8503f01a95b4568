"""Checks of the calls: a pod is tried, what is sent, what an outage does, what the webhook is configured to do."""

import re
from collections.abc import Iterator
from typing import Final

from tessera.core.admission.decision import EXEMPT_LABEL
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION
from tessera.core.admission.policy import DRA_ANNOTATION, Dra, Mode
from tessera.core.errors import InvalidInput
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU
from tessera.core.text import first_of, number_of
from tessera.doctor.findings import Finding, not_applicable, note, problem, short, shown, unseen, warning
from tessera.doctor.observations import Observations
from tessera.kube.view.lease import CONTROLLER
from tessera.kube.view.ticket_keys import SECRET
from tessera.protocol.configuration import webhook as config
from tessera.protocol.kubernetes.objects import LabelSelectorIn
from tessera.protocol.kubernetes.webhook import Webhook

# seconds; every GPU pod's creation waits that long while the webhook does not answer
_LONGEST_TIMEOUT: Final = 10
_OWN_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"  # the API server sets it on every namespace
_MEANT_DISABLED: Final = frozenset({"disabled", "disable", "false", "off", "no"})

# What the API server says when it could not call a webhook → what that means. First match wins.
_CALL_FAILURES: Final = (
    (r"x509: certificate signed by unknown authority|certificate is not trusted",
     "the API server does not trust the webhook's certificate: the caBundle is not that of its authority", "certs"),
    (r"x509: certificate (has expired|is not yet valid)", "the webhook's certificate is not valid now", "certs"),
    (r"x509: .*(valid for|not valid for any names|doesn't contain any IP)",
     "the webhook's certificate is for another name than the one it is called by", "certs"),
    (r"no endpoints available|no service port|could not find the requested resource",
     "the webhook's Service leads to no ready pod", "pods"),
    (r"connection refused", "no process listens where the webhook's Service leads", "pods"),
    (r"context deadline exceeded|i/o timeout|Client\.Timeout|no route to host",
     "the webhook does not answer in time: does a network policy or a firewall keep the API server away from its port?", "network"),
    (r"tls:|EOF|remote error", "the TLS handshake with the webhook fails", "certs"),
)  # fmt: skip


def trial(seen: Observations) -> Iterator[Finding]:
    names, found = seen.names, seen.trial
    where = f"in namespace {names.try_namespace}"
    if found is not None and found.observed:
        yield note(f"the webhook observes {where}: it reports what it would do, and changes no pod")
    if found is None or seen.answers:
        return
    webhooks = [webhook.name for webhook in seen.webhooks]
    failed = re.search(r'failed calling webhook "([^"]+)"', found.message)
    if failed and (not webhooks or failed[1] in webhooks):
        yield problem(*_explain_call(found.message, seen))
    elif failed:
        other = f"another webhook, {failed[1]}, fails: {short(found.message)}"
        yield unseen(f"a pod could not be tried {where}: {other}")
    elif not webhooks and "configuration" not in seen.unseen:
        yield not_applicable("no webhook is configured, so a pod cannot reach it")
    elif "Limit must be set" in found.message or not found.message:
        yield problem(
            f"a pod that asks for a GPU is not changed {where}: the API server does not call the webhook "
            "for it, or cannot and ignores that (failurePolicy Ignore)",
            f"kubectl get namespace {names.try_namespace} --show-labels",
            names.logs(),
            "kubectl get --raw /metrics | grep apiserver_admission_webhook_fail_open_count",
        )
    elif "denied the request" in found.message and any(name in found.message for name in webhooks):
        yield problem(f"the webhook refuses a pod that asks for one GPU: {short(found.message)}")
    else:
        text = f"a pod could not be tried {where}: {short(found.message)}"
        yield unseen(text, "tessera doctor --try-namespace NAMESPACE")


def selection(seen: Observations) -> Iterator[Finding]:
    if not seen.webhooks:
        yield not_applicable("no webhook is configured")
    for webhook in seen.webhooks:
        yield from _rules(webhook, seen)
        if not _is_for_workloads(webhook, seen):
            yield from _conditions(webhook, seen)
        if webhook.side_effects not in ("None", "NoneOnDryRun"):
            yield problem(f"{webhook.name}: sideEffects is {webhook.side_effects}: every dry run is refused")
        if webhook.reinvocation_policy != "IfNeeded":
            yield warning(
                f"{webhook.name}: reinvocationPolicy is {webhook.reinvocation_policy}: "
                "the webhook does not see what other webhooks add later"
            )
    label, value = EXEMPT_LABEL
    with_gpus = {use.namespace for use in seen.cluster.inventory.pods}
    for namespace in seen.namespaces:
        found = namespace.labels.get(label)
        if found is not None and found != value and found.lower() in _MEANT_DISABLED:
            yield warning(
                f"namespace {namespace.name} is labelled {label}={found}, which means nothing; {value} was meant?",
                f"kubectl label --overwrite namespace {namespace.name} {label}={value}",
            )
        if found == value and namespace.name in with_gpus:
            yield note(f"namespace {namespace.name} is exempt ({label}={value}), and GPU pods run in it")
    acting = [one.name for one in seen.namespaces if one.labels.get(label) == Mode.ENFORCE.value]
    if acting and seen.webhooks and seen.cluster.policy.mode is Mode.OBSERVE:
        yield note(
            f"the configuration's mode is observe, and the webhook changes pods in {number_of(len(acting), 'namespace')} labelled "
            f"{label}={Mode.ENFORCE.value}: {first_of(acting, 3)}"
        )


def policy(seen: Observations) -> Iterator[Finding]:
    if not seen.webhooks:
        yield not_applicable("no webhook is configured")
    # what holds for the webhook of pods and for that of workloads is reported once
    yield from dict.fromkeys(finding for webhook in seen.webhooks for finding in _outage(webhook, seen))


def _outage(webhook: Webhook, seen: Observations) -> Iterator[Finding]:
    names = seen.names
    fails = webhook.failure_policy == "Fail"
    own = names.namespace in _left_out(webhook, _OWN_NAMESPACE_LABEL)
    if fails and not own and not webhook.match_conditions:
        yield problem(
            "failurePolicy is Fail, and the webhook's own namespace is not left out: once all replicas are "
            "down, none can be created again",
            f"kubectl label namespace {names.namespace} {EXEMPT_LABEL[0]}={EXEMPT_LABEL[1]}",
        )
    if fails and seen.deployment is not None and seen.deployment.wanted < 2:
        yield warning(
            "failurePolicy is Fail with a single replica: while it restarts, no GPU pod can be created",
            f"kubectl scale -n {names.namespace} deployment/{names.webhook} --replicas=3",
        )
    if webhook.timeout_seconds > _LONGEST_TIMEOUT:
        yield warning(
            f"timeoutSeconds is {webhook.timeout_seconds}: so long every GPU pod waits while the webhook does not answer; "
            "answers take milliseconds, 5 is plenty"
        )
    if not fails:
        yield note("failurePolicy is Ignore: while the webhook is down, GPU pods are created as they are")


def configuration(seen: Observations) -> Iterator[Finding]:
    """The ConfigMap holds a configuration without mistakes, and pods with its resources are sent."""
    name = seen.deployment.config_map() if seen.deployment else None
    if seen.config is None:
        if name is None:
            yield not_applicable("there is no Deployment with a ConfigMap")
        else:
            yield problem(
                f"ConfigMap {name} has no key config.yaml",
                f"kubectl get configmap -n {seen.names.namespace} {name} -o yaml",
            )
        return
    try:
        parsed = config.parse(seen.config, "config.yaml")
    except InvalidInput as error:
        for one in error.errors:
            yield problem(
                f"the configuration has a mistake, the last good one stays in use: {one}",
                f"kubectl edit configmap -n {seen.names.namespace} {name or seen.names.webhook}",
            )
        return
    rules = (parsed.policy.injection.default, *parsed.policy.injection.by_namespace.values())
    resources = {name for by_type in rules for by_resource in by_type.values() for name in by_resource}
    for webhook in seen.webhooks:
        expressions = " ".join(one.expression for one in webhook.match_conditions or ())
        for name in sorted(resources) if expressions else ():
            if name != WHOLE_GPU and not name.startswith(MIG_PREFIX) and name not in expressions:
                yield warning(
                    f"injection is configured for {name}, and {webhook.name} is not called for pods that ask for it "
                    "without the annotation: their missing limits are not added",
                    "helm upgrade … --set webhook.extraResources={" + name + "}",
                )


def tickets(seen: Observations) -> Iterator[Finding]:
    """Where requests become claims, there is the key that webhook and controller share."""
    chosen = {one.annotations.get(DRA_ANNOTATION) for one in seen.namespaces}
    if Dra.FIRST_AVAILABLE.value not in {seen.cluster.policy.fallback.dra.value, *chosen}:
        yield not_applicable("the bridge is off: no request becomes a claim")
        return
    names, secret = seen.names, f"Secret {seen.names.namespace}/{SECRET}"
    if why := seen.unseen.get("ticket_key"):
        yield unseen(f"could not run: {secret}: {short(why)}")
    elif seen.ticket_key is None or seen.ticket_key.current is None:
        yield problem(
            f"{secret}, the key of tickets, {'is not there' if seen.ticket_key is None else 'holds no key'}: the webhook "
            "converts no request to a claim; the leader of tessera controller makes the key within 30 seconds",
            names.logs(CONTROLLER),
            f"kubectl get lease -n {names.namespace} {CONTROLLER}",
        )


def _rules(webhook: Webhook, seen: Observations) -> Iterator[Finding]:
    repair = seen.names.upgrade
    if not _is_called_for_pods(webhook) and not _is_for_workloads(webhook, seen):
        yield problem(f"{webhook.name}: no rule for the creation of pods: it is never called", repair)
    label, value = EXEMPT_LABEL
    if value not in _left_out(webhook, label):
        yield warning(f"{webhook.name}: namespaces labelled {label}={value} are not exempt", repair)
    for namespace in ("kube-system", seen.names.namespace):
        if namespace not in _left_out(webhook, _OWN_NAMESPACE_LABEL):
            yield warning(f"{webhook.name}: namespace {namespace} is not left out", repair)
    if webhook.namespace_selector and (labels := webhook.namespace_selector.match_labels):
        yield note(f"{webhook.name}: the API server calls it only for namespaces labelled {shown(labels)}")
    selected = webhook.object_selector
    if selected and (selected.match_labels or selected.match_expressions):
        yield note(f"{webhook.name}: an objectSelector leaves some pods out")


def _is_called_for_pods(webhook: Webhook) -> bool:
    return any(
        {"CREATE", "*"} & {*(rule.operations or ())} and {"pods", "*", "*/*"} & {*(rule.resources or ())}
        for rule in webhook.rules or ()
    )


def _is_for_workloads(webhook: Webhook, seen: Observations) -> bool:
    """Whether a webhook is the one for pod templates of workloads, beside the one for pods."""
    called = map(_is_called_for_pods, seen.webhooks)
    return bool(webhook.rules) and not _is_called_for_pods(webhook) and any(called)


def _conditions(webhook: Webhook, seen: Observations) -> Iterator[Finding]:
    expressions = " ".join(one.expression for one in webhook.match_conditions or ())
    if not expressions:
        yield warning(
            f"{webhook.name}: no matchConditions: every pod of the cluster waits for the webhook, not only GPU pods",
            seen.names.upgrade,
        )
        return
    wanted = {MIG_PREFIX: "MIG devices", WHOLE_GPU: "whole GPUs", GPU_TYPE_ANNOTATION: "injection"}
    for text, what in wanted.items():
        if text not in expressions:
            yield problem(f"{webhook.name}: matchConditions do not mention {text}: no pod is sent for {what}")


def _explain_call(message: str, seen: Observations) -> tuple[str, ...]:
    where = f"-n {seen.names.namespace}"
    pods = f"kubectl get pods {where} -l app={seen.names.webhook} -o wide"
    commands = {
        "certs": (f"tessera certs show {where}", seen.names.logs()),
        "pods": (pods,),
        "network": (f"kubectl get networkpolicy {where}", pods),
    }
    for pattern, meaning, kind in _CALL_FAILURES:
        if re.search(pattern, message):
            return (f"{meaning} ({short(message)})", *commands[kind])
    return (f"the API server cannot call the webhook: {short(message)}", *commands["pods"])


def _left_out(webhook: Webhook, label: str) -> set[str]:
    """The values of a label with which namespaces are left out."""
    expressions = (webhook.namespace_selector or LabelSelectorIn()).match_expressions or ()
    found = (one for one in expressions if one.key == label and one.operator == "NotIn")
    return {value for one in found for value in one.values or ()}
