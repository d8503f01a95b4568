"""The leader's care for the keys of tickets: it makes them, publishes the next one, and rotates them."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.requests.tickets import KEY_BYTES, TicketKeys
from tessera.kube.clock import CONFLICTS, Backoff, Once
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.view.ticket_keys import SECRET, TicketSecret, secret_path

log = logging.getLogger(__name__)

_RETRY: Final = 2.0  # seconds, while the last read or write failed; after a conflict longer each time
_POLL: Final = 30.0  # seconds between two reads: someone may have removed the Secret


class TicketKeeper:
    """Keeps the Secret with the keys right, and the keys at hand."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.keys: TicketKeys | None = None  # those of the last good poll
        self._client = client
        self._namespace = namespace
        self._clock = client.clock
        self._last: TicketSecret | None = None  # as it was written or read
        self._due = 0.0
        self._once = Once()
        self._conflicts = Backoff(*CONFLICTS, jitter=0.0)

    @property
    def wait(self) -> float:
        """Seconds until the next poll."""
        return max(self._due - self._clock.now(), 0.0)

    async def poll(self, fence: Callable[[], None]) -> None:
        """Read the Secret if it is time, and write what is missing or due; `fence` raises when another process leads."""
        if self.wait:
            return
        try:
            await self._keep(fence)
        except (KubeError, InvalidInput) as error:
            if self._once.begin(str(error)):
                log.warning(
                    "Secret %s/%s, the key of tickets, cannot be kept (will try again; without it the webhook converts no "
                    "requests to claims): %s",
                    self._namespace,
                    SECRET,
                    error,
                )
            is_conflict = isinstance(error, ApiError) and error.is_conflict
            self._due = self._clock.now() + (self._conflicts.next() if is_conflict else _RETRY)
        else:
            self._once.end()
            self._conflicts.reset()
            self._due = self._clock.now() + _POLL

    async def _keep(self, fence: Callable[[], None]) -> None:
        raw = await self._client.find(secret_path(self._namespace))
        found = None if raw is None else TicketSecret.read(raw)
        # one that was removed comes back with its keys
        before = found or replace(self._last or TicketSecret(), version="")
        wanted = before.desired(self._clock.wall(), lambda: secrets.token_bytes(KEY_BYTES))
        if found is None:
            fence()
            await self._client.create(path_of("v1", "secrets", namespace=self._namespace), wanted.document())
        elif wanted != found:
            fence()
            await self._client.patch(secret_path(self._namespace), wanted.document())
        if wanted != found:
            log.info("Secret %s/%s written: keys of tickets", self._namespace, SECRET)
        self._last, self.keys = wanted, wanted.keys
