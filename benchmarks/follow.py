"""Hold nodes and pods as Tessera does, and say when they are all there: a process to look at.

`python -m benchmarks.follow KUBECONFIG`
"""

import asyncio
import sys

import uvloop

from tessera.kube.access.choice import find_cluster
from tessera.kube.rest.client import Client
from tessera.kube.view.live import LiveView


async def main(kubeconfig: str) -> None:
    """Follow until killed."""
    async with Client(find_cluster(kubeconfig)) as client, LiveView(client, pods=True).following():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
