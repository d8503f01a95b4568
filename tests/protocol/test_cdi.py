"""CDI documents: what container runtimes will read."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing import Registry, Resource

from tessera.core.devices.device import Device, DeviceNode, Edits, Mount
from tessera.protocol import cdi

SCHEMA = Path(__file__).parent.parent / "data" / "cdi"


def validate(document: dict[str, Any]) -> None:
    """Validate against the schema of the CDI project, and refuse fields that it does not know."""
    schema = json.loads((SCHEMA / "schema.json").read_text())
    defs = json.loads((SCHEMA / "defs.json").read_text())
    for definition in (defs["definitions"][name] for name in ("containerEdits", "DeviceNode", "Mount")):
        definition["additionalProperties"] = False
    registry: Registry[Any] = Registry().with_resource(
        "defs.json", Resource.from_contents({"$schema": schema["$schema"], **defs})
    )
    jsonschema.Draft7Validator(schema, registry=registry).validate(document)


def device(
    name: str = "device_0", kind: str = "device.example.com/gpu", edits: Edits | None = None
) -> Device:
    edits = Edits(env=(("DEVICE", name),)) if edits is None else edits
    return Device(name, resource="device.example.com/gpu", cdi_kind=kind, edits=edits)


def test_a_document_is_exactly_this() -> None:
    """Device nodes, mounts and environment are written as the specification has them, devices by name."""
    devices = [
        device(
            f"device_{number}",
            edits=Edits(
                env=(("DEVICE", f"{number}"),),
                nodes=(DeviceNode(f"/dev/mock/device_{number}", f"/dev/mock/device_{number}", "rwm"),),
                mounts=(Mount(f"/usr/lib/device_{number}.so", f"/mock/lib/device_{number}.so"),),
            ),
        )
        for number in (1, 0)
    ]
    written = cdi.documents(devices)
    assert list(written) == ["device.example.com/gpu"]
    document = written["device.example.com/gpu"]
    validate(document)
    assert document["cdiVersion"] == "0.3.0"
    assert [entry["name"] for entry in document["devices"]] == ["device_0", "device_1"]
    assert document["devices"][0]["containerEdits"] == {
        "env": ["DEVICE=0"],
        "deviceNodes": [{"path": "/dev/mock/device_0", "permissions": "rwm"}],
        "mounts": [
            {
                "hostPath": "/mock/lib/device_0.so",
                "containerPath": "/usr/lib/device_0.so",
                "options": ["ro", "rbind", "nosuid", "nodev"],
            }
        ],
    }
    assert json.loads(cdi.encode(document)) == document


@pytest.mark.parametrize(
    ("described", "version"),
    [
        (device(), "0.3.0"),
        (device("0"), "0.5.0"),
        (device(edits=Edits(nodes=(DeviceNode("/dev/a", "/dev/b"),))), "0.5.0"),
        (device(edits=Edits(nodes=(DeviceNode("/dev/a", "/dev/a"),))), "0.3.0"),
        (device(kind="nvidia.com/mig-1g.10gb"), "0.6.0"),
    ],
)
def test_the_version_is_as_low_as_can_be(described: Device, version: str) -> None:
    """A document claims the oldest version that has the features in use."""
    (document,) = cdi.documents([described]).values()
    validate(document)
    assert document["cdiVersion"] == version


def test_kinds_are_apart_and_foreign_devices_left_out() -> None:
    """Each kind is a document of its own; a device without edits is another program's to describe."""
    written = cdi.documents(
        [device(kind="b.example/x"), device(kind="a.example/x"), device("other", edits=Edits())]
    )
    assert list(written) == ["a.example/x", "b.example/x"]
    assert cdi.documents([device(edits=Edits())]) == {}


@pytest.mark.parametrize(
    "kind", ["gpu", "/gpu", "vendor/", "1vendor/gpu", "vendor/-gpu", "vendor/a/b", "ven dor/gpu", "v/c="]
)
def test_bad_kinds_are_refused(kind: str) -> None:
    """A kind that a runtime would refuse never reaches a file."""
    with pytest.raises(cdi.InvalidCdiName, match="is no CDI kind"):
        cdi.documents([device(kind=kind)])


@pytest.mark.parametrize("name", ["a/b", "-a", "a-", "a b", "a=b", "ä", "a\n"])
def test_bad_device_names_are_refused(name: str) -> None:
    """A device name that a runtime would refuse never reaches a file."""
    with pytest.raises(cdi.InvalidCdiName, match="is no CDI device name"):
        cdi.documents([device(name)])


@given(
    st.lists(
        st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,20}[A-Za-z0-9])?", fullmatch=True),
        unique=True,
        min_size=1,
    )
)
def test_every_valid_name_makes_a_valid_document(names: list[str]) -> None:
    """Whatever the names, the document is valid and has every device once."""
    (document,) = cdi.documents([device(name) for name in names]).values()
    validate(document)
    assert [entry["name"] for entry in document["devices"]] == sorted(names)
