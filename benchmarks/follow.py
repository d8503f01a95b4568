"""Hold nodes and pods as Tessera does, and say when they are all there: a process to look at.

`python -m benchmarks.follow KUBECONFIG`
"""

import asyncio
import sys
from collections.abc import Iterable

import uvloop

from tessera.core.kubernetes.pod import Pod
from tessera.core.resources import is_any_gpu
from tessera.kube.access.kubeconfig import find_cluster
from tessera.kube.rest.client import Client
from tessera.kube.view.live import LiveView
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import UNFINISHED_PODS, Key, TableEntry
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of


class Pods(dict[Key, Pod]):
    """The pods that ask for GPUs."""

    def put(self, one: tuple[Key, Pod]) -> None:
        """One that came or changed."""
        key, pod = one
        if any(map(is_any_gpu, (name for each in pod.all_containers() for name in each.resources()))):
            self[key] = pod

    def replace(self, found: Iterable[tuple[Key, Pod]]) -> None:
        """These are all there are."""
        self.clear()
        for one in found:
            self.put(one)


def read(raw: bytes) -> tuple[Key, Pod]:
    """A pod, by its key."""
    one = decode_lean_pod(raw)
    pod = pod_of(one)
    return Key(pod.namespace, (one.metadata.name if one.metadata else None) or ""), pod


async def main(kubeconfig: str) -> None:
    """Follow until killed."""
    pods = Pods()
    entry = TableEntry(read, pods.put, lambda key: pods.pop(key, None), replace=pods.replace)
    async with (
        Client(find_cluster(kubeconfig)) as client,
        LiveView(client).following(),
        Follower(client, {UNFINISHED_PODS: entry}).following(),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
