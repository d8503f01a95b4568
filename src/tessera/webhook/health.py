"""Alive, ready: what the kubelet and load balancers ask."""

from collections.abc import Callable

from tessera.webhook.http.messages import TEXT, Response, Route

Check = Callable[[], str | None]  # None when all is well, or else what is missing, in a few words

_OK = Response(200, b"ok\n", TEXT)


class Health:
    """The checks that readiness consists of. Being alive is answering at all."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def require(self, name: str, check: Check) -> None:
        """From now on, not ready while this check has something to say."""
        self._checks[name] = check

    def missing(self) -> list[str]:
        return [f"{name}: {word}" for name, check in self._checks.items() if (word := check()) is not None]

    def routes(self) -> dict[bytes, Route]:
        """`/livez`, `/readyz` and `/healthz` (an older name of livez)."""
        return {
            b"/livez": Route(lambda _: _OK),
            b"/healthz": Route(lambda _: _OK),
            b"/readyz": Route(lambda _: self._ready()),
        }

    def _ready(self) -> Response:
        missing = self.missing()
        if not missing:
            return _OK
        return Response(503, "".join(f"not ready: {one}\n" for one in missing).encode(), TEXT)
