"""`/livez`, `/readyz` and `/metrics` of a program without a page of its own, over plain HTTP."""

from collections.abc import Callable, Iterable
from typing import Protocol

from tessera.serving.http.messages import Request, Response, text
from tessera.serving.http.server import Server
from tessera.serving.metrics import CONTENT_TYPE, Family, exposition


class Exposed(Protocol):
    """What a program shows of itself."""

    def families(self) -> Iterable[Family]:
        """Every metric, as it is now."""
        ...


def health_server(metrics: Exposed, alive: Callable[[], bool], ready: Callable[[], bool]) -> Server:
    """A server that answers probes and scrapes."""
    probes = {"/livez": alive, "/healthz": alive, "/readyz": ready}

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return text("only GET", 405)
        if request.path == "/metrics":
            return Response(exposition(metrics.families()), content_type=CONTENT_TYPE)
        if probe := probes.get(request.path):
            return text("ok") if probe() else text("not yet", 503)
        return text("the paths are /livez, /readyz and /metrics", 404)

    return Server(respond)
