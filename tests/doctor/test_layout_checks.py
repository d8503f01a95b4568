"""Layouts of nodes that NVIDIA's mig-manager cuts: what is wrong with them, and that all is well where it is."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane import kinds
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import Examined, examined, healthy
from tests.inventory.objects import CLUSTER_POLICIES, config_map, operator_node, policy

ONES = {"1g.10gb": 56}


def managed(since: float) -> list[dict[str, Any]]:
    """Who wrote a node's labels, and when."""
    at = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config.state": {}}}}
    kubelet = {"manager": "kubelet", "time": "2020-01-01T00:00:00Z", "fieldsV1": {"f:status": {}}}
    return [kubelet, {"manager": "nvidia-mig-manager", "time": at, "fieldsV1": fields}]


async def looked_at(node: dict[str, Any], *, forbidden: frozenset[str] = frozenset()) -> Examined:
    objects = healthy(authority())
    objects[kinds.NODES].append(node)
    objects[kinds.CONFIG_MAPS].append(config_map())
    objects[CLUSTER_POLICIES] = [policy()]
    return await examined(objects, now=NOW, forbidden=forbidden)


@pytest.mark.parametrize(
    ("config", "devices", "labels", "text"),
    [
        ("all-1g.10gb", ONES, {}, ""),
        ("all-disabled", {"gpu": 8}, {}, ""),
        ("all-balanced", {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}, {}, ""),
        ("mine", {"3g.40gb": 2, "gpu": 7}, {}, ""),
        ("all-1g.10gb", {"1g.10gb": 55}, {}, "problem: node n: all-1g.10gb makes 56 × nvidia.com/mig-1g.10gb, and its capacity has 55 × nvidia.com/mig-1g.10gb"),
        ("all-1g.10gb", {"gpu": 8}, {}, "problem: node n: all-1g.10gb makes 56 × nvidia.com/mig-1g.10gb, and its capacity has 8 × nvidia.com/gpu"),
        ("all-2g.99gb", ONES, {}, 'problem: node n: its label nvidia.com/mig.config says "all-2g.99gb", and ConfigMap gpu-operator/default-mig-parted-config has no such configuration'),
        ("all-2g.99gb", ONES, {"mig.config.state": "failed"}, 'problem: node n: its label nvidia.com/mig.config says "all-2g.99gb", and ConfigMap gpu-operator/default-mig-parted-config has no such configuration'),
        ("all-1g.10gb", {"gpu": 8}, {"mig.config.state": "failed"}, "problem: node n: mig-manager could not make all-1g.10gb (state failed); its log says why"),
        ("all-1g.10gb", {}, {"mig.config.state": "pending"}, "warning: node n: mig-manager is making all-1g.10gb (state pending)"),
        ("all-1g.10gb", {}, {"mig.config.state": "rebooting"}, "warning: node n: mig-manager is making all-1g.10gb (state rebooting)"),
        ("all-1g.10gb", {"gpu": 8}, {"mig.config.state": ""}, "problem: node n: its label nvidia.com/mig.config says all-1g.10gb, and no mig-manager says what became of it"),
        # shares: how many there are says nothing for certain
        ("all-1g.10gb", {"1g.10gb.shared": 999}, {}, ""),
    ],
)  # fmt: skip
async def test_a_configuration_of_mig_manager(config, devices, labels, text):
    """A node has what the configuration makes that its label names; else it is said what became of it. Silent where all is well."""
    found = await looked_at(operator_node("n", devices, config, **labels))
    told = [f"{one.severity}: {one.text}" for one in found.of("layouts")]
    assert told == ([text] if text else [])


@pytest.mark.parametrize(
    ("seconds", "told"), [(60, []), (1500, ["mig-manager is making all-1g.10gb (state pending, for 25 min by now)"])]
)  # fmt: skip
async def test_mig_manager_takes_its_time(seconds, told):
    """A change of some minutes is not reported; one that takes longer is, with how long it is by now."""
    node = operator_node("n", {}, "all-1g.10gb", **{"mig.config.state": "pending"})
    node["metadata"]["managedFields"] = managed(NOW - seconds)
    found = await looked_at(node)
    assert [one.text.removeprefix("node n: ") for one in found.of("layouts")] == told


async def test_an_annotation_that_nothing_reads():
    """Where mig-manager cuts the cards, an annotation with a layout is of no use."""
    node = operator_node("n", ONES, "all-1g.10gb")
    node["metadata"]["annotations"] = {"run.ai/mig.config": "3g.40gb=2"}
    one = (await looked_at(node)).one("layouts")
    assert (
        one.text == "node n: nothing there reads its annotation run.ai/mig.config: mig-manager cuts its cards"
    )
    assert one.commands == ("kubectl annotate node n run.ai/mig.config-",)


async def test_configurations_that_may_not_be_read():
    """Then that is said, once, and the rest is looked at."""
    found = await looked_at(operator_node("n", ONES, "all-1g.10gb"), forbidden=frozenset({"clusterpolicies"}))
    assert found.states["layouts"] == "not seen"
    assert found.one("layouts").text.startswith("could not compare with mig-manager's configurations: ")


def stuck(owner: Owner, until: float, **fields: Any) -> str:
    """A rollout on a node, as its annotation."""
    return written(RolloutRecord(owner, Phase.WRITTEN, 1.0, until, 3.0, "new", "old", **fields))


@pytest.mark.parametrize(
    ("text", "told", "commands"),
    [
        (stuck(Owner("ann@host"), NOW), "", 0),
        (stuck(Owner("inference", "uid"), NOW), "", 0),
        (stuck(Owner("ann@host"), NOW - 61), "warning: node n: tessera mig apply (ann@host) does not go on with its rollout (phase Written)", 2),
        (stuck(Owner("ann@host"), NOW - 61, cordoned=True), "warning: node n: tessera mig apply (ann@host) does not go on with its rollout (phase Written)", 1),
        (stuck(Owner("inference", "uid"), NOW - 61), "warning: node n: MigLayout inference does not go on with its rollout (phase Written): is the controller at work?", 1),
        ("{", "problem: node n: annotation tessera.dev/rollout: ", 2),
    ],
)  # fmt: skip
async def test_fault_79_a_rollout_that_nobody_goes_on_with(text, told, commands):
    """A node whose rollout has stood for too long is named, with the commands that end it; one that is under
    way is not."""
    node = operator_node("n", ONES, "all-1g.10gb")
    node["metadata"]["annotations"] = {ROLLOUT: text}
    findings = (await looked_at(node)).of("layouts")
    assert len(findings) == bool(told)
    for found in findings:
        assert f"{found.severity}: {found.text}".startswith(told)
        assert len(found.commands) == commands
