"""`/livez`, `/readyz` and `/metrics` of a program without a page of its own, over plain HTTP."""

from collections.abc import Callable, Iterable

from tessera.serving.http.messages import Request, Response, text
from tessera.serving.http.server import Server
from tessera.serving.metrics import CONTENT_TYPE, Family, exposition


def health_server(
    families: Callable[[], Iterable[Family]],
    alive: Callable[[], bool] = lambda: True,
    ready: Callable[[], bool] = lambda: True,
    why_not: Callable[[], str] = lambda: "not yet",
) -> Server:
    """A server that answers probes and scrapes; `why_not` is the answer while one of the probes fails."""
    probes = {"/livez": alive, "/healthz": alive, "/readyz": ready}

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return text("only GET", 405)
        if request.path == "/metrics":
            return Response(exposition(families()), content_type=CONTENT_TYPE)
        if probe := probes.get(request.path):
            return text("ok") if probe() else text(why_not(), 503)
        return text("the paths are /livez, /readyz and /metrics", 404)

    return Server(respond)
