"""Hold nodes and pods as Tessera does, and say when they are all there: a process to look at.

`python -m benchmarks.follow KUBECONFIG`
"""

import asyncio
import sys

import uvloop

from tessera.kube.access.choice import find_cluster
from tessera.kube.rest.client import Client
from tessera.kube.watch.view import LiveView


async def main(kubeconfig: str) -> None:
    """Follow until killed."""
    async with Client(find_cluster(kubeconfig)) as client:
        view = LiveView(client, pods=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(view.run())
            await view.synced()
            print("ready", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
