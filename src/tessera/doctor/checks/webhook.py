"""Checks of the parts that run: the webhook installed, running, reached by its Service, and whether it may follow pods.

Also of the controller and the DRA drivers.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tessera.core.admission.policy import When
from tessera.core.text import age, first_of
from tessera.diagnosis.reading import LEASE
from tessera.doctor.findings import (
    MOST_ALIKE,
    Finding,
    not_applicable,
    note,
    problem,
    short,
    shown,
    unseen,
    warning,
)
from tessera.doctor.observations import Observations
from tessera.inventory.presence import Presence, starting, unavailable_since, why_not_ready
from tessera.kube.view.lease import CONTROLLER
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import Version

# the oldest release that was tried, and the chart's kubeVersion: docs/compatibility.md
OLDEST: Final = 1, 30


def version(seen: Observations) -> Iterator[Finding]:
    if release_of(seen) < OLDEST:
        release = (seen.version or Version()).git_version or "of an unknown version"
        yield warning(f"the API server is {release}; Tessera needs {OLDEST[0]}.{OLDEST[1]} or newer")


def release_of(seen: Observations) -> tuple[int, ...]:
    """The API server's release, such as (1, 36)."""
    version = seen.version or Version()
    return tuple(int(re.sub(r"\D.*", "", part) or 0) for part in (version.major, version.minor))


def installed(seen: Observations) -> Iterator[Finding]:
    """There is a webhook configuration, and it leads to a webhook that exists."""
    names, found = seen.names, seen.configuration
    if found is None:
        missing = f"there is no MutatingWebhookConfiguration {names.configuration}: no pod is changed"
        command = (
            f"helm install tessera charts/tessera -n {names.namespace} --create-namespace "
            "--set image.repository=REGISTRY/tessera --set config.mode=observe"
        )
        others = [("device plugin", seen.plugins), ("DRA driver", seen.dra.drivers)]
        alone = " and ".join(f"the {part}" for part, there in others if there)
        if alone and seen.deployment is None:
            yield note(f"the webhook is not installed, and {alone} can do without it; {missing}", command)
        else:
            yield problem(missing, command)
        return
    if not found.webhooks:
        yield problem(
            f"MutatingWebhookConfiguration {names.configuration} has no webhook in it: no pod is changed",
            names.upgrade,
        )
    for webhook in found.webhooks or ():
        service = webhook.client_config.service
        if service is None:
            yield note(f"webhook {webhook.name} is called at {webhook.client_config.url}, not by a Service")
        elif (service.namespace, service.name) != (names.namespace, names.webhook):
            yield problem(
                f"webhook {webhook.name} leads to Service {service.namespace}/{service.name}, "
                f"and this command checks {names.namespace}/{names.webhook}",
                f"tessera doctor --tessera-namespace {service.namespace} --webhook-name {service.name}",
            )
        elif not (
            seen.deployment or seen.service or seen.answers or {"deployment", "service"} & seen.unseen.keys()
        ):
            down = "every GPU pod waits for nothing before it is created as it is"
            if webhook.failure_policy == "Fail":
                down = "under failurePolicy Fail no GPU pod can be created"
            yield problem(
                f"the webhook configuration is there, and the webhook is not: {down}",
                f"kubectl delete mutatingwebhookconfiguration {names.configuration}",
            )


def running(seen: Observations) -> Iterator[Finding]:
    namespace = seen.names.namespace
    missing = f"there is no Deployment {namespace}/{seen.names.webhook}"
    if seen.deployment is not None:
        yield from replicas(seen.deployment, seen.webhook_pods, seen, usual=3)
    elif seen.answers:
        yield note(f"{missing}, and the webhook answers: it runs outside the cluster, or under another name")
    elif seen.configuration is None and "configuration" not in seen.unseen:
        yield not_applicable("it is not installed")
    else:
        yield problem(missing, f"kubectl get deployments -n {namespace}")


def replicas(found: Workload, pods: Sequence[PodIn], seen: Observations, *, usual: int) -> Iterator[Finding]:
    """The pods of a Deployment are there and ready, or on their way; the chart makes `usual` of them."""
    name, where = found.metadata.name, f"-n {seen.names.namespace}"
    wanted, ready = found.wanted, found.status.ready_replicas
    since = unavailable_since(found)
    state = f"Deployment {name}: {ready} of {wanted} replicas are ready{f', too few {age(seen.now, since)}' if since else ''}"
    if wanted == 0:
        scale = f"kubectl scale {where} deployment/{name} --replicas={usual}"
        yield problem(f"Deployment {name} is scaled to 0", scale)
    if ready >= wanted:
        return
    present = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    unwell = [pod for pod in present if not pod.ready]
    starts = [pod.metadata.name for pod in unwell if starting(pod, seen.now)]
    if starts:
        finding = note if ready else warning
        yield finding(f"{state}, and {', '.join(starts)} start")
    finding = problem if ready == 0 else warning
    for pod in unwell:
        if pod.metadata.name not in starts:
            reason, command = why_not_ready(pod, seen.names.namespace)
            yield finding(f"{state}; pod {pod.metadata.name}: {reason}", command)
    if len(present) < wanted:
        yield finding(
            f"{state}, and {wanted - len(present)} have no pod",
            f"kubectl describe {where} deployment/{name}",
            f"kubectl get events {where} --field-selector reason=FailedCreate",
        )


def service(seen: Observations) -> Iterator[Finding]:
    """The Service selects its pods, at the port that the API server calls."""
    names, found = seen.names, seen.service
    if found is None and seen.configuration is None and "configuration" not in seen.unseen:
        yield not_applicable("no webhook is configured")
        return
    if found is None:
        missing = f"there is no Service {names.namespace}/{names.webhook}"
        if seen.answers:
            yield note(f"{missing}, and the API server reaches the webhook without it")
        else:
            yield problem(f"{missing}: the API server has nowhere to call", names.upgrade)
        return
    selector = found.spec.selector or {}
    labels = [(pod.metadata.labels or {}).items() for pod in seen.webhook_pods]
    if labels and not (selector and any(selector.items() <= one for one in labels)):
        yield problem(
            f"Service {names.webhook} selects {shown(selector)}, which no pod of the webhook has",
            f"kubectl get pods -n {names.namespace} --show-labels",
        )
    ports = {one.port for one in found.spec.ports or ()}
    for webhook in seen.webhooks:
        called = webhook.client_config.service
        port = called.port or 443 if called else None
        if called and called.name == names.webhook and port not in ports:
            yield problem(
                f"webhook {webhook.name} is called at port {port}, "
                f"and Service {names.webhook} has {', '.join(map(str, sorted(ports))) or 'none'}",
                f"kubectl get service -n {names.namespace} {names.webhook} -o yaml",
            )


def controller(seen: Observations) -> Iterator[Finding]:
    """Where requests become claims, a controller makes the templates of the claims; with `fallback.patience` it evicts pods that wait."""
    presences, patience = seen.cluster.presences, bool(seen.cluster.policy.fallback.patience)
    if patience:
        harm = "pods wait although something else is free for them (fallback.patience)"
        yield from _leading(presences.patience, harm, seen, needs_config=True)
    if seen.bridge:
        harm = "the webhook converts no request to a claim, and pods wait whose claims have no template yet"
        yield from _leading(presences.controller, harm, seen)
    elif not patience:
        yield not_applicable("the bridge is off: no request becomes a claim")
    if (seen.bridge or patience) and seen.bridge_controller is not None:
        yield from replicas(seen.bridge_controller, seen.bridge_controller_pods, seen, usual=2)


def _leading(
    found: Presence | None, harm: str, seen: Observations, *, needs_config: bool = False
) -> Iterator[Finding]:
    """A controller is at work that does what is needed; the harm is what comes of it while there is none."""
    names, deployment = seen.names, seen.bridge_controller
    if found is None:
        yield unseen(f"could not run: {LEASE}: {short(seen.unseen.get(LEASE, ''))}")
    elif not found.at_work:
        why, commands = found.words(seen.now), [found.command, names.logs(CONTROLLER)]
        if deployment is None and "bridge_controller" not in seen.unseen:
            why += f", and no Deployment {names.namespace}/{CONTROLLER}"
            commands.insert(0, f"{names.upgrade} --set controller.enabled=true")
        elif needs_config and deployment and deployment.spec.template.option("--config") is None:
            why += ": it runs without --config"
            commands.insert(0, f"{names.upgrade} --set controller.patience=true")
        yield problem(f"{why}; {harm}", *commands)


def driver(seen: Observations) -> Iterator[Finding]:
    """The DRA driver is at work on every node where it should be."""
    found = seen.cluster.presences.drivers
    if not found and not seen.dra.drivers:
        yield not_applicable("no DRA driver of Tessera is installed")
    for node, one in found.items():
        if one.starts:
            yield note(f"{one.part} starts").of("a DRA driver starts", f"node {node}")
        elif not one.at_work:
            yield problem(
                f"{one.words(seen.now)}; claims for the node's devices are neither prepared nor ended",
                one.command,
                f"kubectl get node {node} -L tessera.dev/devices",
            ).of("the DRA driver is unavailable", f"node {node}")
    for pod in seen.dra.driver_pods:
        if not (pod.spec.node_name or pod.metadata.deletion_timestamp or starting(pod, seen.now)):
            reason, command = why_not_ready(pod, pod.metadata.namespace)
            yield problem(f"pod {pod.metadata.name} of the DRA driver is not ready: {reason}", command)


def free(seen: Observations) -> Iterator[Finding]:
    """Where `full` is switched on, the webhook knows what is free."""
    names, fallback = seen.names, seen.cluster.policy.fallback
    if not fallback.full_enabled:
        yield not_applicable("fallback.when is missing: what is free does not matter")
        return
    setting = "fallback.when: full" if fallback.when is When.FULL else "fallback.full.enabled: true"
    harm = f"{setting} is set, and pods are decided about as with `missing`"
    account = seen.deployment and (seen.deployment.spec.template.spec.service_account_name or "default")
    # the chart gives the right where its own values switch it on
    repair = f"{names.upgrade} --set webhook.followPods=true"
    asked = f"kubectl auth can-i watch pods -A --as=system:serviceaccount:{names.namespace}:{account}"
    blind = [one.pod for one in seen.served if one.follows_pods is False]
    if seen.may_follow_pods is False:
        yield problem(f"{harm}: the webhook's account {account} may not list and watch pods", repair, asked)
    elif blind:
        which = first_of(blind, MOST_ALIKE)
        yield problem(f"{harm}: {which} did not get the pods from the API server", names.logs(), asked)
    elif seen.may_follow_pods is None and not any(one.follows_pods for one in seen.served):
        why = seen.unseen.get("may_follow_pods") or "neither the API server nor a replica says so"
        yield unseen(f"could not see whether the webhook may list and watch pods: {short(why)}", asked)
