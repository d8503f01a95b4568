"""Listening, and ending: every client that was let in gets its answer."""

import asyncio
import socket
import threading

import pytest

from tessera.core.errors import TesseraError
from tessera.serving.address import Address
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits
from tessera.webhook.metrics import Readiness
from tests.webhook.support import Live, request


def test_port_taken():
    """A port that is taken is one sentence."""

    async def listen(port: int) -> None:
        Listener({}, Limits()).start(Address("127.0.0.1", port))

    with (
        Live() as live,
        pytest.raises(TesseraError, match=r"cannot listen on 127.0.0.1:\d+: Address already in use"),
    ):
        asyncio.run(listen(live.port))


def test_every_address():
    """Without a host, IPv4 and IPv6 are both served where both exist."""

    async def listen() -> tuple[int, Listener]:
        listener = Listener(Readiness().routes(), Limits())
        return listener.start(Address("", 0)).port, listener

    async def main() -> list[bytes]:
        port, listener = await listen()
        said = []
        for host in ("127.0.0.1", "::1"):
            if host == "::1" and not socket.has_dualstack_ipv6():
                continue
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n")
            said.append(await reader.read())
            writer.close()
            await writer.wait_closed()
        listener.abort()
        return said

    assert all(said.endswith(b"\r\n\r\nok\n") for said in asyncio.run(main()))


def test_fault_11_not_ready():
    """Not ready while something is missing, and it says what; alive all the while."""
    health = Readiness()
    words: list[str | None] = ["the node view is not complete yet"]
    health.require("nodes", lambda: words[0])
    with Live(health.routes()) as live, live.connect() as client:

        def ask(path: bytes) -> tuple[int, bytes]:
            client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            reply = client.answer()
            return reply.status, reply.body

        assert ask(b"/readyz") == (503, b"not ready: nodes: the node view is not complete yet\n")
        assert ask(b"/livez") == (200, b"ok\n")
        words[0] = None
        assert ask(b"/readyz") == (200, b"ok\n")
        assert ask(b"/healthz") == (200, b"ok\n")


class Loader(threading.Thread):
    """A client that keeps its connection and asks until it is told to close, and again on a new one."""

    def __init__(self, live: Live) -> None:
        super().__init__(daemon=True)
        self.live = live
        self.answered = 0
        self.lost: list[BaseException] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                client = self.live.connect()
            except OSError:
                return  # not accepted: the load balancer's business
            with client:
                while True:
                    try:
                        reply = client.post(b"%d" % self.answered)
                    except OSError as error:
                        self.lost.append(error)
                        return
                    assert reply.body == b"%d" % self.answered
                    self.answered += 1
                    if reply.headers.get("Connection") == "close":
                        break


def test_fault_17_end_under_load():
    """Once ending begins, every request on an accepted connection is still answered, the last with `close`."""
    with Live() as live:
        loaders = [Loader(live) for _ in range(16)]
        live.until(lambda: sum(one.answered for one in loaders) > 500)
        live.run(live.listener.drain(10))
        for one in loaders:
            one.join(10)
            assert not one.is_alive()
        assert [one.lost for one in loaders if one.lost] == []
        assert not live.listener.connections


def test_fault_17_queued_connections():
    """Connections that the kernel had taken before the end began are served too."""
    with Live(tls=False) as live:

        async def end() -> list[socket.socket]:
            # the loop stands still here, so none of these is accepted before drain runs
            waiting = []
            for _ in range(40):
                client = socket.create_connection(("127.0.0.1", live.port))
                client.sendall(request(b"queued"))
                waiting.append(client)
            await live.listener.drain(10)
            return waiting

        for client in live.run(end()):
            assert client.recv(1000).endswith(b"Connection: close\r\n\r\nqueued")
            client.close()


def test_fault_17_half_a_request():
    """A request that was half sent when the end began is waited for."""
    with Live() as live, live.connect() as client:
        whole = request(b"late")
        client.send(whole[:30])
        live.until(lambda: any(c.busy for c in live.listener.connections))
        drained = threading.Thread(target=lambda: live.run(live.listener.drain(10)))
        drained.start()
        live.until(lambda: live.listener.draining)
        client.send(whole[30:])
        reply = client.answer()
        assert (reply.body, reply.headers["Connection"]) == (b"late", "close")
        client.socket.close()
        drained.join()


def test_drain_is_bounded():
    """A client that never finishes is cut off when the time is up."""
    with Live() as live, live.connect() as client:
        client.send(b"POST /mutate HT")
        live.until(lambda: any(c.busy for c in live.listener.connections))
        live.run(live.listener.drain(0.2))
        assert not live.listener.connections
        assert client.rest() == b""
