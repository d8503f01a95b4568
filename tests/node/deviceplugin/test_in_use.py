"""The node says which devices pods hold: what the kubelet proves, and nothing that is not known."""

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tessera.core.mig.known import KnownLayout
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory
from tessera.inventory.layouts import HeldDevices
from tessera.kube.object_files import FileObject
from tessera.protocol.mig.nodes import IN_USE
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.kubelet import Kubelet
from tests.inventory.objects import pod as pod_document
from tests.node.running import TICK, run, started
from tests.node.sources import test_node_link as link

TWO, THREE = link.TWO, link.THREE
LAYOUT = link.annotation("2g.20gb", "2g.20gb", "3g.30gb")


def said(it: link.Cluster) -> Any:
    return msgspec.json.decode(it.annotations[IN_USE]) if IN_USE in it.annotations else None


def writes(it: link.Cluster) -> int:
    return sum(b"devices-in-use" in one.body for one in it.server.requests if one.method == "PATCH")


async def admit(kubelet: Kubelet, name: str, uid: str, **wanted: int) -> None:
    kubelet.uids[f"ml/{name}"] = uid
    names = {"two": TWO, "three": THREE}
    await kubelet.admit(f"ml/{name}", {names[key]: number for key, number in wanted.items()})


def test_the_node_says_which_devices_pods_hold() -> None:
    """A pod's devices are said with the pod while it has them, and no longer; two writes for each pod at most."""

    async def story(root: Path) -> None:
        async with link.cluster(root, LAYOUT) as it:
            await it.until(lambda: said(it) == {} and it.kubelet.allocatable == {TWO: 8, THREE: 4})
            await admit(it.kubelet, "a", "aaaaaaaa-1111", two=2)
            await admit(it.kubelet, "b", "bbbbbbbb-2222", three=1)
            await it.until(lambda: str(said(it)).count("@") == 3)
            held = [f"{place} {pod}" for card in said(it).values() for place, pod in card.items()]
            assert sorted(one[:8] + one[-8:] for one in held) == ["2g.20gb@aaaaaaaa"] * 2 + [
                "3g.30gb@bbbbbbbb"
            ]
            await it.kubelet.remove("ml/a")
            await it.until(lambda: str(said(it)).count("@") == 1)
            assert "bbbbbbbb" in it.annotations[IN_USE]
            assert writes(it) <= 5

    run(story)


def test_what_is_not_known_is_not_said() -> None:
    """Where the kubelet does not say which devices pods hold, what an earlier plugin said is removed."""

    async def story(root: Path) -> None:
        silent = Kubelet(root, pod_resources=False)
        async with started(silent), link.cluster(root, LAYOUT, says="{}", kubelet=silent) as it:
            await it.until(lambda: IN_USE not in it.annotations)
            await it.until(lambda: it.labels.get(link.STATE) == "success")
            assert said(it) is None

    run(story)


def test_it_can_be_turned_off() -> None:
    """--no-devices-in-use: nothing is said, and what was said is removed."""

    async def story(root: Path) -> None:
        async with link.cluster(root, LAYOUT, says="{}", hide_in_use=True) as it:
            await it.until(lambda: IN_USE not in it.annotations and it.kubelet.allocatable.get(TWO) == 8)
            await admit(it.kubelet, "a", "aaaaaaaa", two=1)
            await it.until(lambda: (it.room("2g.20gb", "free") or 0) == 7)  # it has looked
            assert said(it) is None

    run(story)


def test_after_a_crash_the_kubelet_says_it() -> None:
    """A plugin that has lost its record says what the kubelet counts: the same devices and pods."""

    async def story(root: Path) -> None:
        async with started(Kubelet(root)) as kubelet:
            async with link.cluster(root, LAYOUT, kubelet=kubelet) as it:
                await kubelet.until(lambda kubelet: kubelet.allocatable.get(TWO) == 8)
                await admit(kubelet, "a", "aaaaaaaa", two=2)
                await it.until(lambda: str(said(it)).count("aaaaaaaa") == 2)
                before = said(it)
            (root / "state" / "holders.json").unlink()
            async with link.cluster(root, LAYOUT, kubelet=kubelet) as it:
                await it.until(lambda: said(it) == before)

    run(story)


def test_what_is_called_idle_is_never_held_on_a_node() -> None:
    """Pods come and go at random; whenever one looks, no device of a pod is called idle, and now and then some are known."""

    async def story(root: Path) -> None:
        chance, exact = random.Random(29), 0
        async with link.cluster(root, LAYOUT) as it:
            await it.until(lambda: said(it) == {} and it.kubelet.allocatable == {TWO: 8, THREE: 4})
            bound: dict[str, dict[str, object]] = {}
            for number in range(30):
                if bound and chance.random() < 0.45:
                    gone = chance.choice(sorted(bound))
                    del bound[gone]
                    await it.kubelet.remove(f"ml/{gone}")
                else:
                    name, two = f"p{number}", chance.random() < 0.7
                    resource = TWO if two else THREE
                    one = pod_document(name, "node-1", resource, namespace="ml")
                    one["metadata"]["uid"] = f"{number:08}-uid"
                    if sum(
                        len(held.get(resource, ()))
                        for some in it.kubelet.pods.values()
                        for held in some.values()
                    ) < (8 if two else 4):
                        bound[name] = one
                        await admit(it.kubelet, name, f"{number:08}-uid", **{"two" if two else "three": 1})
                pods = [*bound.values()]
                if chance.random() < 0.25:
                    await it.until(partial(checked, it, pods))
                    exact += 1
                else:
                    await asyncio.sleep(chance.choice([0.0, 0.0, TICK]))
                    checked(it, pods)
        assert exact

    run(story)


def checked(it: link.Cluster, pods: list[dict[str, object]]) -> bool:
    """Whether single devices are known, after a check that none of the others is held."""
    node = it.server.store.get(NODES, "node-1").document
    inventory = Inventory(is_any_gpu)
    objects = [{"kind": "Node", "apiVersion": "v1", **node}, *pods]
    inventory.take(FileObject("here", str(one["kind"]), msgspec.json.encode(one)) for one in objects)
    known = inventory.known("node-1")
    assert isinstance(known, KnownLayout)
    found = HeldDevices(inventory).on("node-1", known)
    held = {
        (resource, name)
        for some in it.kubelet.pods.values()
        for of in some.values()
        for resource, ids in of.items()
        for name in ids
    }
    for resource, slots in known.layout.slots().items():
        for slot in slots:
            if resource not in found.resources and slot not in found.slots:
                assert (resource, slot.uuid("node-1")) not in held
    return bool(found.slots)
