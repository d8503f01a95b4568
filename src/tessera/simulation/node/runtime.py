"""What a container runtime makes of a grant: CDI names looked up in spec files, and what the container then has."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tessera.core.errors import TesseraError
from tessera.simulation.node.kubelet import Grant


class Unresolvable(TesseraError):
    """A CDI name that no spec file describes."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container's devices and all that came with them."""

    cdi_names: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    device_nodes: tuple[str, ...] = ()  # paths in the container
    mounts: tuple[tuple[str, str], ...] = ()  # path in the container, path on the host

    async def run(self, program: str, *arguments: str) -> str:
        """Run a program that was mounted, with the container's environment; what it prints."""
        path = dict(self.mounts).get(program)
        if path is None:
            raise TesseraError(f"{program}: not found")
        process = await asyncio.create_subprocess_exec(
            path,
            *arguments,
            env={"PATH": "/usr/bin:/bin", **dict(self.env)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return said.decode(errors="replace")


def start_container(grants: Iterable[Grant], specs: Path) -> Container:
    """What a container has that was given these, with the spec files of one folder."""
    env: dict[str, str] = {}
    names: list[str] = []
    nodes: list[str] = []
    mounts: list[tuple[str, str]] = []
    for grant in grants:
        env |= grant.envs
        nodes += [one.container_path for one in grant.devices]
        mounts += [(one.container_path, one.host_path) for one in grant.mounts]
        names += [one.name for one in grant.cdi_devices]
    edits = _edits(specs) if names else {}
    for name in names:
        if name not in edits:
            raise Unresolvable(f"CDI device injection failed: unresolvable CDI devices {name}")
        edit = edits[name]
        env |= dict(entry.split("=", 1) for entry in edit.get("env", ()))
        nodes += [node["path"] for node in edit.get("deviceNodes", ())]
        mounts += [(mount["containerPath"], mount["hostPath"]) for mount in edit.get("mounts", ())]
    return Container(
        tuple(names), tuple(env.items()), tuple(dict.fromkeys(nodes)), tuple(dict.fromkeys(mounts))
    )


def _edits(specs: Path) -> dict[str, dict[str, Any]]:
    """Every device that the spec files describe, by its fully qualified name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(specs.glob("*.json")):
        document = msgspec.json.decode(path.read_bytes())
        for device in document["devices"]:
            found[f"{document['kind']}={device['name']}"] = device["containerEdits"]
    return found
