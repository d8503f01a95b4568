"""The nodes that are to be changed, with what pods hold of them."""

from collections.abc import Sequence

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.resource import NODES, UNFINISHED_PODS
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.protocol.kubernetes.pod import decode_pod_use
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.rollout.changes import Change, Wanted, change_of
from tessera.rollout.progress import offered_by


async def changes_of(
    client: Client, wanted: Wanted, names: Sequence[str], selector: LabelSelector
) -> list[Change]:
    """What would happen to each node; every reason why it cannot be is told at once."""
    changes, complaints = [], []
    for node in await (_named(client, names) if names else _selected(client, selector)):
        uses = await _uses(client, node.metadata.name)
        try:
            changes.append(change_of(node, offered_by(node), uses, wanted))
        except InvalidInput as error:
            complaints += [f"node {node.metadata.name}: {line}" for line in str(error).split("\n")]
    if complaints:
        raise InvalidInputs(complaints)
    return changes


async def _selected(client: Client, selector: LabelSelector) -> list[NodeIn]:
    found = await list_all(client, NODES.path, {"labelSelector": selector.text}, decode_node)
    if not found:
        raise InvalidInput(f'the cluster has no nodes that match "{selector.text}"')
    return found


async def _named(client: Client, names: Sequence[str]) -> list[NodeIn]:
    found, missing = [], []
    for name in dict.fromkeys(names):
        try:
            found.append(decode_node(await client.get(path_of("v1", "nodes", name=name))))
        except ApiError as error:
            if not error.is_not_found:
                raise
            missing.append(name)
    if missing:
        raise InvalidInput(f"the cluster has no node {', '.join(missing)}")
    return found


async def _uses(client: Client, node: str) -> list[PodUse]:
    """What pods hold of a node's GPUs."""
    query = {"fieldSelector": f"spec.nodeName={node},{UNFINISHED_PODS.fields}"}
    uses = await list_all(client, UNFINISHED_PODS.path, query, lambda raw: decode_pod_use(raw, is_any_gpu))
    return [use for use in uses if use.amounts]
