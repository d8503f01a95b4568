"""The API server of the benchmarks says what is watched."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
from benchmarks.corpus.serving import WATCHES, CountingApiServer

from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client


async def test_open_watches_are_counted():
    """A watch counts by what it watches, for as long as it is open."""
    async with await CountingApiServer().start() as server:
        address = ServerAddress.parse(server.url, where="test")
        async with Client(Cluster(address)) as client:

            async def until(expected):
                while msgspec.json.decode(await client.get(WATCHES)) != expected:
                    await asyncio.sleep(0)

            await until({})
            async with AsyncExitStack() as watches:
                await watches.enter_async_context(client.watch("/api/v1/pods"))
                await watches.enter_async_context(client.watch("/api/v1/nodes"))
                async with client.watch("/api/v1/pods"):
                    await until({"pods": 2, "nodes": 1})
                await until({"pods": 1, "nodes": 1})
            await until({})
