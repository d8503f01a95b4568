"""The names by which the cluster knows the driver."""

from typing import Final

from tessera.core.dra.slices import API_VERSION, DRIVER, LEAVING

__all__ = ["API_VERSION", "DEVICE_PLUGIN", "DRIVER", "LEAVING", "UNHEALTHY", "pool_of"]

# Keys of device taints, beside LEAVING
UNHEALTHY: Final = f"{DRIVER}/unhealthy"
DEVICE_PLUGIN: Final = f"{DRIVER}/device-plugin"  # a device plugin hands out the same cards


def pool_of(node: str) -> str:
    """The name of a node's pool; not the bare node's: until 1.36.3 the scheduler told drivers' counters apart by pool alone."""
    return f"{node}/tessera"
