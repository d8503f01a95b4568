"""Writes to one node: its layout, or the name of a configuration, where nobody else has written meanwhile."""

from collections.abc import Collection
from typing import Final

from tessera.core.errors import TesseraError
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, PatchType, path_of
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.protocol.mig.nodes import gpu_node
from tessera.rollout.change import Change
from tessera.rollout.config_map import MANAGER, NotWritten
from tessera.rollout.conflicts import MOST_TRIES

# mig-manager removes the operator's DaemonSets from a node while it works, by labels `nvidia.com/gpu.deploy.…`
_DEPLOY: Final = "nvidia.com/gpu.deploy."
_PAUSED: Final = "paused-for-mig-change"


class Overtaken(TesseraError):
    """Another client wrote something else."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"another client changed {change.key} meanwhile; left as it is")


async def write(client: Client, change: Change, expected: Collection[str | None], value: str) -> None:
    """Write a value, and remove its state, where one of the expected values is."""
    path = path_of("v1", "nodes", name=change.node)
    for _ in range(MOST_TRIES):
        node = decode_node(await client.get(path))
        found = change.value_of(node)
        if found == value:
            return
        if found not in expected:
            raise Overtaken(change)
        patch = change.patch(value, node.metadata.resource_version)
        try:
            await client.patch(path, patch, PatchType.MERGE, MANAGER)
        except ApiError as error:
            if not error.is_conflict:
                raise
        else:
            return
    raise NotWritten(f"the node changed {MOST_TRIES} times while it was written to")


async def refusal(client: Client, change: Change) -> str:
    """Why the API server would refuse a change, by a dry run; empty when it would accept it."""
    path = path_of("v1", "nodes", name=change.node)
    query = {**MANAGER, "dryRun": "All"}
    try:
        await client.patch(path, change.patch(change.after), PatchType.MERGE, query)
    except ApiError as error:
        return str(error)
    return ""


def paused(node: NodeIn, *states: str) -> list[str]:
    """The labels by which mig-manager keeps DaemonSets away from a node, though it has ended in one of these states.

    mig-manager 0.13 puts them back after a failure only if it has not succeeded before since its start. The old configuration then counts
    as applied, and the device plugin stays away.
    """
    if gpu_node(node).state not in states:
        return []
    labels = node.metadata.labels or {}
    return sorted(key for key, value in labels.items() if key.startswith(_DEPLOY) and value == _PAUSED)
