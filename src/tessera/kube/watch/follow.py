"""Several collections of a cluster, followed together.

async with Follower(client, {NODES: nodes, UNFINISHED_PODS: pods}).following() as follower:
    ...  # the sinks are complete; `follower.stale()` says what has not been heard of for too long
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from tessera.kube.rest.client import Client
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import Resource, Sink

STALE: Final = 90.0  # seconds without an event; bookmarks come about every minute


class Follower:
    """Keeps sinks equal to collections of an API server."""

    def __init__(self, client: Client, sinks: Mapping[Resource, Sink[Any]]) -> None:
        self._client = client
        self.reflectors = [Reflector(client, resource, sink) for resource, sink in sinks.items()]

    @asynccontextmanager
    async def following(self, *, complete: bool = True) -> AsyncIterator[Self]:
        """Follow: complete when this begins, and right until it ends.

        With `complete=False` it begins at once, for a caller that waits for its sink with a limit of its own.
        """
        for resource in [one.resource for one in self.reflectors if complete and not one.resource.optional]:
            # a reflector would try for ever: an error is raised now
            await self._client.get(resource.path, {**resource.query, "limit": 1})
        try:
            async with asyncio.TaskGroup() as tasks:  # a sink that fails ends the work that reads it
                running = tasks.create_task(self.run())
                try:
                    if complete:
                        await self.synced()
                    yield self
                finally:
                    running.cancel()
        except BaseExceptionGroup as group:
            raise _only(group) from None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in self.reflectors:
                tasks.create_task(one.run())

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for one in self.reflectors:
            await one.synced()

    def relist(self, resource: Resource) -> None:
        """Read a collection again, since its objects are to be read in another way."""
        for one in self.reflectors:
            if one.resource == resource:
                one.relist()

    def missing(self) -> str | None:
        """What keeps the sinks from being complete, in a few words; None once they are."""
        waiting = [
            f"{one.resource.name} not listed yet"
            + (f" ({one.health.last_error})" if one.health.last_error else "")
            for one in self.reflectors
            if not one.health.synced
        ]
        return "; ".join(waiting) or None

    def absent(self, only: Resource | None = None) -> str:
        """The collections that count as empty since the server does not have them, or not for us, with its messages; empty: all are there."""
        return "; ".join(
            f"{one.resource.name}: {one.health.last_error}"
            for one in self.reflectors
            if one.health.absent and only in (None, one.resource)
        )

    def forbidden(self) -> str:
        """What counts as empty since we may not read it, and the server's words: it need not be empty."""
        return "; ".join(
            f"{one.resource.name}: {one.health.last_error}" for one in self.reflectors if one.health.forbidden
        )

    def stale(self) -> str:
        """Why the sinks may no longer be how things are; empty while they are."""
        return "; ".join(
            f"{one.resource.name}: nothing received for more than {STALE:.0f} s: {one.health.last_error}"
            for one in self.reflectors
            if one.age is not None and one.age > STALE
        )


def _only(error: BaseException) -> BaseException:
    """The one error in a group, so that callers meet what was raised; a group of several as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
