"""What a container runtime makes of a grant: CDI names looked up in spec files, and what the container then has."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tessera.core.errors import TesseraError
from tessera.simulation.node.kubelet import AdmissionFailed, Grant


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
