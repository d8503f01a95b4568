"""Mode Auto at random: leaders die and pause, people change and pause MigLayouts that overlap, nodes come and go, pods come and end; what must never
happen is looked for at every change of a node."""

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress

import pytest

from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import Phase
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.controller.layouts.cluster import FastClock, MortalLeaders, cluster, layout
from tests.inventory.objects import pod
from tests.rollout.machine.world import asked, record_in
from tests.rollout.plugin import CARDS

PROFILES = [MIG + one for one in ("1g.10gb", "2g.20gb", "3g.30gb", "7g.70gb")]
NAMES = [f"gpu-{number}" for number in range(5)]
BUDGET = 6
AT_ONCE = 2
SEEDS = 4 if os.environ.get("CI") == "true" else 1
SECONDS = 1.5  # 150 of the cluster's


def auto_for(name, selector, **spec):
    document = layout(name, mode="Auto", autopilot={"dryRun": False}, **spec)
    document["spec"]["nodeSelector"] = selector
    document["spec"]["autopilot"] |= {"recutsPerHour": BUDGET, "coolDown": "2h"}
    return document


def limits_of(document):
    return document["spec"]["containers"][0]["resources"]["limits"]


class World:
    """People, a scheduler, workloads and nodes, each a little mad."""

    def __init__(self, one, seed):
        self.one, self.store = one, one.store
        self.draw = random.Random(seed)
        self.clock, self.pods, self.errors = FastClock(), 0, list[str]()
        self.cut = Counter[tuple[str, str, int]]()  # by the MigLayout's UID, node and card
        self.store.follow(NODES, self.store.version, self._changed)

    def _changed(self, change):
        """What must never happen."""
        if change.before is None or change.type == "DELETED":
            return
        before, after = change.before.document, change.after.document
        was, name = record_in(before), after["metadata"]["name"]
        if was is None or not was.auto or was.phase is not Phase.CORDONED or asked(before) == asked(after):
            return
        if asked(after) != was.after:
            return
        old, new = (mig.read_layout(asked(one), CARDS).cards for one in (before, after))
        held = {
            resource: stored.key[1]
            for stored in self.store.list(PODS)
            if stored.document["spec"].get("nodeName") == name
            for resource in limits_of(stored.document)
        }
        for card, (this, that) in enumerate(zip(old, new, strict=True)):
            gone = {one.profile.resource for one in {*this.instances} - {*that.instances}}
            if taken := gone & held.keys():
                self.errors.append(f"{name}: {taken} of {[held[one] for one in taken]}")
            if this != that:
                self.cut[was.owner.uid, name, card] += 1
                if self.cut[was.owner.uid, name, card] > 1:
                    self.errors.append(f"{name}: card {card} within its cool-down")
        total = sum(number for (uid, *_), number in self.cut.items() if uid == was.owner.uid)
        if total > BUDGET:
            self.errors.append(f"{was.owner.name}: {total} re-cuts")

    # the scheduler, and workloads

    def schedule(self):
        """Bind pods to nodes that have what they ask for; a node that was cordoned just now may be chosen still."""
        pods = [stored.document for stored in self.store.list(PODS)]
        for waiting in (one for one in pods if not one["spec"].get("nodeName")):
            (resource,) = limits_of(waiting)
            for stored in self.store.list(NODES):
                node, name = stored.document, stored.key[1]
                record = record_in(node)
                just = record is not None and self.clock.wall() < record.since + 0.5
                if node["spec"].get("unschedulable") and not just:
                    continue
                used = sum(one["spec"].get("nodeName") == name and resource in limits_of(one) for one in pods)
                if used < int(node["status"]["allocatable"].get(resource, 0)):
                    waiting["spec"]["nodeName"], waiting["status"] = name, {"phase": "Running"}
                    self.store.update(PODS, waiting["metadata"]["name"], waiting, "default")
                    break

    def work(self):
        """A pod comes or ends."""
        some = [stored.key[1] for stored in self.store.list(PODS)]
        if len(some) < 10 and self.draw.random() < 0.6:
            self.pods += 1
            document = pod(f"pod-{self.pods}", "", self.draw.choice(PROFILES), phase="Pending")
            self.store.create(PODS, document, "default")
        elif some:
            self.store.delete(PODS, self.draw.choice(some), "default")

    # people

    def meddle(self):
        """A person changes a MigLayout, or a node."""
        name = self.draw.choice([stored.key[1] for stored in self.store.list(MIG_LAYOUTS)])
        spec = self.store.get(MIG_LAYOUTS, name).document["spec"]
        match self.draw.randrange(6):
            case 0:
                spec["paused"] = not spec.get("paused")
            case 1:
                spec["autopilot"]["dryRun"] = not spec["autopilot"]["dryRun"]
            case 2 if name == "newer":  # the other one is to keep what it remembers
                spec["mode"] = "Fixed" if spec["mode"] == "Auto" else "Auto"
                self._forget(name)
            case 3:
                node = self.draw.choice(NAMES)
                with suppress(StatusError):
                    self.store.delete(NODES, node)
                    for stored in self.store.list(PODS):
                        if stored.document["spec"].get("nodeName") == node:
                            self.store.delete(PODS, stored.key[1], "default")
                    self._new_cards(node)
            case 4:
                for node in {*NAMES} - {*self.one.names()}:
                    self.one.add_nodes(node)
            case _:
                node = self.draw.choice(self.one.names())
                text = self.draw.choice(['{"0":{"2g.20gb@0":"x"}}', "{", '{"9":{"gpu":""}}', ""])
                document = self.one.node(node)
                document["metadata"]["annotations"]["tessera.dev/devices-in-use"] = text
                self.store.update(NODES, node, document)
        self.change(name, **spec)

    def change(self, name, **spec):
        document = self.store.get(MIG_LAYOUTS, name).document
        document["spec"] |= spec
        document["metadata"]["generation"] += 1
        self.store.update(MIG_LAYOUTS, name, document)

    def _forget(self, name):
        """A MigLayout that is no longer in mode Auto remembers nothing."""
        uid = self.store.get(MIG_LAYOUTS, name).document["metadata"]["uid"]
        for key in [key for key in self.cut if key[0] == uid]:
            del self.cut[key]

    def _new_cards(self, node):
        for key in [key for key in self.cut if key[1] == node]:
            del self.cut[key]

    async def live(self):
        while True:
            for act, odds in ((self.work, 0.5), (self.meddle, 0.08), (self.schedule, 1.0)):
                if self.draw.random() < odds:
                    act()
            await asyncio.sleep(0.004)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_anything_may_happen(seed):
    """No device goes that a pod holds, no card is cut within its cool-down or beyond the budget, no more nodes are cordoned than may be; once all is calm,
    nothing is left behind."""

    async def main():
        async with cluster(
            *NAMES, most=2 * AT_ONCE, document=auto_for("inference", {"nvidia.com/pool": "a"})
        ) as one:
            one.store.create(MIG_LAYOUTS, auto_for("newer", {"nvidia.com/gpu.product": "NVIDIA-H200"}))
            world = World(one, seed)
            leaders = MortalLeaders(one, seed, odds=0.15)
            living = asyncio.ensure_future(world.live())
            await asyncio.sleep(SECONDS)
            living.cancel()
            leaders.spare()
            for name in ("inference", "newer"):
                world.change(name, paused=True)
            await one.until(lambda: not one.cordoned)
            await one.until(
                lambda: not any(one.status(name).get("updating") for name in ("inference", "newer"))
            )
            assert not any(one.node(name)["spec"].get("unschedulable") for name in one.names())
            assert world.errors == []

    asyncio.run(main())
