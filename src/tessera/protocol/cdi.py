"""CDI documents: how a container runtime learns what a device is.

The Container Device Interface is a folder of JSON files that containerd and CRI-O read; a device is asked for by its
fully qualified name, `vendor/class=device`. Only the oldest features are used (environment, device nodes, mounts; no
hooks), and the version is the lowest that has those in use, so that old runtimes understand it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tessera.core.devices.device import Device, Edits
from tessera.core.errors import InvalidInput

# Vendor and class begin with a letter and end with a letter or digit; device names may begin with a digit and have
# colons inside. As in the reference implementation's parser.
_VENDOR_OR_CLASS: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)

# A bind mount as a runtime wants it spelled out; nosuid and nodev because nothing that is mounted needs either
_BIND: Final = ("rbind", "nosuid", "nodev")


class _Named(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    kind: str
    devices: list[_Named]


_SPEC: Final = msgspec.json.Decoder(_Spec)


class InvalidCdiName(InvalidInput):
    """A name that a container runtime would refuse."""


def check_kind(kind: str) -> str:
    """The kind itself, if it is one: `vendor/class`."""
    vendor, slash, cls = kind.partition("/")
    if not slash or not _VENDOR_OR_CLASS.fullmatch(vendor) or not _VENDOR_OR_CLASS.fullmatch(cls):
        raise InvalidCdiName(
            f'"{kind}" is no CDI kind: vendor/class, each a letter, then letters, digits, "_", "-" and "."'
        )
    return kind


def check_device_name(name: str) -> str:
    """The name itself, if a device may have it."""
    if not _DEVICE_NAME.fullmatch(name):
        raise InvalidCdiName(
            f'"{name}" is no CDI device name: letters, digits, and inside also "_", "-", "." and ":"'
        )
    return name


def documents(devices: Iterable[Device]) -> dict[str, dict[str, Any]]:
    """One document per kind, for those devices that are ours to describe; kinds and devices sorted by name."""
    kinds: dict[str, dict[str, Device]] = {}
    for device in devices:
        if device.edits:
            kinds.setdefault(check_kind(device.cdi_kind), {})[check_device_name(device.id)] = device
    return {
        kind: document(kind, {name: named[name].edits for name in sorted(named)})
        for kind, named in sorted(kinds.items())
    }


def encode(document: dict[str, Any]) -> bytes:
    """The bytes of a spec file, to be read by people too."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def names(data: bytes) -> list[str]:
    """The fully qualified names of the devices in a spec file of ours."""
    try:
        read = _SPEC.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not a CDI spec: {error}") from error
    return [f"{read.kind}={device.name}" for device in read.devices]


def document(kind: str, devices: Mapping[str, Edits]) -> dict[str, Any]:
    """The document of one kind: its devices by name, and what each does to a container."""
    return {
        "cdiVersion": _version(kind, devices),
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits(edits)} for name, edits in devices.items()],
    }


def _version(kind: str, devices: Mapping[str, Edits]) -> str:
    """The lowest version that has what is used; the table is the specification's own."""
    if "." in kind.partition("/")[2]:
        return "0.6.0"  # dots in the class
    if any(name[0].isdigit() for name in devices):
        return "0.5.0"  # device names that begin with a digit
    if any(node.path != node.host_path for edits in devices.values() for node in edits.nodes):
        return "0.5.0"  # hostPath of a device node
    return "0.3.0"  # the oldest that runtimes still read


def _edits(edits: Edits) -> dict[str, Any]:
    nodes: list[dict[str, str]] = []
    for node in edits.nodes:
        host = {"hostPath": node.host_path} if node.host_path != node.path else {}
        nodes.append({"path": node.path, **host, "permissions": node.permissions})
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": ["ro" if mount.read_only else "rw", *_BIND],
        }
        for mount in edits.mounts
    ]
    written = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": nodes,
        "mounts": mounts,
    }
    return {key: value for key, value in written.items() if value}
