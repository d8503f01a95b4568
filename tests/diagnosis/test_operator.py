"""Pods that wait in clusters of NVIDIA's operator: mig-manager cuts the cards, and no annotation says how."""

from typing import Any

import pytest

from tessera.diagnosis.diagnosis import Diagnosis
from tessera.simulation.control_plane import kinds
from tests.diagnosis.clusters import REPLICA_SETS, pod, refused, why
from tests.inventory.objects import CLUSTER_POLICIES, config_map, operator_node, policy

ONES = {"1g.10gb": 56}
DENIED = (
    'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: asked for nvidia.com/mig-4g.40gb: 1, '
    "and no node that this pod can use offers it"
)


async def asked(
    node: dict[str, Any], *pods: dict[str, Any], profile: str = "4g.40gb", config: str | None = None
) -> Diagnosis:
    maps = [config_map() if config is None else config_map(config)]
    waits = pod("p", {profile: 1}, annotations={"gpu-webhook.k8s.io/fallback-policy": "never"})
    objects = {
        kinds.NODES: [node],
        kinds.PODS: [waits, *pods],
        CLUSTER_POLICIES: [policy()],
        kinds.CONFIG_MAPS: maps,
    }
    return await why("p", objects)


async def test_a_layout_goes_the_operators_way():
    """On a node that mig-manager cuts, nobody is told to write an annotation; where its present layout is known from is said."""
    found = await asked(operator_node("n", ONES, "all-1g.10gb"))
    (remedy,) = [one for one in found.remedies if one.kind == "layout"]
    assert "node n is re-cut (card " in remedy.text
    assert (
        "its present layout is known from: label nvidia.com/mig.config with mig-manager's ConfigMap"
        in remedy.text
    )
    assert not any("runai" in command for command in remedy.commands)
    assert remedy.commands
    assert found.unseen == {}


@pytest.mark.parametrize("state", ["pending", "rebooting"])
async def test_mig_manager_is_at_work(state):
    """What a pod asks for comes with the configuration that mig-manager is making; its device plugin is away meanwhile."""
    node = operator_node("n", {"3g.40gb": 0}, "all-balanced", **{"mig.config.state": state})
    found = await asked(node, profile="3g.40gb")
    said = f"mig-manager makes all-balanced with 3g.40gb (state {state})"
    assert (
        found.answer
        == f"pod team/p waits: 1 × 3g.40gb comes with a layout that node n has not taken yet ({said})"
    )
    assert [(one.kind, one.text, one.commands) for one in found.remedies] == [
        (
            "mend",
            "mig-manager is done with all-balanced on node n",
            ("kubectl get pods -A -l app=nvidia-mig-manager --field-selector spec.nodeName=n",),
        )
    ]


async def test_mig_manager_failed():
    """The configuration that it could not make is named, and where to look."""
    found = await asked(
        operator_node("n", {"gpu": 8}, "all-balanced", **{"mig.config.state": "failed"}), profile="3g.40gb"
    )
    assert found.cause == "layout-failed"
    assert found.answer.endswith(
        "(no 1 × 3g.40gb; its layout failed: mig-manager could not make all-balanced)"
    )
    (remedy,) = [one for one in found.remedies if one.kind == "mend"]
    assert (
        remedy.commands[0] == "kubectl get pods -A -l app=nvidia-mig-manager --field-selector spec.nodeName=n"
    )


async def test_a_node_of_which_it_is_not_known_how_it_is_cut():
    """No layout is proposed for it, and the reason is said."""
    counts = {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}
    found = await asked(operator_node("n", counts, "gone"))
    assert "layout" not in [one.kind for one in found.remedies]
    ((what, reason),) = found.unseen.items()
    assert what == "how node n is cut"
    assert reason.startswith("there is more than one way to cut its cards")
    assert reason.endswith('ConfigMap gpu-operator/default-mig-parted-config has no configuration "gone"')


async def test_configurations_that_may_not_be_read():
    """Who may not read the ClusterPolicy is told, beside what that leaves unknown."""
    counts = {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}
    nodes = {kinds.NODES: [operator_node("n", counts, "all-balanced")], kinds.PODS: [pod("p", {"4g.40gb": 1})], CLUSTER_POLICIES: [policy()]}  # fmt: skip
    found = await why("p", nodes, forbidden=frozenset({"clusterpolicies"}))
    assert found.unseen["mig-manager's configurations"].startswith("the ClusterPolicy cannot be read: ")
    assert "how node n is cut" in found.unseen


async def test_a_node_that_takes_no_layout_for_the_pod():
    """How it is cut matters to nobody: it is closed to the pod, or its cards are cut for claims on demand."""
    counts = {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}
    closed = operator_node("n", counts, "gone")
    closed["spec"] = {"taints": [{"key": "team", "value": "other", "effect": "NoSchedule"}]}
    assert (await asked(closed)).unseen == {}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {
        "driver": "gpu.tessera.dev",
        "nodeName": "n",
        "pool": pool,
        "sharedCounters": [{"name": "card-0"}],
    }
    on_demand = {kinds.RESOURCE_SLICES: [{"metadata": {"name": "s"}, "spec": spec}]}
    nodes = {kinds.NODES: [operator_node("n", counts, "gone")], kinds.PODS: [pod("p", {"4g.40gb": 1})]}
    assert "how node n is cut" in (await why("p", nodes)).unseen
    assert (await why("p", {**nodes, **on_demand})).unseen == {}


async def test_rejected_pods_in_a_cluster_of_the_operator():
    """Pods that the webhook rejects get the same: a layout, in the operator's way, by a command that counts them."""
    objects = refused(DENIED, {"4g.40gb": 1})
    del objects[REPLICA_SETS][0]["spec"]["template"]["metadata"]["name"]
    nodes = {
        kinds.NODES: [operator_node("n", ONES, "all-1g.10gb")],
        CLUSTER_POLICIES: [policy()],
        kinds.CONFIG_MAPS: [config_map()],
    }
    found = await why(
        "rs/web", {**objects, **nodes}, namespace={"gpu-webhook.k8s.io/fallback-policy": "larger"}
    )
    assert found.cause == "rejected"
    (remedy,) = [one for one in found.remedies if one.kind == "layout"]
    assert remedy.commands[0].startswith("tessera mig plan")
    assert "runai" not in remedy.commands[0]
