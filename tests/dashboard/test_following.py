"""A cluster, or files, onto the board: with mig-manager's configurations where it cuts cards."""

import json
from typing import Any

import pytest

from tessera.dashboard.board import Board
from tessera.dashboard.following import following, show_objects
from tessera.kube.object_files import objects_in_documents
from tessera.kube.rest.client import Client
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import StatusError
from tests.inventory.objects import CLUSTER_POLICIES, config_map, operator_node, policy
from tests.kube.apiserver import MisbehavingApiServer, status

BALANCED = operator_node("n", {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}, "all-balanced")


def drawn(board: Board) -> tuple[int, str, str]:
    """The number of a node's cards that are drawn, by what, and the reason where there are none."""
    mosaic = json.loads(board.mosaics(["n"])["n"])
    reason: str = json.loads(board.parts()["node/n"]).get("reason", "")
    return len(mosaic["cards"]), mosaic["source"], reason


async def followed(
    *objects: dict[str, Any], forbidden: bool = False
) -> tuple[MisbehavingApiServer, tuple[int, str, str]]:
    server, board = MisbehavingApiServer(), Board("a test")
    server.kinds[CLUSTER_POLICIES.prefix, CLUSTER_POLICIES.plural] = CLUSTER_POLICIES
    no = StatusError(403, "Forbidden", "you may not")
    if forbidden:
        server.intercept = lambda request: status(no) if "clusterpolicies" in request.path else None
    for kind, document in (
        (kinds.NODES, objects[0]),
        (CLUSTER_POLICIES, policy()),
        (kinds.CONFIG_MAPS, config_map()),
    ):
        server.store.create(kind, document, document["metadata"].get("namespace", ""))
    async with await server.start(), Client(server.cluster) as client, following(client, board):
        return server, drawn(board)


async def test_mig_managers_configurations_are_read():
    """What counts do not tell, the configuration does that a node's label names."""
    _, found = await followed(BALANCED)
    assert found == (8, "label nvidia.com/mig.config with mig-manager's ConfigMap", "")


async def test_configurations_are_not_asked_for_where_nobody_needs_them():
    """A cluster without NVIDIA's operator is not asked for its objects."""
    plain = operator_node("n", {"gpu": 8})
    del plain["metadata"]["labels"]["nvidia.com/gpu.deploy.mig-manager"]
    server, found = await followed(plain)
    assert (found, server.asked("/apis/nvidia.com")) == ((8, "the node's capacity", ""), [])


async def test_configurations_that_may_not_be_read():
    """The page goes on, and the node has the reason."""
    _, (cards, source, reason) = await followed(BALANCED, forbidden=True)
    assert (cards, source) == (0, "")
    assert reason.endswith("the ClusterPolicy cannot be read: you may not")


@pytest.mark.parametrize(("more", "cards"), [([], 0), ([policy(), config_map()], 8)])
def test_files(more, cards):
    """Saved objects show the same, with the ConfigMap among them."""
    board = Board("a test")
    show_objects(board, list(objects_in_documents([BALANCED, *more], "test")))
    assert drawn(board)[0] == cards
