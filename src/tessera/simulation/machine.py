"""A node: its object in the API, its kubelet, and the pods that run there.

The node does what a kubelet does about devices. Drivers prepare a pod's claims first; a driver that fails is asked again. Then the
pod's containers get their devices one by one. A pod that cannot have them fails for good (UnexpectedAdmissionError); any other
is Running, though no container is started. The status of a container names its devices, as kubelets write them from 1.36 on.

What a container runtime makes of a grant: CDI names looked up in spec files, and what the container then has.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.pod import Pod
from tessera.core.resources import is_extended
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera.simulation.control_plane.scheduler import read_pod
from tessera.simulation.control_plane.store import Document, Key, StatusError, Store, Stored, has_ended
from tessera.simulation.kubelet import AdmissionFailed, Grant, Held, Kubelet
from tessera.simulation.node_descriptions import NodeSpec
from tessera.simulation.node_drivers import Drivers, Prepared, PrepareFailed, Use, uses


@dataclass(frozen=True, slots=True)
class Container:
    """What a container has of its devices."""

    env: dict[str, str] = field(default_factory=dict)
    device_nodes: list[str] = field(default_factory=list)  # paths in the container
    mounts: dict[str, str] = field(default_factory=dict)  # path in the container → path on the host

    async def run(self, program: str, *arguments: str) -> str:
        """Run a program that was mounted, with the container's environment; what it prints."""
        if program not in self.mounts:
            raise TesseraError(f"{program}: not found")
        process = await asyncio.create_subprocess_exec(
            self.mounts[program],
            *arguments,
            env={"PATH": "/usr/bin:/bin", **self.env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return output.decode(errors="replace")


def start_container(grants: Iterable[Grant], specs: Path) -> Container:
    """What a container has that was given these; `AdmissionFailed` where no spec file of the folder describes a CDI name."""
    started, edits = Container(), _edits(specs)
    for grant in grants:
        started.env.update(grant.envs)
        started.device_nodes.extend(one.container_path for one in grant.devices)
        started.mounts.update({one.container_path: one.host_path for one in grant.mounts})
        for name in (one.name for one in grant.cdi_devices):
            if name not in edits:
                raise AdmissionFailed(f"CDI device injection failed: unresolvable CDI devices {name}")
            edit = edits[name]
            started.env.update(entry.split("=", 1) for entry in edit.get("env", ()))
            started.device_nodes.extend(node["path"] for node in edit.get("deviceNodes", ()))
            started.mounts.update({one["containerPath"]: one["hostPath"] for one in edit.get("mounts", ())})
    return started


def _edits(specs: Path) -> dict[str, dict[str, Any]]:
    """Every device that the spec files describe, by its fully qualified name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(specs.glob("*.json")):
        document = msgspec.json.decode(path.read_bytes())
        for device in document["devices"]:
            found[f"{document['kind']}={device['name']}"] = device["containerEdits"]
    return found


_VERSION: Final = "v1.36.1+tessera"
_RETRY_SECONDS: Final = 1.0  # until a driver is asked again


class SimulatedNode:
    """One node, in a folder of its own."""

    def __init__(self, spec: NodeSpec, store: Store, events: Events, folder: Path) -> None:
        self.spec = spec
        self.name = spec.name
        self.folder = folder  # like /var/lib/kubelet
        self.cdi_folder = folder / "cdi"
        self.state_folder = folder / "state"
        self.host_root = folder / "host"
        self.containers: dict[Key, dict[str, Container]] = {}  # pods that run here, and what they see
        self._store = store
        self._events = events
        self._changed = asyncio.Event()
        self.kubelet = Kubelet(folder, self._changed.set)
        self.drivers = Drivers(folder)
        self._uids: dict[Key, str] = {}  # pods that were handled, whether they run or were rejected

    async def start(self) -> None:
        """Put the node's files in place, start its kubelet, and register it."""
        self._put_host_files()
        await self.kubelet.start()
        spec, taints = self.spec, [dict(taint) for taint in self.spec.taints]
        metadata = {"name": spec.name, "labels": dict(spec.labels), "annotations": dict(spec.annotations)}
        document = {"metadata": metadata, "spec": {"taints": taints}, "status": self._status()}
        self._store.create(NODES, document)

    def was_changed(self) -> bool:
        """Whether the node's object is gone, or has another layout than the node was made with."""
        try:
            annotations = self._store.get(NODES, self.name).document["metadata"].get("annotations") or {}
        except StatusError:
            return True
        return annotations.get(RUNAI_CONFIG) != self.spec.annotations.get(RUNAI_CONFIG)

    async def run(self) -> None:
        stop = self._store.follow(PODS, self._store.version, lambda _: self._changed.set())
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.spec.dra:
                    tasks.create_task(self.drivers.watch())
                while True:
                    self._changed.clear()
                    with contextlib.suppress(StatusError):  # the node's object was deleted
                        self._store.set_status(NODES, self.name, self._status())
                    await self._ensure_pods()
                    if not self._changed.is_set():
                        await self._changed.wait()
        finally:
            stop()

    async def stop(self) -> None:
        """Stop the kubelet, and delete the node's pods, its object and its slices."""
        await self.kubelet.stop()
        for namespace, name in self._bound():
            self._store.delete(PODS, name, namespace)
        with contextlib.suppress(StatusError):
            self._store.delete(NODES, self.name)
        for one in self._store.list(RESOURCE_SLICES):
            if one.document["spec"].get("nodeName") == self.name:
                self._store.delete(RESOURCE_SLICES, one.key[1])

    # the node's object

    def _status(self) -> Document:
        devices, healthy = self.kubelet.capacity, self.kubelet.allocatable
        base = dict(self.spec.resources)
        return {
            "capacity": base | {name: str(count) for name, count in devices.items()},
            "allocatable": base | {name: str(count) for name, count in healthy.items()},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": _VERSION, "operatingSystem": "linux", "architecture": "amd64"},
        }

    # its pods

    def _bound(self) -> dict[Key, Stored]:
        pods = self._store.list(PODS)
        return {one.key: one for one in pods if (one.document.get("spec") or {}).get("nodeName") == self.name}

    async def _ensure_pods(self) -> None:
        bound = self._bound()
        there = {
            key: pod["metadata"]["uid"] for key, one in bound.items() if not has_ended(pod := one.document)
        }
        for key in [key for key, uid in self._uids.items() if there.get(key) != uid]:
            del self._uids[key]  # gone, or another pod of the same name
            self.containers.pop(key, None)
            await self.kubelet.remove("/".join(key))
            await self.drivers.unprepare("/".join(key))
        for key in [key for key in there if key not in self._uids]:
            self._uids[key] = there[key]
            await self._admit(bound[key])

    async def _admit(self, stored: Stored) -> None:
        key, name = stored.key, "/".join(stored.key)
        self.kubelet.uids[name] = self._uids[key]
        try:
            pod = read_pod(stored)
            claimed = uses(stored.document)
            prepared = await self._prepare(name, key[0], claimed)
            self.containers[key] = await self._start_containers(name, pod, claimed, prepared)
        except PrepareFailed as error:
            self._warn(stored, "FailedPrepareDynamicResources", str(error))
            del self._uids[key]
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._changed.set)
            return
        except (AdmissionFailed, InvalidInput) as error:
            await self.kubelet.remove(name)
            message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
            reason = "UnexpectedAdmissionError"
            self._warn(stored, reason, message)
            self._set_status(key, {"phase": "Failed", "reason": reason, "message": message})
            return
        held = self.kubelet.pods.get(name, {})
        running = [_running(one.name, held.get(one.name, {})) for one in pod.containers]
        types = ("PodScheduled", "Ready", "ContainersReady")
        known = {each["type"]: each for each in stored.document["status"].get("conditions") or ()}
        conditions = [{**known.get(one, {}), "type": one, "status": "True"} for one in types]
        now = {"phase": "Running", "conditions": conditions, "containerStatuses": running}
        # what the status says of claims is not the kubelet's to change
        kept = {"resourceClaimStatuses", "extendedResourceClaimStatus"}
        claims = {name: one for name, one in stored.document["status"].items() if name in kept}
        self._set_status(key, claims | now)

    def _warn(self, pod: Stored, reason: str, message: str) -> None:
        self._events.record("kubelet", pod.document, reason, message, warning=True)

    async def _prepare(self, pod: str, namespace: str, claimed: Mapping[str, list[Use]]) -> Prepared:
        names = {each.claim for some in claimed.values() for each in some}
        try:
            claims = [self._store.get(RESOURCE_CLAIMS, one, namespace) for one in sorted(names)]
        except StatusError as error:
            raise PrepareFailed(str(error)) from error
        return await self.drivers.prepare(pod, claims)

    async def _start_containers(
        self, name: str, pod: Pod, claimed: Mapping[str, list[Use]], prepared: Prepared
    ) -> dict[str, Container]:
        started: dict[str, Container] = {}
        for one in pod.all_containers():
            wanted = {
                resource: int(amount.value)
                for resource in one.resources()
                if (amount := one.asked(resource)) and self._is_device(resource)
            }
            grants = await self.kubelet.admit(name, wanted, container=one.name) if wanted else {}
            claims = [each.grant(prepared) for each in claimed[one.name]]
            started[one.name] = start_container([*grants.values(), *claims], self.cdi_folder)
            if one in pod.init_containers and not one.restartable:
                self.kubelet.pods.get(name, {}).pop(one.name, None)  # its devices go to the next container
        return started

    def _is_device(self, resource: str) -> bool:
        """Whether a device plugin must provide a resource; on a node with DRA none does."""
        return is_extended(resource) and resource not in self.spec.resources and not self.spec.dra

    def _set_status(self, key: Key, status: Document) -> None:
        try:
            self._store.set_status(PODS, key[1], status, key[0])
        except StatusError:
            self._changed.set()  # deleted meanwhile: the next round cleans up

    # its files

    def _put_host_files(self) -> None:
        """Make the files of listed devices. A pipe stands for a device node, since it needs no privileges."""
        for device in self.spec.devices.static if self.spec.devices else ():
            for node in device.edits.nodes:
                os.mkfifo(self._on_host(node.host_path))
            for mount in device.edits.mounts:
                self._on_host(mount.host_path).touch()

    def _on_host(self, path: str) -> Path:
        there = self.host_root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        return there


def _running(name: str, held: Held) -> dict[str, Any]:
    status: dict[str, Any] = {"name": name, "ready": True, "started": True, "state": {"running": {}}}
    if held:
        status["allocatedResourcesStatus"] = [
            {"name": resource, "resources": [{"resourceID": one, "health": "Healthy"} for one in ids]}
            for resource, ids in held.items()
        ]
    return status
