"""The time by which the controller keeps layouts. All leaders share the API server, so where this machine's clock is wrong, the API server's counts."""

from tessera.kube.clock import offset_in_words
from tessera.kube.rest.client import Client
from tessera.protocol.mig.rollouts import CLOCKS_DIFFER


class ServerTime:
    """This machine's clock, judged by the API server's."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def wrong(self) -> str:
        """How this machine's clock differs from the API server's; empty where that is no more than clocks do which are kept right."""
        offset = self._client.clock_offset
        return offset_in_words(offset) if abs(offset) > CLOCKS_DIFFER else ""

    def now(self) -> float:
        """Seconds since 1970."""
        offset = self._client.clock_offset
        return self._client.clock.wall() + (offset if abs(offset) > CLOCKS_DIFFER else 0.0)
