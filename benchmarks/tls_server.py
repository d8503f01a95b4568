"""The webhook's HTTP server with a handler that does nothing: `python tls_server.py ours|loop HOST:PORT CERTIFICATE KEY`.

`ours` is the webhook's listener with its own TLS; `loop` gives the same connections to the event loop's server and TLS.
"""

import asyncio
import re
import sys
from pathlib import Path

import uvloop

from tessera.serving.address import Address
from tessera.webhook.certificates.served import server_context
from tessera.webhook.http.connection import Connection
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import TEXT, Limits, Response, Route

_UID = re.compile(rb'"uid":"([^"]+)"')
_BODY = b'{"response":{"uid":"%b","patch":"' + b"x" * 700 + b'"}}'  # about as long as a real answer


def _answer(body: bytes) -> Response:
    uid = _UID.search(body)
    return Response(200, _BODY % (uid[1] if uid else b""))


async def main(tls: str, address: str, certificate: str, key: str) -> None:
    """Serve until killed."""
    context = server_context(Path(certificate).read_bytes(), Path(key).read_bytes())
    routes = {
        b"/mutate": Route(_answer, b"POST", json=True),
        b"/readyz": Route(lambda _: Response(200, b"", TEXT)),
    }
    listener = Listener(routes, Limits(), lambda: context)
    if tls == "ours":
        listener.start(Address.parse(address))
    else:
        loop, listening = asyncio.get_running_loop(), Address.parse(address).listen()
        await loop.create_server(lambda: Connection(listener), sock=listening, ssl=context)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:5]))
