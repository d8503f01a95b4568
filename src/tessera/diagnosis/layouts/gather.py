"""Reading what the answer about a MigLayout needs: itself, the nodes that it selects, and the controller's Lease. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.text import first_of
from tessera.diagnosis.layouts.status import cut
from tessera.diagnosis.reading import NoSuchObject, Reader, read_controller
from tessera.inventory.presence import Presence
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.view.lease import LAYOUTS
from tessera.kube.watch.table import NODES, Resource, TableEntry
from tessera.protocol.kubernetes import objects
from tessera.protocol.mig.miglayout import API_VERSION, PLURAL, MigLayout
from tessera.protocol.mig.rollouts import SeenRollout, read_rollout

_MOST_NAMES: Final = 3  # of the MigLayouts that there are instead


class NotReadable(TesseraError):
    """There is something that may not be read, or not understood."""


@dataclass(frozen=True, slots=True)
class LayoutEvidence:
    """Everything by which a MigLayout is judged."""

    layout: MigLayout
    now: float = 0.0  # Unix time
    selected: int | None = None  # nodes; None: that is not known
    rollouts: Mapping[str, SeenRollout] = field(default_factory=dict)  # under way, by node
    controller: Presence | None = None  # as who keeps layouts; None: whether it is at work is not known
    namespace: str = ""  # of the controller
    unseen: Mapping[str, str] = field(default_factory=dict)  # what could not be read → why


async def gather_layout(
    client: Client, name: str, namespace: str, clock: Clock = SYSTEM_CLOCK
) -> LayoutEvidence:
    """Read everything; `NoSuchObject` where there is no such MigLayout. `namespace`: where the controller is installed."""
    layout, reader = await _read(client, name), Reader(client)
    selected, rollouts = 0, dict[str, SeenRollout]()

    def begin() -> None:
        nonlocal selected
        selected = 0
        rollouts.clear()

    def put(node: objects.AnyObject) -> None:
        nonlocal selected
        metadata = node.metadata
        if layout.selects(metadata.labels or {}):
            selected += 1
            if (rollout := read_rollout(metadata.annotations)) is not None:
                rollouts[metadata.name] = rollout

    nodes = replace(NODES, labels=layout.selector)
    await reader.fill({nodes: TableEntry(objects.decode_any, put, begin=begin)})
    return LayoutEvidence(
        layout,
        clock.wall(),
        None if NODES.name in reader.unseen else selected,
        rollouts,
        await read_controller(reader, namespace, clock, LAYOUTS),
        namespace,
        {**reader.unseen, **reader.left_out()},
    )


async def _read(client: Client, name: str) -> MigLayout:
    try:
        raw = await client.get(path_of(API_VERSION, PLURAL, name=name))
    except ApiError as error:
        if not error.is_absent:
            raise
        if not await client.serves(API_VERSION):
            values = "the chart brings it with its values controller.enabled and layouts.enabled"
            raise NotReadable(f"the cluster has no MigLayouts: the API {API_VERSION} is not installed; {values}") from error  # fmt: skip
        if error.is_forbidden:
            raise NotReadable(f"MigLayout {name} may not be read: {error.message}") from error
        raise NoSuchObject(f"there is no MigLayout {name}{await _others(client)}") from error
    try:
        return MigLayout.read(raw)
    except InvalidInput as error:
        raise NotReadable(f"MigLayout {name} cannot be read: {cut(str(error))}") from error


async def _others(client: Client) -> str:
    """What there is instead, as far as it may be read."""
    reader = Reader(client)
    named = await reader.each(Resource(PLURAL, path_of(API_VERSION, PLURAL)), objects.decode_named)
    if reader.unseen:
        return ""
    names = sorted(one.metadata.name for one in named)
    return f"; the cluster has {first_of(names, _MOST_NAMES)}" if names else "; the cluster has none"
