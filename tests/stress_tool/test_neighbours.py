"""What `stress.neighbours` judges by, and what its attacks create."""

import asyncio
from dataclasses import replace

import pytest
from stress.neighbourhood import HONEST, TWO, StandInScheduler, asked_by, build, pod
from stress.neighbours import LONGEST, Measured, find_wrong
from stress.tenant_pods import NEIGHBOURS

from tessera.simulation.control_plane.kinds import PODS
from tessera.simulation.control_plane.store import Store

ALONE = Measured(
    decisions=80,
    right=80,
    times_ms=[2.0, 3.0, 4.0],
    patience=31.0,
    recut=4.0,
    mib={"webhook": 40.0, "controller": 50.0},
)


@pytest.mark.parametrize(
    ("attacked", "wrong"),
    [
        ({}, []),
        ({"right": 79}, ["decisions"]),
        ({"decisions": 0, "right": 0}, ["decisions"]),
        ({"times_ms": [3.0, 7.1, 8.0]}, ["admission"]),
        ({"times_ms": [2.0] * 50 + [1000.0]}, ["admission"]),
        ({"patience": 62.0, "recut": 18.0}, []),
        ({"patience": 62.1}, ["patience"]),
        ({"recut": 18.1}, ["re-cut"]),
        ({"mib": {"webhook": 47.0, "controller": 50.0}}, ["memory"]),
        ({"mib": {"webhook": 0.0, "controller": 50.0}}, ["memory"]),
        ({"kills": 1}, ["killed"]),
    ],
)
def test_an_attack_may_cost_twice_the_time_and_no_process(attacked, wrong):
    assert find_wrong(ALONE, replace(ALONE, **attacked), 1.15) == wrong


def test_a_cluster_that_fails_by_itself_is_no_measure():
    """What is never reached without the attack would hold with any."""
    assert find_wrong(replace(ALONE, patience=LONGEST), ALONE, 1.15) == ["baseline"]


@pytest.mark.parametrize("attack", NEIGHBOURS, ids=lambda attack: attack.name)
def test_every_attack_makes_pods_of_its_own(attack):
    """Whatever is created together has different names, and asks for a device."""
    pods = [attack.make(number) for number in range(attack.number or 180)]
    assert len({document["metadata"]["name"] for document in pods}) == len(pods)
    assert all(asked_by(document).startswith("nvidia.com/mig-") for document in pods)


@pytest.mark.parametrize(("namespace", "bound"), [(HONEST, True), ("tenant-a", False)])
def test_the_scheduler_places_honest_pods_alone(namespace, bound):
    async def judged():
        store = Store()
        build(store)
        scheduler = StandInScheduler(store)
        store.create(PODS, pod("p", TWO, "full"), namespace)
        scheduler.judge((namespace, "p"))
        return store.get(PODS, "p", namespace).document

    document = asyncio.run(judged())
    assert bool(document["spec"].get("nodeName")) is bound
    assert document["status"]["conditions"][0]["status"] == str(bound)
