"""Where mig-manager's configurations are."""

from contextlib import asynccontextmanager

from tessera.core.mig.known import KnownLayout, LayoutSource
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory, following
from tessera.kube.rest.client import Client
from tessera.serving.http_messages import Response
from tessera.simulation.control_plane.kinds import CONFIG_MAPS, NODES
from tests.inventory.objects import CLUSTER_POLICIES, OBJECTS, config_map, operator_node, policy
from tests.inventory.test_inventory import taken
from tests.kube.apiserver import MisbehavingApiServer

PATHS = ("/apis/nvidia.com", "/api/v1/namespaces")
FORBIDDEN = Response(b'{"kind":"Status","reason":"Forbidden","message":"not yours"}', 403)


@asynccontextmanager
async def cluster(*nodes, policies=True, maps=()):
    """A cluster with these nodes; without `policies` it does not know the kind."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        for one in nodes:
            server.store.create(NODES, one, "")
        if policies is not False:
            server.kinds[CLUSTER_POLICIES.prefix, CLUSTER_POLICIES.plural] = CLUSTER_POLICIES
        for one in () if isinstance(policies, bool) else policies:
            server.store.create(CLUSTER_POLICIES, one, "")
        for one in maps:
            server.store.create(CONFIG_MAPS, one, one["metadata"]["namespace"])
        yield server, client


async def read(client, **settings):
    inventory = Inventory(is_any_gpu, **settings)
    await inventory.read_cluster(client, pods=False)
    return inventory.mig_manager


CUT = operator_node("n", {"1g.10gb": 56}, "all-1g.10gb")


async def test_the_policy_names_it():
    """The ConfigMap is the one that the ClusterPolicy in force names."""
    ignored = policy("other")
    ignored["status"]["state"] = "ignored"
    ignored["metadata"]["name"] = "another"
    maps = [config_map(name="mine", namespace="nvidia"), config_map()]
    async with cluster(CUT, policies=[ignored, policy("mine", "nvidia")], maps=maps) as (_, client):
        found = await read(client)
    assert found is not None
    assert (str(found), found.owned, found.error) == ("ConfigMap nvidia/mine", False, "")
    assert found.resource_version != ""


async def test_it_is_asked_for_only_where_a_node_is_cut_by_mig_manager():
    """A cluster without such nodes sees no call more, nor does a command that needs no layouts."""
    for nodes, settings in ((OBJECTS[:4], {}), ([CUT], {"with_layouts": False})):
        async with cluster(*nodes, policies=[policy()], maps=[config_map()]) as (server, client):
            assert await read(client, **settings) is None
            assert [request for path in PATHS for request in server.asked(path)] == []


async def test_what_cannot_be_read_is_said():
    """No operator is nothing to say; a right or a ConfigMap that is missing is."""
    async with cluster(CUT, policies=False) as (_, client):
        assert await read(client) is None
    async with cluster(CUT) as (_, client):
        assert await read(client) is None
    async with cluster(CUT, policies=[policy()]) as (server, client):
        found = await read(client)
        assert found is not None
        assert found.document is None
        assert found.error.startswith("ConfigMap gpu-operator/default-mig-parted-config cannot be read: ")
        server.intercept = lambda request: FORBIDDEN if "configmaps" in request.path else None
        found = await read(client)
        assert found is not None
        assert found.error == "ConfigMap gpu-operator/default-mig-parted-config cannot be read: not yours"
        server.intercept = lambda request: FORBIDDEN if "clusterpolicies" in request.path else None
        found = await read(client)
        assert found is not None
        assert found.error == "the ClusterPolicy cannot be read: not yours"


async def test_who_follows_a_cluster_knows_them_too():
    """What is followed begins complete: with mig-manager's configurations, where a node is cut by it."""
    async with cluster(CUT, policies=[policy()], maps=[config_map()]) as (_, client):
        inventory = Inventory(is_any_gpu)
        async with following(client, inventory):
            known = inventory.known("n")
    assert isinstance(known, KnownLayout)
    assert known.source is LayoutSource.MIG_MANAGER


def test_objects_in_files():
    """Saved with kubectl they count as in a cluster; without a ClusterPolicy the one ConfigMap that can be it is it."""
    mine, other = config_map(name="mine"), config_map("a: b", "other")
    assert str(taken(CUT, policy("mine"), config_map(), mine).mig_manager) == "ConfigMap gpu-operator/mine"
    assert str(taken(CUT, mine, other).mig_manager) == "ConfigMap gpu-operator/mine"
    assert taken(CUT, mine, config_map()).mig_manager is None
    assert taken(CUT, other).mig_manager is None
    missing = taken(CUT, policy("mine"), config_map()).mig_manager
    assert missing is not None
    assert (
        missing.error
        == "ConfigMap gpu-operator/mine, which the ClusterPolicy names, is not among the objects"
    )
