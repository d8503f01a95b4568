"""`/livez`, `/readyz` and `/metrics` of the plugin, over plain HTTP."""

from collections.abc import Callable

from tessera.node.metrics import Metrics
from tessera.serving.http.messages import Request, Response, text
from tessera.serving.http.server import Server
from tessera.serving.metrics import CONTENT_TYPE, exposition


def health_server(metrics: Metrics, alive: Callable[[], bool], ready: Callable[[], bool]) -> Server:
    """A server that answers probes and scrapes."""
    probes = {"/livez": alive, "/healthz": alive, "/readyz": ready}

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return text("only GET", 405)
        if request.path == "/metrics":
            return Response(exposition(metrics.families()), content_type=CONTENT_TYPE)
        if probe := probes.get(request.path):
            return text("ok") if probe() else text("not yet", 503)
        return text("there are /livez, /readyz and /metrics", 404)

    return Server(respond)
