"""Webhooks on usual Python servers: `python -m benchmarks.python_webhooks aiohttp|uvicorn HOST:PORT CERTIFICATE KEY`.

The handler is a usual one: the review read with the standard library into dictionaries, an answer of dictionaries
written with it. In between it decides with Tessera's own decision, answers remembered, so that no time is lost there. aiohttp
is used as kopf uses it (a runner, a TLS site, `json_response`); uvicorn runs a bare ASGI application without an access
log. Both have uvloop.
"""

import json
import logging
import ssl
import sys
from functools import cache
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import corpus
from tessera.core.admission.policy import Policy
from tessera.protocol.admission import review
from tessera.webhook.endpoint import Admission

_admission = Admission(corpus.offers(), Policy())


@cache
def _response(tail: bytes) -> dict[str, Any]:
    response: dict[str, Any] = json.loads(review.wrap("", tail))["response"]
    return response


def answer(body: bytes) -> dict[str, Any]:
    """Answer a review."""
    document = json.loads(body)
    response = _response(_admission.response(review.decode(body)).tail)
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "response": {**response, "uid": document["request"]["uid"]},
    }


async def with_aiohttp(host: str, port: int, certificate: str, key: str) -> None:
    """Serve until killed."""
    import asyncio

    from aiohttp import web

    async def mutate(request: web.Request) -> web.Response:
        return web.json_response(answer(await request.read()))

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    application = web.Application(client_max_size=7 * 1024 * 1024)
    application.add_routes([web.post("/{id:mutate}", mutate), web.get("/readyz", ready)])
    runner = web.AppRunner(application, handle_signals=False)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    await web.TCPSite(runner, host, port, ssl_context=context).start()
    await asyncio.Event().wait()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI application."""
    body, more = b"", scope["type"] == "http"
    while more:
        message = await receive()
        body += message["body"]
        more = message.get("more_body", False)
    content = json.dumps(answer(body)).encode() if scope.get("path") == "/mutate" else b""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def main(library: str, address: str, certificate: str, key: str) -> None:
    """Serve with one of the two."""
    logging.disable()
    host, _, port = address.rpartition(":")
    if library == "aiohttp":
        uvloop.run(with_aiohttp(host, int(port), certificate, key))
        return
    import uvicorn

    uvicorn.run(
        application,
        host=host,
        port=int(port),
        ssl_certfile=Path(certificate),
        ssl_keyfile=key,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:5])
