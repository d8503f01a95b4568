"""How nodes stand to a MigLayout in mode Auto: which may be re-cut, which are left alone, and what those being changed will have. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from tessera.controller.layouts.plan import SeenNode, State
from tessera.protocol.mig.documents import CONFIG_STATE
from tessera.protocol.mig.rollouts import Phase, Result

REST_FAILED: Final = 3600.0  # seconds in which a node is left alone that did not take a layout
REST: Final = 60.0  # the same of a node that was in use, dead, or changed by hand


def standing(
    node: SeenNode, uid: str, now: float, told: Mapping[str, str], unknown: str = "", put_off: str = ""
) -> tuple[State, str]:
    """How a node stands to its MigLayout: current where the autopilot may re-cut it; else why it is left alone."""
    record, end = node.record, node.end
    if node.unreadable:
        return State.FAILED, f"{node.unreadable}; remove the annotation, and uncordon the node yourself"
    if record is not None:
        if record.owner.uid == uid:
            return State.UPDATING, told.get(node.name, str(record.phase))
        return State.PENDING, record.say_whose()
    if end is not None:  # whichever MigLayout's it was: the node is the same
        if end.result is Result.FAILED and end.is_within(REST_FAILED, now):
            return State.FAILED, f"{end.reason}; left alone for {REST_FAILED / 60:g} minutes"
        if end.result is not Result.NOT_BEGUN and end.is_within(REST, now):
            return State.PENDING, f"{end.result}: {end.reason}; left alone for {REST:g} s"
    if not node.node.status.ready:
        return State.PENDING, "the node is not ready"
    if node.node.spec.unschedulable:
        return State.PENDING, "it is cordoned"
    state = (node.node.metadata.labels or {}).get(CONFIG_STATE, "success")
    if state != "success":
        return State.PENDING, f"the layout that it was given is not there: state {state}"
    if why := put_off or (f"its layout is not known: {unknown}" if unknown else ""):
        return State.PENDING, why
    return State.CURRENT, ""


def coming(nodes: Iterable[SeenNode]) -> dict[str, Mapping[str, int]]:
    """What nodes whose layout is being changed will have of GPUs, as far as it is known."""
    found: dict[str, Mapping[str, int]] = {}
    for node in nodes:
        if (record := node.record) is not None:
            then = record.offered if record.phase is Phase.PUTTING_BACK else record.expected
            if then is not None:
                found[node.name] = then
    return found


def closed(nodes: Iterable[SeenNode]) -> dict[str, str]:
    """Nodes that take no pods now, and will not when a rollout is over."""
    found = {}
    for node in nodes:
        if not node.node.status.ready:
            found[node.name] = "the node is not ready"
        elif node.node.spec.unschedulable and (node.record is None or not node.record.uncordons):
            found[node.name] = "it is cordoned"
    return found
