"""Checks of nodes: the device plugin is registered, and allocatable is what layouts and lists of devices say."""

from collections import Counter
from collections.abc import Iterator, Mapping

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import Strategy
from tessera.doctor.checks.webhook import starting, why_not_ready
from tessera.doctor.evidence import Evidence
from tessera.doctor.findings import Finding, not_applicable, note, problem, short, unseen, warning
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.objects import NodeIn, node_of
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import gpu_node

REASON = "nvidia.com/mig.config.reason"  # the annotation in which the plugin says why


def plugin(seen: Evidence) -> Iterator[Finding]:
    """Where the device plugin is installed it runs, and its resources are on its nodes."""
    if not seen.plugins:
        yield not_applicable("no device plugin of Tessera is installed")
    elif why := seen.unseen.get("plugin_configs"):
        yield unseen(f"could not compare with its configuration: {short(why)}")
    for one in seen.plugins:
        wanted, ready = one.status.desired_number_scheduled or 0, one.status.number_ready
        if wanted == 0:
            yield warning(
                f"DaemonSet {one.metadata.name} has no node to run on: its nodeSelector and tolerations fit none",
                f"kubectl describe daemonset -n {one.metadata.namespace} {one.metadata.name}",
            )
        elif ready < wanted:
            yield from _unready(one, seen)
        text = seen.plugin_configs.get(one.metadata.name)
        if text is not None:
            yield from _registered(one, text, seen)


def _unready(one: Workload, seen: Evidence) -> Iterator[Finding]:
    wanted, ready = one.status.desired_number_scheduled or 0, one.status.number_ready
    pods = [pod for pod in _pods_of(one, seen) if not (pod.ready or pod.metadata.deletion_timestamp)]
    for pod in pods:
        if starting(pod, seen.now):
            yield note(f"{one.metadata.name}: on node {pod.spec.node_name} it starts")
            continue
        reason, command = why_not_ready(pod, pod.metadata.namespace)
        yield problem(
            f"{one.metadata.name}: {ready} of {wanted} are registered with their kubelet; on node "
            f"{pod.spec.node_name or '(none)'}: {reason}",
            command,
        )
    if not pods:
        yield problem(
            f"{one.metadata.name}: {ready} of {wanted} are registered with their kubelet, and the others have no pod",
            f"kubectl describe daemonset -n {one.metadata.namespace} {one.metadata.name}",
        )


def _registered(one: Workload, text: str, seen: Evidence) -> Iterator[Finding]:
    """What the configuration lists for every node is in the node's allocatable."""
    try:
        devices = Counter(device.resource for device in device_config.parse(text, "devices.yaml").static)
    except InvalidInput as error:
        yield problem(
            f"{one.metadata.name}: its configuration has a mistake: {short(str(error))}",
            f"kubectl edit configmap -n {one.metadata.namespace} {one.config_map()}",
        )
        return
    by_name = {node.metadata.name: node for node in seen.nodes}
    for pod in _pods_of(one, seen):
        node = by_name.get(pod.spec.node_name)
        if node is None or not pod.ready:
            continue
        logs = f"kubectl logs -n {pod.metadata.namespace} {pod.metadata.name}"
        for resource, count in devices.items():
            has = _allocatable(node).get(resource)
            if has is None:
                yield problem(
                    f"node {node.metadata.name} has no {resource}, which its device plugin lists: "
                    "the kubelet does not know it",
                    logs,
                )
            elif has < count:
                yield warning(f"node {node.metadata.name}: {has} of {count} {resource} are healthy", logs)


def layouts(seen: Evidence) -> Iterator[Finding]:
    """Nodes offer what their annotations ask for."""
    if not any(mig.RUNAI_CONFIG in (node.metadata.annotations or {}) for node in seen.nodes):
        yield not_applicable(f"no node has the annotation {mig.RUNAI_CONFIG}")
    for node in seen.nodes:
        text = (node.metadata.annotations or {}).get(mig.RUNAI_CONFIG)
        if text is None:
            continue
        name = node.metadata.name
        state = (node.metadata.labels or {}).get(mig.CONFIG_STATE)
        reason = (node.metadata.annotations or {}).get(REASON, "")
        if state == "failed":
            yield problem(
                f"node {name}: its MIG layout was refused, the last good one holds: {short(reason) or 'no reason told'}",
                f"tessera mig validate --cluster {name}",
                f"kubectl annotate --overwrite node {name} {mig.RUNAI_CONFIG}=…",
            )
        elif state == "pending":
            yield warning(
                f"node {name}: its MIG layout waits for devices in use: {short(reason)}",
                f"kubectl get pods -A --field-selector spec.nodeName={name}",
            )
        elif state is None:
            yield problem(
                f"node {name} has a MIG layout ({mig.RUNAI_CONFIG}), and no device plugin says what became of it: "
                "none runs there, or not one that follows the annotation",
                f"kubectl get pods -A --field-selector spec.nodeName={name}",
            )
        else:
            yield from _compared(node, text, seen)


def _compared(node: NodeIn, text: str, seen: Evidence) -> Iterator[Finding]:
    name = node.metadata.name
    try:
        wanted = _wanted(node, text)
    except InvalidInput as error:
        yield warning(
            f"node {name}: its MIG layout cannot be read here, although its state is success: {short(str(error))}"
        )
        return
    has = {
        resource: count
        for resource, count in (Counter(_allocatable(node)) + seen.dra.offered(name)).items()
        if resource.startswith("nvidia.com/mig-") and count
    }
    if wanted is not None and wanted != has and not _served_unseen(node, seen):
        yield problem(
            f"node {name}: its layout makes {_counted(wanted)}, and its allocatable has {_counted(has)}",
            f"kubectl get node {name} -o jsonpath='{{.status.allocatable}}'",
            f"kubectl get pods -A --field-selector spec.nodeName={name}",
        )


def _wanted(node: NodeIn, text: str) -> Mapping[str, int] | None:
    """The MIG devices that a layout makes, counted; None where that depends on more than the node says."""
    entries = mig.read(text, mig.RUNAI_CONFIG).select()
    gpus = gpu_node(node)
    if gpus.strategy is not Strategy.MIXED or any(entry.device_filter for entry in entries):
        return None
    counted: Counter[str] = Counter()
    for entry in entries:
        cards = gpus.cards if entry.cards is None else len(entry.cards)
        if cards is None:
            return None
        for wish in entry.wishes:
            counted[wish.profile.resource] += cards
    return dict(counted)


def silent(seen: Evidence) -> Iterator[Finding]:
    """Nodes that offer nothing although they say that they have GPUs."""
    if not any(_says_it_has_gpus(node) for node in seen.nodes):
        yield not_applicable("no node is labelled nvidia.com/gpu.present=true")
    for node in seen.nodes:
        offers = any(name.startswith("nvidia.com/") and count for name, count in _allocatable(node).items())
        by_dra = node.metadata.name in seen.dra.nodes() or _served_unseen(node, seen)
        if _says_it_has_gpus(node) and not (offers or by_dra):
            yield warning(
                f"node {node.metadata.name} is labelled nvidia.com/gpu.present=true and offers no GPU: "
                "no device plugin and no DRA driver is registered there, or all its devices are unhealthy",
                f"kubectl describe node {node.metadata.name}",
            )


def _served_unseen(node: NodeIn, seen: Evidence) -> bool:
    """Whether a DRA driver serves the node, and its ResourceSlices could not be looked at."""
    return "slices" in seen.unseen and (node.metadata.labels or {}).get("tessera.dev/devices") == "dra"


def _says_it_has_gpus(node: NodeIn) -> bool:
    return (node.metadata.labels or {}).get("nvidia.com/gpu.present") == "true"


def _pods_of(one: Workload, seen: Evidence) -> list[PodIn]:
    selector = one.spec.selector.match_labels or {}
    return [pod for pod in seen.plugin_pods if selector.items() <= (pod.metadata.labels or {}).items()]


def _allocatable(node: NodeIn) -> dict[str, int]:
    return {name: int(amount.value) for name, amount in node_of(node).allocatable.items()}


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {resource}" for resource, count in sorted(counts.items())) or "no MIG device"
