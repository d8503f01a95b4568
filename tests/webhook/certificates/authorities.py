"""A cluster's two objects without a cluster, and a signer that needs no other process."""

import asyncio
import time
from collections.abc import Mapping

from tessera.kube.clock import Clock
from tessera.kube.errors import ApiError
from tessera.webhook.certificates import pki
from tessera.webhook.certificates.signer import Made, Question, SigningFailed
from tessera.webhook.certificates.store import Conflict, KubeStore, StoredBundles, StoredSecret


async def ask(question: Question) -> Made:
    """Answer in a thread what the program would answer."""
    return await asyncio.to_thread(pki.answer, question)


class FakeStore(KubeStore):
    """The Secret and the webhook configuration in memory, with their versions."""

    secret_name = "Secret gpu-webhook/gpu-webhook-ca"

    def __init__(self, webhooks: tuple[str, ...] = ("gpu-allocation.k8s.io",)) -> None:
        self.secret: StoredSecret | None = None
        self.bundles: StoredBundles | None = StoredBundles("0", dict.fromkeys(webhooks, b""))
        self.version = 0
        self.conflicts = 0
        self.down = False
        self.hidden = False  # the right to read the webhook configuration is gone
        self.ahead = 0.0  # of the API server's clock
        self.published: list[tuple[float, bytes]] = [(0.0, b"")]  # since when, which bundle

    def _next(self, version: str | None, found: StoredSecret | StoredBundles | None) -> str:
        if (found.version if found else None) != version:
            self.conflicts += 1
            raise Conflict("changed meanwhile")
        self.version += 1
        return str(self.version)

    async def _call(self) -> None:
        await asyncio.sleep(0)  # others may come in between
        if self.down:
            raise SigningFailed("the API server cannot be reached")

    def server_date(self) -> float | None:
        return float(int(time.time() + self.ahead))

    async def read_bundles(self) -> StoredBundles | None:
        await self._call()
        if self.hidden:
            raise ApiError(403, "Forbidden", "mutatingwebhookconfigurations is forbidden")
        return self.bundles

    async def read_secret(self) -> StoredSecret | None:
        await self._call()
        return self.secret

    async def create_secret(self, data: Mapping[str, bytes | None]) -> None:
        await self._call()
        version = self._next(None, self.secret)
        self.secret = StoredSecret(version, {k: v for k, v in data.items() if v is not None})

    async def write_secret(self, version: str, data: Mapping[str, bytes | None]) -> None:
        await self._call()
        version = self._next(version, self.secret)
        merged = {**(self.secret.data if self.secret else {}), **data}
        self.secret = StoredSecret(version, {k: v for k, v in merged.items() if v is not None})

    async def publish(self, found: StoredBundles, bundle: bytes) -> None:
        await self._call()
        version = self._next(found.version, self.bundles)
        self.bundles = StoredBundles(version, dict.fromkeys(found.bundles, bundle))
        self.published.append((time.monotonic(), bundle))

    @property
    def bundle(self) -> bytes:
        assert self.bundles is not None
        (one,) = set(self.bundles.bundles.values())
        return one


class JumpingClock(Clock):
    """A clock that can be told to jump, and whose sleeps are short."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        return time.time() + self.ahead
