"""The keys of tickets, in a Secret that webhook and controller share: the controller's leader writes it, the webhook reads it.

The leader publishes each key as the next one before it is used, and the controller still accepts the previous one. So the two
need not see a change at the same moment.
"""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.core.requests.tickets import KEY_BYTES, TicketKey, TicketKeys, TicketMaker, hour_of
from tessera.kube.clock import Once
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.kubernetes.objects import decoder
from tessera.protocol.kubernetes.webhook import Secret

_log: Final = logging.getLogger("tessera.kube")

SECRET: Final = "tessera-ticket-key"  # in the controller's namespace # noqa: S105 # a name
PERIOD: Final = 7 * 24 * 3600.0  # seconds for which a key is in use; for as long again it is accepted
TICK: Final = 1.0  # seconds between two checks of the clock; without a key, every second one reads the Secret
_POLL: Final = (15.0, 30.0)  # seconds between two reads, at random: replicas do not ask at the same time

_decode: Final = decoder(Secret)


@dataclass(frozen=True, slots=True)
class TicketSecret:
    """The Secret as the API server has it. What is not a key there counts as absent."""

    version: str = ""
    previous: TicketKey | None = field(default=None, repr=False)
    current: TicketKey | None = field(default=None, repr=False)
    following: TicketKey | None = field(default=None, repr=False)
    rotated: float = 0.0  # Unix time since when the current key is in use

    @classmethod
    def read(cls, raw: bytes) -> "TicketSecret":
        found = _decode(raw)
        data = found.data or {}
        return cls(
            found.metadata.resource_version,
            _key(data, "previous"),
            _key(data, "current"),
            _key(data, "next"),
            _time(data.get("rotated", b"")),
        )

    @property
    def keys(self) -> TicketKeys | None:
        """The keys, if they are complete."""
        if self.current is None or self.following is None:
            return None
        return TicketKeys(self.current, self.following, self.previous)

    def desired(self, wall: float, make: Callable[[], bytes]) -> "TicketSecret":
        """The Secret as it has to be now: complete, and with the next key in use when the current one was for long enough.

        A time that is far ahead was written by a wrong clock, and counts as long ago.
        """
        if self.current is None:
            found = replace(self, current=self.following or TicketKey(make()), following=None, rotated=wall)
        elif abs(wall - self.rotated) >= PERIOD:
            current = self.following or TicketKey(make())
            found = replace(self, previous=self.current, current=current, following=None, rotated=wall)
        else:
            found = self
        return found if found.following is not None else replace(found, following=TicketKey(make()))

    def document(self) -> dict[str, Any]:
        """The Secret as JSON; with its version, a patch fails when another was first."""
        keys = {"previous": self.previous, "current": self.current, "next": self.following}
        data = {name: one.secret for name, one in keys.items() if one is not None}
        version = {"resourceVersion": self.version} if self.version else {}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": SECRET, **version},
            "data": {**data, "rotated": str(int(self.rotated)).encode()},
        }


def secret_path(namespace: str) -> str:
    return path_of("v1", "secrets", namespace=namespace, name=SECRET)


class TicketFollower:
    """Keeps the key in use and the hour in the webhook's view, by a read of the Secret now and then."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        offers: Offers,
        *,
        tick: float = TICK,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._offers = offers
        self._clock = client.clock
        self._uniform = uniform
        self._tick = tick
        self._key: TicketKey | None = None
        self._due = 0.0  # when the Secret is read again
        self._once = Once()
        offers.put_ticket_maker(None)

    async def run(self) -> NoReturn:
        """Follow until cancelled. While no controller is at work, no request becomes a claim, and the Secret is not read."""
        while True:
            if self._offers.controller and self._clock.now() >= self._due:
                await self._read()
            maker = None if self._key is None else TicketMaker(self._key, hour_of(self._clock.wall()))
            self._offers.put_ticket_maker(maker)
            await self._clock.sleep(self._tick)

    async def _read(self) -> None:
        """Read the key in use; where the API server does not answer, the key from before stays."""
        why = ""
        try:
            self._key = TicketSecret.read(await self._client.get(secret_path(self._namespace))).current
            if self._key is None:
                why = "it has no key yet"
        except (KubeError, InvalidInput) as error:
            why = str(error)
            if not isinstance(error, KubeError) or (isinstance(error, ApiError) and error.is_absent):
                self._key = None
        if not why:
            self._once.end()
        elif self._once.begin(why):
            _log.warning("Secret %s/%s, the key of tickets: %s", self._namespace, SECRET, why)
        self._due = self._clock.now() + (2 * self._tick if self._key is None else self._uniform(*_POLL))


def _key(data: Mapping[str, bytes], name: str) -> TicketKey | None:
    found = data.get(name, b"")
    return TicketKey(found) if len(found) == KEY_BYTES else None


def _time(text: bytes) -> float:
    return float(text) if text.isdigit() and len(text) < 12 else 0.0  # digits: of any time to come
