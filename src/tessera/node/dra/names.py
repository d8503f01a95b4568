"""The names by which the cluster knows the driver."""

from typing import Final

DRIVER: Final = "gpu.tessera.dev"
API_VERSION: Final = "resource.k8s.io/v1"

# Keys of device taints
LEAVING: Final = f"{DRIVER}/leaving"  # in use and no longer wanted
UNHEALTHY: Final = f"{DRIVER}/unhealthy"
DEVICE_PLUGIN: Final = f"{DRIVER}/device-plugin"  # a device plugin hands out the same cards


def pool_of(node: str) -> str:
    """The name of a node's pool; not the bare node's: until 1.36.3 the scheduler told drivers' counters apart by pool alone."""
    return f"{node}/tessera"
