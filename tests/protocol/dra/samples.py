"""ResourceSlices and DeviceClasses as the API server has them."""

import json
from typing import Any

DRIVER = "gpu.example.com"


def device(name: str, *, taint: str = "", where: Any = None, consumes: Any = None, **attributes: Any) -> Any:
    """A device; attributes by the type of their value, `memory` is a capacity."""
    capacity = {"memory": {"value": attributes.pop("memory")}} if "memory" in attributes else {}
    types = {str: "string", int: "int", bool: "bool"}
    return {
        "name": name,
        "attributes": {key: {types[type(value)]: value} for key, value in attributes.items()},
        "capacity": capacity,
        **({"taints": [{"key": "ill", "effect": taint}]} if taint else {}),
        **({"consumesCounters": consumes} if consumes else {}),
        **(where or {}),
    }


def slice_(
    name: str,
    *devices: Any,
    node: str | None = "n",
    pool: str = "",
    generation: int = 1,
    total: int = 1,
    driver: str = DRIVER,
    **spec: Any,
) -> dict[str, Any]:
    """A ResourceSlice."""
    where = {"nodeName": node} if node else {}
    content = {"devices": list(devices)} if devices else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool or node or "p", "generation": generation, "resourceSliceCount": total},
            **where,
            **content,
            **spec,
        },
    }


def class_(name: str, *expressions: str, resource: str = "", created: str = "") -> dict[str, Any]:
    """A DeviceClass."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": text}} for text in expressions]}
    if resource:
        spec["extendedResourceName"] = resource
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, **({"creationTimestamp": created} if created else {})},
        "spec": spec,
    }


def raw(document: Any) -> bytes:
    return json.dumps(document).encode()
