"""Why a node gives no devices to pods, or what it would give: its state, its layout, its devices and who holds them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tessera.core.dra.slices import IMPLICIT_PREFIX
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import CORDONED, Toleration
from tessera.core.mig.known import KnownLayout
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.layouts.status import ShownRollout, shown_rollouts
from tessera.diagnosis.nodes import ORDER, Lack, ObservedNode, PodRequest, counted
from tessera.diagnosis.remedies import Holder, asks_about, holders_of, repair
from tessera.diagnosis.remedy import Remedy
from tessera.inventory.report import state_of
from tessera.protocol.mig.nodes import GpuNode

_ONE: Final = Quantity.parse("1")
_ANYWHERE: Final = Pod(tolerations=(Toleration(operator="Exists"),))
_BROKEN: Final = (Lack.PLUGIN_UNAVAILABLE, Lack.LAYOUT_FAILED, Lack.LAYOUT_PENDING, Lack.UNHEALTHY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One kind of device on a node."""

    resource: str
    lack: Lack
    reason: str
    offered: int
    in_use: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDiagnosis:
    """What there is to say about a node, the answer first."""

    name: str
    cause: str  # "changing", "closed", "no-gpu", or a `Lack`
    answer: str
    state: str
    layout: str  # where it is known from, or why it is not
    keeper: str  # the MigLayout that keeps the node's layout; empty: none
    devices: tuple[DeviceState, ...]
    rollout: ShownRollout | None
    holders: tuple[Holder, ...]
    remedies: tuple[Remedy, ...]


def diagnose_node(seen: Evidence, name: str) -> NodeDiagnosis:
    """Say why a node has no room for another pod with GPUs, or which room it has."""
    node, inventory = seen.nodes.by_name[name], seen.inventory
    devices = tuple(_devices(node))
    rollouts = shown_rollouts(
        {key: rollout for key, rollout in inventory.rollouts.items() if key == name}, ()
    )
    rollout, state, keeper = rollouts[0] if rollouts else None, state_of(node.node), inventory.keeper(name)
    cause, answer = _judge(node, state, devices, rollout)
    gpus = inventory.gpus.get(name)
    return NodeDiagnosis(
        name=name,
        cause=cause,
        answer=answer,
        state=state,
        layout=_layout(seen, name, gpus),
        keeper=keeper,
        devices=devices,
        rollout=rollout,
        holders=tuple(holders_of(seen, node.has, [name])),
        remedies=tuple(_remedies(node, cause, devices, keeper, gpus)),
    )


def _devices(node: ObservedNode) -> Iterator[DeviceState]:
    """Each kind of device that the node has, had or will have, as the next pod would find it."""
    kinds = {*node.has, *node.capacity, *node.desired}
    for resource in sorted(kind for kind in kinds if not kind.startswith(IMPLICIT_PREFIX)):
        shortage = node.lack(PodRequest(_ANYWHERE, ({resource: _ONE},)))
        offered, in_use = node.has.get(resource, 0), node.in_use(resource)
        if offered or in_use or shortage.lack in _BROKEN:
            yield DeviceState(
                resource=resource,
                lack=shortage.lack,
                reason=shortage.reason,
                offered=offered,
                in_use=in_use,
            )


def _judge(
    node: ObservedNode, state: str, devices: tuple[DeviceState, ...], rollout: ShownRollout | None
) -> tuple[str, str]:
    """The cause, in one word, and the answer: what keeps all pods away goes first, then what is broken, then what is taken."""
    name, layout = node.node.name, node.layout
    if rollout is not None:
        by = f" by {rollout.owner}" if rollout.owner else ""
        return "changing", f"node {name} is being changed{by}: {rollout.words}"
    if state != "ready":
        return "closed", f"node {name} takes no pods: it is {state}"
    broken = sorted(
        (device for device in devices if device.lack in _BROKEN), key=lambda device: ORDER[device.lack]
    )
    if broken:
        return broken[0].lack, f"node {name} does not offer all its devices: {broken[0].reason}"
    if layout is not None:
        lack = Lack.LAYOUT_FAILED if layout.state == "failed" else Lack.LAYOUT_PENDING
        reason = layout.reason or "it gives no reason"
        return lack, f"node {name} has not taken its layout: {layout.state}: {reason}"
    if not devices:
        return "no-gpu", f"node {name} offers no GPU"
    free = {
        device.resource: device.offered - device.in_use for device in devices if device.lack is Lack.NOTHING
    }
    if free:
        return Lack.NOTHING, f"node {name} has room: {counted(free)} free"
    return devices[0].lack, f"node {name} has no room: {'; '.join(device.reason for device in devices)}"


def _layout(seen: Evidence, name: str, gpus: GpuNode | None) -> str:
    if gpus is None:
        return ""
    known = seen.inventory.known(name)
    source = f"from {known.source}" if isinstance(known, KnownLayout) else f"not known: {known}"
    return f"{source}; state {gpus.state}" if gpus.state else source


def _remedies(
    node: ObservedNode, cause: str, devices: tuple[DeviceState, ...], keeper: str, gpus: GpuNode | None
) -> Iterator[Remedy]:
    name = node.node.name
    if cause == "closed" and CORDONED in node.node.taints:
        yield Remedy("change", f"node {name} takes pods again", (f"kubectl uncordon {name}",))
    elif cause == "closed":
        yield Remedy("mend", f"node {name} is ready again", (f"kubectl describe node {name}",))
    by_operator = gpus is not None and gpus.by_mig_manager
    for device in devices:
        if device.lack == cause and device.lack in _BROKEN:
            shortage = node.lack(PodRequest(_ANYWHERE, ({device.resource: _ONE},)))
            yield repair(node, shortage, 1, by_operator=by_operator)
            break
    if keeper:
        yield Remedy("wait", f"MigLayout {keeper} keeps the node's layout", (asks_about(keeper),))
