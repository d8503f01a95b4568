"""`python -m benchmarks.corpus.serving FILE…`: the stand-in API server of the simulation with the objects of some files.

It prints its address. What it takes itself is not measured: the tools that ask it are other processes. At `/watches` it says how many
watches of each kind are open.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.processes import Running
from tessera.serving.http_messages import Request, Response, Stream
from tessera.simulation.control_plane.apiserver import ApiServer, Target
from tessera.simulation.control_plane.kinds import KINDS, ResourceType

WATCHES: Final = "/watches"

_MORE: Final = (
    ResourceType("apps/v1", "daemonsets", "DaemonSet"),
    ResourceType("v1", "resourcequotas", "ResourceQuota"),
    ResourceType("nvidia.com/v1", "clusterpolicies", "ClusterPolicy", namespaced=False),
)


class CountingApiServer(ApiServer):
    """The stand-in, which also counts the watches."""

    def __init__(self) -> None:
        super().__init__()
        self.bookmark_seconds = 15.0  # clients wait for one for 65 s, and this server may be busy
        self._open: Counter[str] = Counter()  # by the plural of the kind

    async def answer(self, request: Request) -> Response | Stream:
        if request.path == WATCHES:
            return Response(msgspec.json.encode(+self._open))
        return await super().answer(request)

    async def watch(self, target: Target, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        plural = target.kind.plural
        self._open[plural] += 1
        try:
            async with aclosing(super().watch(target, query)) as watched:
                async for lines in watched:
                    yield lines
        finally:
            self._open[plural] -= 1


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """An API server in a process of its own, and a kubeconfig for it."""

    url: str
    kubeconfig: str


@contextmanager
def served(*files: str) -> Iterator[ServedCluster]:
    """Have an API server serve the objects of some files."""
    process = Running([sys.executable, "-m", "benchmarks.corpus.serving", *files])
    try:
        url = process.line()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": {"server": url}}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "current-context": "bench",
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(document, file)
            file.flush()
            yield ServedCluster(url, file.name)
    finally:
        process.stop()


async def serve(files: list[str]) -> None:
    """Serve until the process is ended."""
    server = CountingApiServer()
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
