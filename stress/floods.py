"""Floods of large objects by a tenant, or by a node's credentials, against processes with the chart's memory limits.

    python -m stress.floods [--after SECONDS] [NAME…]     part of `python -m stress.tenants`

Each process runs in a control group, beside a stand-in API server. It has to live, whether the objects come while it follows the cluster
or are there when it starts. When they are gone, it has to give their memory back. Only root can run this.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from stress.limited import limited
from stress.victims import (
    CALM,
    DASHBOARD_MIB,
    FULL_MIB,
    LAYOUTS_MIB,
    MOST_KEPT,
    PATIENCE_MIB,
    command_of,
    resident_mib,
    run_named,
    running,
    write_files,
)
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import EVENTS, MIG_LAYOUTS, NAMESPACES, NODES, PODS, ResourceType
from tessera.simulation.control_plane.store import StatusError, Store

Document = dict[str, Any]

_HONEST: Final = 10  # pods that wait besides
_FLOOD: Final = 20.0  # seconds to read the objects; a process that is killed by them was after 4
_LOOKS: Final = 45.0  # seconds in which the autopilot looks at Events
_SLICE: Final = "nvidia.com/mig-2g.20gb"
_CONFIG: Final = "fallback: {when: full, patience: 1m}\n"


# The objects


def _pod(number: int, limits: Document, **spec: Any) -> Document:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "flood",
        "uid": f"owner-{number}",
        "controller": True,
    }
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    resources = {"limits": limits, "requests": limits}
    return {
        "metadata": {
            "name": f"flood-{number}",
            "namespace": "team",
            "generateName": "flood-",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "main", "resources": resources}], **spec},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


def with_resources(number: int) -> Document:
    """A pod with 9,000 resources that nobody else has."""
    return _pod(number, {_SLICE: "1", **{f"ex.io/some-name-{number}-{at}": "1" for at in range(9000)}})


def _words(number: int) -> list[str]:
    return [
        f"a-value-of-sixty-characters-that-is-in-no-other-pod-{number:04}-{at:05}" for at in range(14_000)
    ]


def with_preference(number: int) -> Document:
    """A pod with a preferred affinity of 14,000 values."""
    conditions = [{"key": "zone", "operator": "In", "values": _words(number)}]
    preferred = [{"weight": 1, "preference": {"matchExpressions": conditions}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return _pod(number, {_SLICE: "1"}, affinity=affinity)


def of_all_shapes(number: int) -> Document:
    """A pod whose tolerations, owners, required affinity, or annotations have a megabyte."""
    words, pod = _words(number), _pod(number, {_SLICE: "1"})
    metadata, spec = pod["metadata"], pod["spec"]
    match number % 4:
        case 0:
            spec["tolerations"] = [{"key": word, "operator": "Exists"} for word in words[:8000]]
        case 1:
            metadata["ownerReferences"][0]["uid"] = "".join(words)
        case 2:
            conditions = [{"key": "zone", "operator": "NotIn", "values": words}]
            terms = {"nodeSelectorTerms": [{"matchExpressions": conditions}]}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        case 3:
            text = "".join(words)[: 250 * 1024]
            metadata["annotations"] = {"gpu-webhook.k8s.io/fallback": f"2g.20gb->1g.10gb,{text}"}
    return pod


def just_small_enough(number: int) -> Document:
    """A pod whose affinity is just kept: many of these are as large as a few of the others."""
    conditions = [{"key": "zone", "operator": "NotIn", "values": [f"{number}-{at}" for at in range(370)]}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": conditions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return _pod(number, {_SLICE: "1"}, affinity=affinity)


def an_event(number: int) -> Document:
    """An Event of a megabyte about a ReplicaSet that does not exist."""
    about = {"kind": "ReplicaSet", "namespace": "team", "name": f"none-{number}", "uid": str(number)}
    return {
        "metadata": {"name": f"flood-{number}", "namespace": "team"},
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": (f"{number} " * 300_000)[: 10**6],
        "lastTimestamp": "2099-01-01T00:00:00Z",
    }


def with_layout(number: int) -> Document:
    """A node with another layout of 200 KiB each time."""
    return _node("flood-0", {"run.ai/mig.config": (f"{number} " * 100_000)[: 200 * 1024]})


def _node(name: str, annotations: Document) -> Document:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/mig.strategy": "mixed",
        "pool": "inference",
    }
    has = {_SLICE: "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
    status = {
        "allocatable": has,
        "capacity": has,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {}, "status": status}


# The processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """Objects that are too many, and the process that reads them."""

    name: str
    process: str
    mib: int  # the chart's limit
    make: Callable[[int], Document]
    number: int
    kind: ResourceType = PODS
    seconds: float = _FLOOD
    pace: float = 0.02  # seconds between two objects
    most_kept: float = MOST_KEPT  # of the memory before, when the objects are gone


FLOODS: Final = (
    Flood(
        name="resources-controller",
        process="controller",
        mib=PATIENCE_MIB,
        make=with_resources,
        number=80,
    ),
    Flood(name="resources-webhook", process="webhook", mib=FULL_MIB, make=with_resources, number=130),
    Flood(
        name="resources-dashboard",
        process="dashboard",
        mib=DASHBOARD_MIB,
        make=with_resources,
        number=100,
    ),
    Flood(
        name="preference-controller",
        process="controller",
        mib=PATIENCE_MIB,
        make=with_preference,
        number=150,
    ),
    Flood(name="preference-webhook", process="webhook", mib=FULL_MIB, make=with_preference, number=150),
    Flood(name="shapes-controller", process="controller", mib=PATIENCE_MIB, make=of_all_shapes, number=300),
    Flood(
        name="small-controller",
        process="controller",
        mib=PATIENCE_MIB,
        make=just_small_enough,
        number=2000,
        pace=0.005,
        most_kept=1.25,  # 2,000 pods without anything large leave 1.22: their number does it, not their bytes
    ),
    Flood(name="shapes-webhook", process="webhook", mib=FULL_MIB, make=of_all_shapes, number=300),
    Flood(
        name="events-controller",
        process="layouts",
        mib=LAYOUTS_MIB,
        make=an_event,
        number=250,
        kind=EVENTS,
        seconds=_LOOKS,
    ),
    Flood(
        name="layouts-dashboard",
        process="dashboard",
        mib=DASHBOARD_MIB,
        make=with_layout,
        number=300,
        kind=NODES,
    ),
)


def _namespace(flood: Flood) -> str:
    return "team" if flood.kind.namespaced else ""


async def _make(store: Store, flood: Flood, numbers: Iterable[int]) -> None:
    """Make objects, or change those that are there."""
    for number in numbers:
        document = flood.make(number)
        try:
            store.create(flood.kind, document, _namespace(flood))
        except StatusError:
            store.update(flood.kind, document["metadata"]["name"], flood.make(number), _namespace(flood))
        await asyncio.sleep(flood.pace)


async def _delete(store: Store, flood: Flood, numbers: Iterable[int]) -> None:
    for number in numbers:
        with suppress(StatusError):  # of a node that changes there is one
            store.delete(flood.kind, f"flood-{number}", _namespace(flood))
        await asyncio.sleep(flood.pace)


async def run(flood: Flood, after: float) -> str:
    """Flood a process, and one that starts meanwhile; say what it took."""
    server = ApiServer()
    store = server.store
    async with await server.start():
        for name in ("team", "gpu-webhook"):
            store.create(NAMESPACES, {"metadata": {"name": name}})
        for name in ("a", "b"):
            store.create(NODES, _node(name, {}))
        if flood.process in ("layouts", "controller"):
            spec = {"nodeSelector": {"pool": "inference"}, "mode": "Auto", "autopilot": {"dryRun": True}}
            store.create(MIG_LAYOUTS, {"metadata": {"name": "auto"}, "spec": spec})
        for number in range(_HONEST):  # so that a process has done before what it does with pods
            store.create(PODS, _pod(-1 - number, {_SLICE: "1"}), "team")
        with tempfile.TemporaryDirectory() as name, limited(flood.mib) as group:
            folder = Path(name)
            write_files(folder, server.url, _CONFIG)
            command = command_of(flood.process, folder)
            with running(group, command) as process:
                await asyncio.sleep(CALM)
                # what it takes to read such objects, a few at a time, is no matter of their number
                await _make(store, flood, range(flood.number // 10))
                await _delete(store, flood, range(flood.number // 10))
                await asyncio.sleep(flood.seconds / 2)
                idle = resident_mib(process)
                await _make(store, flood, range(flood.number))
                await asyncio.sleep(flood.seconds)
                there = resident_mib(process)
            with running(group, command) as process:
                await asyncio.sleep(flood.seconds)
                started = resident_mib(process)
                await _delete(store, flood, range(flood.number))
                await asyncio.sleep(after)
                gone = resident_mib(process)
            peak, kills = group.peak_mib, group.kills
    said = (
        f"{flood.number} objects, MiB: {idle:.0f} after a tenth of them, {there:.0f} with them, {started:.0f} started with them, "
        f"{gone:.0f} when they were gone for {after:.0f} s, {peak:.0f} of {flood.mib} at the peak; {kills} killed"
    )
    is_wrong = kills or not idle or not there or not started or gone > flood.most_kept * idle
    return f"WRONG: {said}" if is_wrong else said


def main(arguments: Sequence[str] | None = None) -> int:
    """All of them, or some by name; 1 where something did not hold."""
    return run_named("floods", {flood.name: partial(run, flood) for flood in FLOODS}, arguments)


if __name__ == "__main__":
    sys.exit(main())
