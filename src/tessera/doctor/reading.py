"""Reading objects one by one: what may not be read is remembered as unseen, what cannot be understood as odd."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.kube.watch.listing import list_all
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.metadata import Named

T = TypeVar("T")


class Reader:
    """Reads objects for the fields of the evidence."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.unseen: dict[str, str] = {}  # field → why it could not be looked at
        self.odd: dict[str, list[str]] = defaultdict(list)  # field → objects that cannot be read, and why

    async def one(self, field: str, kind: type[T], path: str) -> T | None:
        """An object; None where there is none."""
        found: T | None = None
        with self.looking(field):
            try:
                found = decode(await self.client.get(path), kind)
            except ApiError as error:
                if not error.is_not_found:
                    raise
        return found

    async def all(self, field: str, kind: type[T], path: str, labels: str = "") -> tuple[T, ...]:
        """Every object of a collection, or those with these labels."""
        query = {"labelSelector": labels} if labels else {}
        return await self.each(field, path, query, lambda raw: decode(raw, kind))

    async def each(
        self, field: str, path: str, query: dict[str, str], read: Callable[[bytes], T]
    ) -> tuple[T, ...]:
        """A list without the objects that cannot be read; of a kind that the API server does not have there are none."""
        found: list[T | None] = []
        with self.looking(field):
            try:
                found = await list_all(self.client, path, query, lambda raw: self.readable(field, raw, read))
            except ApiError as error:
                if not error.is_not_found:
                    raise
        return tuple(one for one in found if one is not None)

    def readable(self, field: str, raw: bytes | msgspec.Raw, read: Callable[[bytes], T]) -> T | None:
        """An object, or None for one that is odd: it is remembered, and the others are looked at."""
        try:
            return read(bytes(raw))
        except InvalidInput as error:
            self.odd[field].append(f"{_name_of(raw)}: {error}")
            return None

    @contextlib.contextmanager
    def looking(self, field: str) -> Iterator[None]:
        """What the API server will not show, or not in a way that can be read, is unseen."""
        try:
            yield
        except (KubeError, InvalidInput) as error:
            self.unseen[field] = reason(error)


def reason(error: Exception) -> str:
    """Why something could not be looked at."""
    return error.message if isinstance(error, ApiError) else str(error)


def decode(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """An object as this kind."""
    return objects.decoder(kind)(raw)


def _name_of(raw: bytes | msgspec.Raw) -> str:
    try:
        metadata = decode(raw, Named).metadata
    except InvalidInput:
        return "one without a name"
    return "/".join(part for part in (metadata.namespace, metadata.name) if part)
