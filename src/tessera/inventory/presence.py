"""The parts of Tessera that pods need: the webhook, the controller, and the DRA driver of each node. Each is at work, or unavailable: why, and since when.

Worked out here from what a cluster says of them, for `tessera why`, the doctor and the dashboard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from tessera.core.dra.device_names import node_of
from tessera.core.dra.slices import DRIVER
from tessera.core.kubernetes.node import DEVICES_LABEL, Node
from tessera.core.text import age, one_line
from tessera.kube.view.lease import CLAIMS, CONTROLLER, LAYOUTS, PATIENCE, SeenLease
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.dra import ClaimIn, SliceIn
from tessera.protocol.kubernetes.objects import seconds
from tessera.protocol.kubernetes.pod import PodIn

DRIVERS: Final = "app.kubernetes.io/component=dra-driver"  # the chart's label of the driver's pods
_STARTS: Final = 120.0  # seconds that a pod may take to be ready: its image is pulled, its view is listed
_ON_ITS_WAY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})  # what the kubelet calls it
_NO_IMAGE: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"})


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether a part is at work."""

    part: str  # tessera controller
    unavailable: str = ""  # why it is; empty: it is at work
    since: float | None = None  # Unix time; None: that is not known
    remedy: str = ""  # what would help
    command: str = ""  # what to type to see more
    starts: bool = False  # it is on its way

    @property
    def at_work(self) -> bool:
        return not self.unavailable

    def words(self, now: float) -> str:
        """That it is unavailable, since when and why."""
        if self.since is None:
            return f"{self.part} is unavailable: {self.unavailable}"
        at = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.part} has been unavailable {age(now, self.since)} (since {at}): {self.unavailable}"


@dataclass(frozen=True, slots=True)
class Presences:
    """Every part. None: whether it is at work is not known, or does not matter."""

    webhook: Presence | None = None
    controller: Presence | None = None
    drivers: Mapping[str, Presence] = field(default_factory=dict)  # by node, wherever one should be
    patience: Presence | None = None  # the controller, as who evicts pods that wait for long


def webhook_of(found: Workload) -> Presence:
    """The webhook, by its Deployment."""
    name, part = f"{found.metadata.namespace}/{found.metadata.name}", "the webhook"
    if found.status.ready_replicas:
        return Presence(part)
    why = f"no replica of Deployment {name} is ready" if found.wanted else f"Deployment {name} is scaled to 0"
    command = f"tessera doctor --check running --tessera-namespace {found.metadata.namespace} --webhook-name {found.metadata.name}"
    return Presence(part, why, unavailable_since(found), "the webhook runs again", command)


def unavailable_since(found: Workload) -> float | None:
    """Since when a Deployment has too few ready replicas; None where it has enough, or does not say."""
    down = (one for one in found.status.conditions or () if (one.type, one.status) == ("Available", "False"))
    return next((one.since for one in down), None)


# what the controller does not do where its Lease does not name a reconciler, and what would help
_NOT_DONE: Final = {
    CLAIMS: ("makes no claims", "the cluster serves resource.k8s.io/v1, and the controller may read it"),
    PATIENCE: (
        "evicts no pods that wait",
        "it has the webhook's configuration, and its rights (with the chart: config.fallback.patience)",
    ),
    LAYOUTS: (
        "keeps no layouts",
        "it runs with --layouts, and has its rights (with the chart: layouts.enabled)",
    ),
}
_VALUES: Final = {LAYOUTS: "values controller.enabled and layouts.enabled: true"}  # of the chart


def controller_of(seen: SeenLease, namespace: str, reconciler: str = CLAIMS) -> Presence:
    """The controller, by its Lease in a namespace; it is unavailable if it does not run a reconciler, too."""
    part, name, lease = "tessera controller", f"{namespace}/{CONTROLLER}", seen.lease
    command = f"kubectl get deployments,pods -n {namespace} -l app={CONTROLLER}"
    if seen.runs(reconciler):
        return Presence(part)
    if seen.at_work:
        what, remedy = _NOT_DONE[reconciler]
        return Presence(part, f"its Lease {name} says that it {what}", None, remedy, command)
    if lease is None:
        values = _VALUES.get(reconciler, "value controller.enabled: true")
        remedy = f"{part} runs (the chart's {values})"
        return Presence(part, f"there is no Lease {name}", None, remedy, command)
    why = f"has not been renewed by {lease.holder}" if lease.holder else "has no holder"
    return Presence(part, f"its Lease {name} {why}", seconds(lease.renewed), f"{part} runs again", command)


def drivers_of(
    nodes: Iterable[Node],
    slices: Iterable[SliceIn] | None,
    claims: Iterable[ClaimIn],
    pods: Sequence[PodIn] | None,
    *,
    installed: bool,
    now: float,
) -> dict[str, Presence]:
    """The DRA driver by node, wherever one should be: the node has its pod, its ResourceSlices or its label, or claims hold its devices.

    `slices`, `pods`: None where they could not be read. `installed`: the driver runs as pods, so that a node without one has none. So
    does the node's label, by which the chart chooses: the kubelet keeps the slices of a driver that is gone for 30 seconds.
    """
    offering = None if slices is None else {one.spec.node_name for one in slices if one.spec.driver == DRIVER}
    held = {node_of(r.pool) for one in claims for r in one.status.results if r.driver == DRIVER}
    by_node: dict[str, list[PodIn]] = {}
    for pod in pods or ():
        if not pod.metadata.deletion_timestamp:
            by_node.setdefault(pod.spec.node_name, []).append(pod)
    found = {}
    for node in nodes:
        own, offers = by_node.get(node.name, []), offering is None or node.name in offering
        labelled, holds = node.labels.get(DEVICES_LABEL) == "dra", node.name in held
        if not (own or holds or labelled or node.name in (offering or ())):
            continue
        part, ready = f"the DRA driver of node {node.name}", any(pod.ready for pod in own)
        if own and not ready:
            found[node.name] = _unready(part, own[0], now)
        elif (offers and not (installed or (labelled and pods is not None))) or (
            ready and (offers or not holds)
        ):
            found[node.name] = Presence(part)
        else:
            why = "it has no ResourceSlices" if ready or pods is None else "no pod of it runs there"
            why += ", and claims hold its devices" if holds else ""
            command = f"kubectl get pods -A -l {DRIVERS} --field-selector spec.nodeName={node.name}"
            found[node.name] = Presence(part, why, None, f"{part} runs again", command)
    return found


def _unready(part: str, pod: PodIn, now: float) -> Presence:
    why, command = why_not_ready(pod, pod.metadata.namespace)
    reason, since = f"pod {pod.metadata.name}: {why}", pod.status.condition("Ready").since
    return Presence(part, reason, since, f"{part} runs again", command, starting(pod, now))


# Pods of a part


def starting(pod: PodIn, now: float) -> bool:
    """Whether a pod is on its way, as in every rollout: it is young, and nothing has gone wrong with it."""
    created, scheduled = pod.metadata.created, pod.status.condition("PodScheduled")
    if created is None or now - created >= _STARTS or scheduled.status == "False":
        return False
    return all(
        not (one.state.terminated or one.last_state.terminated)
        and (one.state.waiting is None or one.state.waiting.reason in _ON_ITS_WAY)
        for one in pod.status.container_statuses or ()
    )


def why_not_ready(pod: PodIn, namespace: str) -> tuple[str, str]:
    """Why a pod is not ready, and what to type to see more."""
    name = f"-n {namespace} {pod.metadata.name}"
    describe, logs = f"kubectl describe pod {name}", f"kubectl logs {name}"
    scheduled = pod.status.condition("PodScheduled")
    if scheduled.status == "False":
        return f"not scheduled: {scheduled.message}", describe
    for status in pod.status.container_statuses or ():
        waiting, last = status.state.waiting, status.last_state.terminated
        if waiting and waiting.reason in _NO_IMAGE:
            return f"{waiting.reason}: {one_line(waiting.message)}", describe
        if waiting and waiting.reason == "CrashLoopBackOff":
            ended = f", last exit code {last.exit_code} ({last.reason})" if last else ""
            return f"CrashLoopBackOff{ended}", f"{logs} --previous"
        if waiting:
            return f"{waiting.reason} {one_line(waiting.message)}".strip(), describe
        if status.state.terminated:
            return f"ended with exit code {status.state.terminated.exit_code}", logs
    return "running, not ready: the log says what it waits for", logs
