"""Writes to one node: its layout, or the name of a configuration, where nobody else has written meanwhile."""

from collections.abc import Collection, Sequence
from typing import Final

from tessera.core.errors import TesseraError
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, PatchType
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.protocol.mig.nodes import gpu_node
from tessera.rollout.change import Change
from tessera.rollout.config_map import MANAGER

_MOST_TRIES: Final = 5  # a kubelet writes its node every few seconds: two conflicts in a row are rare
# mig-manager removes the operator's DaemonSets from a node while it works, by labels `nvidia.com/gpu.deploy.…`
_DEPLOY: Final = "nvidia.com/gpu.deploy."
_PAUSED: Final = "paused-for-mig-change"


class NotShown(TesseraError):
    """The node does not show the layout that was written."""


class Overtaken(TesseraError):
    """Another client wrote something else."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"another client changed {change.key} meanwhile; left as it is")


async def write(
    client: Client, change: Change, expected: Collection[str | None], value: str | None, state: str | None
) -> bool:
    """Write a value and its state where one of the expected values is; False when the value is there already."""
    path = path_of("v1", "nodes", name=change.node)
    for _ in range(_MOST_TRIES):
        node = decode_node(await client.get(path))
        found = change.value_of(node)
        if found == value:
            return False
        if found not in expected:
            raise Overtaken(change)
        patch = change.patch(value, state, node.metadata.resource_version)
        try:
            await client.patch(path, patch, PatchType.MERGE, MANAGER)
        except ApiError as error:
            if not error.is_conflict:
                raise
        else:
            return True
    raise NotShown(f"the node changed {_MOST_TRIES} times while it was written to")


async def refusal(client: Client, change: Change) -> str:
    """Why the API server would refuse a change, by a dry run; empty when it would accept it."""
    path = path_of("v1", "nodes", name=change.node)
    query = {**MANAGER, "dryRun": "All"}
    try:
        await client.patch(path, change.patch(change.after, None), PatchType.MERGE, query)
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


async def resume(client: Client, node: NodeIn, labels: Sequence[str]) -> None:
    """Let those DaemonSets come back, unless the node has changed since."""
    version = node.metadata.resource_version
    patch = {"metadata": {"labels": dict.fromkeys(labels, "true"), "resourceVersion": version}}
    path = path_of("v1", "nodes", name=node.metadata.name)
    try:
        await client.patch(path, patch, PatchType.MERGE, MANAGER)
    except ApiError as error:
        if not error.is_conflict:
            raise
