"""Rollouts against a stand-in cluster whose nodes answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.kube.rest.client import Client
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import Owner
from tessera.rollout import conflicts
from tessera.rollout.alone import Alone
from tessera.rollout.carrying import Carrier
from tessera.rollout.change import Wanted
from tessera.rollout.changes import changes_of
from tessera.rollout.rollout import Rollout
from tessera.rollout.step import Attempt
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node
from tests.kube.served import served  # noqa: F401 # a fixture
from tests.rollout.plugin import FakePlugin

ME = Owner("ann@host")
BIG = {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}


@pytest.fixture
def roll_out(served, monkeypatch):  # noqa: F811 # the fixture
    """Gives a layout to nodes of three that answer: how each ended, by name, and what was told meanwhile."""
    served.add(*(node(f"gpu-{number}", BIG, "NVIDIA-H200", layout=LAYOUT) for number in range(3)))
    monkeypatch.setattr(Attempt, "settles", 0.02)
    monkeypatch.setattr(Alone, "polls", 0.02)
    monkeypatch.setattr(Carrier, "settles", 0.02)
    monkeypatch.setattr(conflicts, "_BETWEEN", 0.02)

    def call(layout, *names, at_once=1, timeout=20.0):
        told: list[str] = []

        async def work():
            async with Client(served.server.cluster) as client:
                wanted = Wanted(mig.read(layout), None, label=False, text=layout)
                changes = await changes_of(client, wanted, names, LabelSelector.parse(""))
                rollout = Rollout(client, owner=ME, at_once=at_once, timeout=timeout, report=told.append)
                await rollout.run(changes)
                return rollout

        rollout = asyncio.run(work())
        ended = {name: (str(one.result), one.reason) for name, one in rollout.outcomes.items()}
        return SimpleNamespace(ended=ended, told=told, succeeded=rollout.succeeded)

    runner: Any = call
    runner.cluster, runner.plugin = served, FakePlugin(served)
    return runner
