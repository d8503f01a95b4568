"""Checks of MIG layouts: allocatable is what they say, whichever program cuts the cards."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import DEVICES_LABEL, Node
from tessera.core.mig.layout import NodeLayout, Strategy, count_devices
from tessera.core.resources import MIG_PREFIX, is_share
from tessera.core.text import age, counts_in_words
from tessera.doctor.findings import Finding, not_applicable, problem, short, unseen, warning
from tessera.doctor.observations import Observations
from tessera.inventory.known import desired_layout
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import GpuNode
from tessera.protocol.mig.rollouts import ROLLOUT, SeenRollout

# Seconds. mig-manager stops the pods that use the driver, cuts, and starts them again: a minute or two, with a reboot some more.
_LONG: Final = 900.0
_PHASE_OVER: Final = 60.0  # seconds; whoever is at work moves on when the time of a phase is over


def layouts(seen: Observations) -> Iterator[Finding]:
    inventory = seen.cluster.inventory
    known, manager = inventory.gpus, inventory.mig_manager
    found = [node for node in seen.nodes if node.name in known and _has_layout(known[node.name])]
    if not found:
        yield not_applicable(
            f"no node has the annotation {mig.RUNAI_CONFIG} or the label {mig.PARTED_CONFIG}"
        )
    if manager is not None and manager.error:
        yield unseen(f"could not compare with mig-manager's configurations: {short(manager.error)}")
    for node in found:
        gpus = known[node.name]
        if result := _configured(node, gpus, seen) if gpus.by_mig_manager else _layout(node, gpus, seen):
            finding, kind = result
            yield finding.of(kind, f"node {node.name}")
    for name, rollout in sorted(seen.cluster.inventory.rollouts.items()):
        if stuck := _stuck(name, rollout, seen.now):
            yield stuck.of("a rollout does not go on", f"node {name}")


def _stuck(name: str, rollout: SeenRollout, now: float) -> Finding | None:
    """What is wrong with a rollout on a node whose time is over, or whose record cannot be read."""
    remove, uncordon = f"kubectl annotate node {name} {ROLLOUT}-", f"kubectl uncordon {name}"
    if isinstance(rollout, str):
        return problem(f"node {name}: {short(rollout)}", remove, uncordon)
    if now < rollout.until + _PHASE_OVER:
        return None
    text = f"node {name}: {short(str(rollout.owner))} does not go on with its rollout (phase {rollout.phase})"
    if rollout.owner.uid:
        return warning(f"{text}: is the controller at work?", "kubectl get miglayouts")
    return warning(text, remove, *([uncordon] if rollout.uncordons else []))


def _has_layout(gpus: GpuNode) -> bool:
    return bool(gpus.config) if gpus.by_mig_manager else gpus.layout is not None


# Where mig-manager cuts the cards


def _configured(node: Node, gpus: GpuNode, seen: Observations) -> tuple[Finding, str] | None:
    """What is wrong with the configuration that mig-manager is to make on a node, and of which kind that is."""
    name, config, inventory = node.name, gpus.config, seen.cluster.inventory
    manager = inventory.mig_manager
    pods = f"kubectl get pods -A -l app=nvidia-mig-manager --field-selector spec.nodeName={name}"
    relabel = f"kubectl label --overwrite node {name} {mig.PARTED_CONFIG}=…"
    if manager is not None and manager.document is not None and config not in manager.document.configs:
        text = f'node {name}: its label {mig.PARTED_CONFIG} says "{short(config)}", and {manager} has no such configuration'
        get = f"kubectl get configmap -n {manager.namespace} {manager.name} -o yaml"
        return problem(text, get, relabel), "the label names a configuration that mig-manager does not have"
    if gpus.state == "failed":
        text = f"node {name}: mig-manager could not make {config} (state failed); its log says why"
        again = f"{relabel}   # it acts on a change of the label only: to try again, to another one and back"
        return problem(text, pods, again), "mig-manager could not make the configuration"
    if gpus.is_changing:
        since = inventory.changing_since.get(name)
        if since is not None and seen.now - since < _LONG:
            return None
        how_long = "" if since is None else f", {age(seen.now, since)} by now"
        text = f"node {name}: mig-manager is making {config} (state {gpus.state}{how_long})"
        return warning(text, pods), "mig-manager is making a configuration"
    if not gpus.state:
        text = f"node {name}: its label {mig.PARTED_CONFIG} says {config}, and no mig-manager says what became of it"
        return problem(text, pods), "no mig-manager says what became of the configuration"
    if gpus.layout is not None:
        text = (
            f"node {name}: nothing there reads its annotation {mig.RUNAI_CONFIG}: mig-manager cuts its cards"
        )
        remove = f"kubectl annotate node {name} {mig.RUNAI_CONFIG}-"
        return warning(text, remove), "nothing reads the annotation with a MIG layout"
    desired, has = desired_layout(gpus, manager), dict(gpus.offered)
    if not isinstance(desired, NodeLayout) or any(map(is_share, has)):
        return None
    try:
        wanted = {resource: count for resource, count in desired.resources(gpus.strategy).items() if count}
    except InvalidInput:
        return None
    if wanted == has or name in seen.dra.by_node or is_served_unseen(node, seen):
        return None
    text = f"node {name}: {config} makes {_counted(wanted)}, and its capacity has {_counted(has)}"
    plugin = (
        f"kubectl get pods -A -l app=nvidia-device-plugin-daemonset --field-selector spec.nodeName={name}"
    )
    capacity = f"kubectl get node {name} -o jsonpath='{{.status.capacity}}'"
    return problem(text, capacity, plugin), "the capacity is not what the configuration makes"


# Where a device plugin follows the annotation


def _layout(node: Node, gpus: GpuNode, seen: Observations) -> tuple[Finding, str] | None:
    """What is wrong with a node's layout, and of which kind that is."""
    name, reason = node.name, short(gpus.reason)
    pods = f"kubectl get pods -A --field-selector spec.nodeName={name}"
    if gpus.state == "failed":
        text = f"node {name}: its MIG layout was refused, the last good one holds: {reason or 'it gives no reason'}"
        annotate = f"kubectl annotate --overwrite node {name} {mig.RUNAI_CONFIG}=…"
        return problem(text, f"tessera mig validate --cluster {name}", annotate), "the MIG layout was refused"
    if gpus.state == "pending":
        text = f"node {name}: its MIG layout waits for devices in use: {reason}"
        return warning(text, pods), "the MIG layout waits for devices in use"
    if not gpus.state:
        kind = "no device plugin says what became of the MIG layout"
        text = (
            f"node {name} has a MIG layout ({mig.RUNAI_CONFIG}), and no device plugin says what became of it: "
            "none runs there, or not one that follows the annotation"
        )
        return problem(text, pods), kind
    try:
        wanted = _wanted(gpus)
    except InvalidInput as error:
        text = f"node {name}: its MIG layout cannot be read here, although its state is success: {short(str(error))}"
        return warning(text), "the MIG layout cannot be read here"
    offered = Counter(allocatable_of(node)) + seen.dra.offered(name)
    has = {resource: count for resource, count in offered.items() if resource.startswith(MIG_PREFIX)}
    if wanted is None or wanted == has or is_served_unseen(node, seen):
        return None
    text = f"node {name}: its layout makes {_counted(wanted)}, and its allocatable has {_counted(has)}"
    allocatable = f"kubectl get node {name} -o jsonpath='{{.status.allocatable}}'"
    return problem(text, allocatable, pods), "the allocatable is not what the MIG layout makes"


def _wanted(gpus: GpuNode) -> Mapping[str, int] | None:
    """The MIG devices that a layout makes, counted; None where that depends on more than the node says."""
    entries = mig.read(gpus.layout or "", mig.RUNAI_CONFIG).select()
    if gpus.strategy is not Strategy.MIXED or any(entry.device_filter for entry in entries):
        return None
    if gpus.cards is None and any(entry.cards is None for entry in entries):
        return None
    return dict(count_devices(entries, gpus.cards or 0))


def is_served_unseen(node: Node, seen: Observations) -> bool:
    """Whether a DRA driver serves the node, and its ResourceSlices could not be read."""
    return "resourceslices" in seen.unseen and node.labels.get(DEVICES_LABEL) == "dra"


def allocatable_of(node: Node) -> dict[str, int]:
    return {name: int(amount.value) for name, amount in node.allocatable.items()}


def _counted(counts: Mapping[str, int]) -> str:
    return counts_in_words(sorted(counts.items())) or "no MIG device"
