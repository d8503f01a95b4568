"""`python -m benchmarks.corpus.serving FILE…`: the stand-in API server of the simulation with the objects of some files.

It prints its address. What it takes itself is not measured: the tools that ask it are other processes.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

import msgspec

from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import KINDS, ResourceType

_MORE: Final = (
    ResourceType("apps/v1", "daemonsets", "DaemonSet"),
    ResourceType("v1", "resourcequotas", "ResourceQuota"),
    ResourceType("nvidia.com/v1", "clusterpolicies", "ClusterPolicy", namespaced=False),
)


async def serve(files: list[str]) -> None:
    """Serve until the process is ended."""
    server = ApiServer()
    kinds = {kind.kind: kind for kind in (*KINDS, *_MORE)}
    server.kinds |= {(kind.prefix, kind.plural): kind for kind in _MORE}
    for file in files:
        for document in msgspec.json.decode(Path(file).read_bytes())["items"]:
            kind, metadata = kinds[document["kind"]], document["metadata"]
            key = metadata.get("namespace", ""), metadata["name"]
            # `create` would give it another UID, by which claims name their pods
            server.store._put(kind, key, document, "ADDED")  # noqa: SLF001
    await server.start()
    print(server.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
