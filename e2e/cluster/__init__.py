"""A real Kubernetes cluster on this machine, in seconds, with nothing left behind.

Here belongs what it takes to have a cluster: the table of programs (`versions`) and how they get into the cache
(`programs`), how each is started (`control_plane`, `node`), how processes are found again and stopped (`processes`,
`folder`), and what tests do with a cluster (`client`, and `cluster` for one's own). Nothing in here knows Tessera: it is what
Tessera is tested on, so it shares no code with it.
"""

from e2e.cluster.api import Api, ApiError, Object
from e2e.cluster.client import (
    Client,
    KubectlError,
    condition_of,
    pods_path,
    schedulable,
    unschedulable_message,
)
from e2e.cluster.cluster import Cluster, ClusterWithNode
from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.existing import ExistingCluster
from e2e.cluster.folder import Folder
from e2e.cluster.images import BUSYBOX
from e2e.cluster.programs import program

__all__ = [
    "BUSYBOX",
    "Api",
    "ApiError",
    "Client",
    "Cluster",
    "ClusterError",
    "ClusterWithNode",
    "ExistingCluster",
    "Folder",
    "KubectlError",
    "Object",
    "Unavailable",
    "condition_of",
    "pods_path",
    "program",
    "schedulable",
    "unschedulable_message",
]
