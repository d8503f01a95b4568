"""Mode Fixed at random: leaders die and pause, calls fail, people change, delete and make MigLayouts, nodes and pods come and go; what must never happen is
looked for at every change of a node."""

import asyncio
import os
import random
from contextlib import suppress

import pytest

from tessera.protocol.mig.rollouts import RESULT, ROLLOUT, Phase
from tessera.serving.http_messages import HangUp
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.controller.layouts.cluster import FastClock, MortalLeaders, cluster, layout
from tests.inventory.objects import LAYOUT, pod
from tests.kube.apiserver import status
from tests.rollout.machine.world import record_in

NAMES = [f"gpu-{number}" for number in range(5)]
PROFILES = ["1g.10gb", "2g.20gb", "3g.30gb", "7g.70gb"]
CHOICES = [{"1g.10gb": 2}, {"1g.10gb": 3}, {"2g.20gb": 1}, {"3g.30gb": 2}, {"1g.10gb": 9}]
LAST = {"1g.10gb": 4, "2g.20gb": 1}  # the layout of the end, which nobody had wanted before
BY_HAND = "version: v1\nmig-configs:\n  selected:\n  - {devices: [0, 1], mig-enabled: true, mig-devices: [7g.70gb]}\n"
AT_ONCE = 2
SEEDS = int(os.environ.get("SEEDS", "4" if os.environ.get("CI") == "true" else "1"))
SECONDS = 1.5  # 150 of the cluster's
ANSWERS = [
    (409, "Conflict"),
    (422, "Invalid"),
    (403, "Forbidden"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
]


class World:
    """People, workloads, nodes and an API server, each a little mad."""

    def __init__(self, one, seed):
        self.one, self.store = one, one.store
        self.draw = random.Random(seed)
        self.clock, self.pods, self.errors = FastClock(), 0, list[str]()
        self.removed = ""  # the node whose record a person removes just now
        self.by_hand: set[str] = set()  # nodes that a person has cordoned, while they had no rollout
        self.store.follow(NODES, self.store.version, self._changed)
        self.failing = 0.03
        one.server.intercept = self._fail
        one.refuses = lambda name: "no room" if self.draw.random() < 0.1 * (self.failing > 0) else ""

    def _fail(self, request):
        if "watch" in request.query or self.draw.random() > self.failing:
            return None
        if self.draw.random() < 0.3:
            raise HangUp
        return status(StatusError(*self.draw.choice(ANSWERS), "it is a bad day"))

    def lose(self, strike):
        """Answers to writes get lost."""

        def after(agent):
            strike(agent)
            if self.draw.random() < self.failing:
                raise HangUp

        return after

    def _changed(self, change):
        """What must never happen."""
        if change.before is None or change.type == "DELETED":
            return
        before, after = change.before.document, change.after.document
        was, now, name = record_in(before), record_in(after), after["metadata"]["name"]
        cordoned = after["spec"].get("unschedulable")
        if name in self.by_hand and not cordoned:
            self.errors.append(f"{name}: uncordoned, which a person had cordoned")
        if was is not None and now is None and not was.cordoned and cordoned and name != self.removed:
            self.errors.append(f"{name}: left cordoned after {was.phase}")
        if was is None or was.phase is not Phase.CORDONED or now is None or now.phase is Phase.CORDONED:
            return
        held = {
            resource: stored.key[1]
            for stored in self.store.list(PODS)
            if stored.document["spec"].get("nodeName") == name
            for resource in limits_of(stored.document)
        }
        gone = set(held) if was.touched is None else held.keys() & set(was.touched)
        if gone:
            self.errors.append(f"{name}: cut, though {[held[one] for one in gone]} hold {gone}")

    # workloads

    def work(self):
        """A pod comes to a node that takes it, or to one that was cordoned just now; or one ends."""
        some = [stored.key[1] for stored in self.store.list(PODS)]
        if some and (len(some) > 8 or self.draw.random() < 0.5):
            self.store.delete(PODS, self.draw.choice(some), "default")
            return
        node, resource = self.draw.choice(self.one.names()), MIG + self.draw.choice(PROFILES)
        document = self.one.node(node)
        record = record_in(document)
        just = record is not None and self.clock.wall() < record.since + 0.5
        has = int(document["status"]["allocatable"].get(resource, 0))
        used = sum(
            resource in limits_of(one.document)
            for one in self.store.list(PODS)
            if one.document["spec"].get("nodeName") == node
        )
        if used < has and (just or not document["spec"].get("unschedulable")):
            self.pods += 1
            self.store.create(PODS, pod(f"pod-{self.pods}", node, resource), "default")

    # people, and nodes

    def meddle(self):
        draw = self.draw
        match draw.randrange(14):
            case 0:
                self.change(paused=draw.random() < 0.3)
            case 1 | 2:
                self.change(layouts=[{"perCard": draw.choice(CHOICES)}])
            case 3:
                most, when = draw.choice([1, AT_ONCE, "40%"]), draw.choice(["Wait", "Drain", "Skip"])
                self.change(
                    rollout={
                        "maxUnavailable": most,
                        "whenInUse": when,
                        "drainTimeout": draw.choice(["5s", "30s"]),
                        "timeout": draw.choice(["3s", "30s"]),
                    }
                )
            case 4:
                self.change(nodeSelector=draw.choice([{"nvidia.com/pool": "a"}, {"only": "here"}]))
            # of one that was deleted a cordon may arrive late, and end at once: no new one knows of it
            case 5 if all(gate.is_set() for gate in self.one.server.gates.values()):
                self.store.delete(MIG_LAYOUTS, "inference")
                self.store.create(MIG_LAYOUTS, fixed())
            case 6:
                self.edit_status()
            case 7:
                for name in {*NAMES} - {*self.one.names()}:
                    self.one.add_nodes(name)
            case _:
                self.meddle_with(draw.choice(self.one.names()))

    def meddle_with(self, name):
        draw, one = self.draw, self.one
        document = one.node(name)
        metadata, spec, record = document["metadata"], document["spec"], record_in(document)
        match draw.randrange(9):
            case 0:
                self.remove(name)
                return
            case 1:
                metadata["labels"]["only"] = draw.choice(["here", "there"])
            case 2:
                metadata["annotations"]["run.ai/mig.config"] = draw.choice([LAYOUT, BY_HAND])
            # the cordon of a node that has a slot is the controller's
            case 3 if record is None and not spec.get("unschedulable") and name not in self.slots():
                spec["unschedulable"] = True
                self.by_hand.add(name)
            case 4 if name in self.by_hand:
                self.by_hand.discard(name)
                spec["unschedulable"] = None
            case 5 if record is not None and name not in self.by_hand:  # out of the rollout
                del metadata["annotations"][ROLLOUT]
                if draw.random() < 0.5 or name not in self.slots():
                    spec["unschedulable"] = None
                else:
                    self.removed = name
            case 6:
                (one.dead.discard if name in one.dead else one.dead.add)(name)
                one.answer(name)
            case 7:
                ready = {"type": "Ready", "status": draw.choice(["True", "Unknown"])}
                document["status"]["conditions"] = [ready]
            case _:
                metadata["annotations"].pop(RESULT, None)
                if draw.random() < 0.3:
                    metadata["annotations"][RESULT] = draw.choice(["{", "[]", '{"at": 1e999}', "\u2028" * 99])
        self.store.update(NODES, name, document)
        self.removed = ""

    def slots(self):
        """The nodes that have one, with what it says about a cordon."""
        try:
            document = self.store.get(MIG_LAYOUTS, "inference").document
        except StatusError:
            return set()
        slots = (document.get("status") or {}).get("updating") or []
        return {slot["name"] for slot in slots if "cordonedBefore" in slot}

    def remove(self, name):
        self.by_hand.discard(name)
        self.store.delete(NODES, name)
        for stored in self.store.list(PODS):
            if stored.document["spec"].get("nodeName") == name:
                self.store.delete(PODS, stored.key[1], "default")

    def edit_status(self):
        document = self.store.get(MIG_LAYOUTS, "inference").document
        known = (document.get("status") or {}).get("updating") or []
        there = {slot if isinstance(slot, str) else slot["name"] for slot in known}
        more = self.draw.choice([["gpu-0"], [*NAMES], ["x" * 253], ["../..", "\u2028", ""], []])
        new = [self.draw.choice([name, {"name": name}]) for name in {*more} - there]
        document["status"] = (document.get("status") or {}) | {"updating": [*known, *new]}
        self.store.update(MIG_LAYOUTS, "inference", document)

    def change(self, **spec):
        document = self.store.get(MIG_LAYOUTS, "inference").document
        document["spec"] |= spec
        document["metadata"]["generation"] += 1
        self.store.update(MIG_LAYOUTS, "inference", document)

    async def live(self):
        while True:
            for act, odds in ((self.work, 0.3), (self.meddle, 0.1)):
                if self.draw.random() < odds:
                    with suppress(StatusError):
                        act()
            await asyncio.sleep(0.004)

    def calm(self):
        """All is well from now on, and one more layout is wanted."""
        self.failing = 0.0
        self.one.dead.clear()
        for name in NAMES:
            if name not in self.one.names():
                self.one.add_nodes(name)
            document = self.one.node(name)
            document["status"]["conditions"] = []
            self.store.update(NODES, name, document)
            self.one.answer(name)
        for stored in self.store.list(PODS):
            self.store.delete(PODS, stored.key[1], "default")
        self.change(
            paused=False,
            layouts=[{"perCard": LAST}],
            nodeSelector={"nvidia.com/pool": "a"},
            rollout={"maxUnavailable": AT_ONCE, "timeout": "2m"},
        )


def limits_of(document):
    return document["spec"]["containers"][0]["resources"]["limits"]


def fixed():
    rollout = {"maxUnavailable": AT_ONCE, "whenInUse": "Wait", "drainTimeout": "30s", "timeout": "30s"}
    return layout(rollout=rollout)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_anything_may_happen(seed):
    """No device goes that a pod holds, no more nodes are cordoned than may be, who has cordoned a node finds it so, and nobody else; once all is calm,
    every node has its layout, and nothing is left behind."""

    async def main():
        async with cluster(*NAMES, most=AT_ONCE, document=fixed()) as one:
            world = World(one, seed)
            leaders = MortalLeaders(one, seed, odds=0.1)
            one.server.after = world.lose(one.server.after)
            living = asyncio.ensure_future(world.live())
            await asyncio.sleep(SECONDS)
            living.cancel()
            leaders.spare()
            world.calm()
            generation = one.store.get(MIG_LAYOUTS, "inference").document["metadata"]["generation"]
            await one.until(lambda: one.status().get("observedGeneration") == generation)
            await one.until(lambda: one.condition("Ready")[0] == "True" and one.status()["current"] == 5)
            await one.until(lambda: one.status()["updating"] == [] and not one.cordoned)
            assert {name for name in NAMES if one.node(name)["spec"].get("unschedulable")} == world.by_hand
            assert world.errors == []
            before = len(one.server.requests)
            await asyncio.sleep(0.3)
            writes = [each.path for each in one.server.requests[before:] if each.method == "PATCH"]
            assert len([path for path in writes if "/events/" not in path]) <= 2, writes

    asyncio.run(main())
