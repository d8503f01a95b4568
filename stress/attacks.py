"""The kinds of attack that clients of the HTTPS port can make, and the small HTTP client that makes them.

Each kind is called again and again, by several clients at once, with a number of its own each time (`stress.attack`).
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stress.hostile import CORPUS, HOST, V100, asks, body, container

CLIENTS: Final = 4  # that attack at once
_MOST_SECONDS: Final = 120.0  # for an attack that is to be made a number of times, on a machine that is busy


def connect(port: int, address: str = "127.0.0.1", receives: int = 0) -> ssl.SSLSocket:
    """A client without a certificate, from this address; its kernel takes so many bytes before they are read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.socket()
    plain.settimeout(30)
    if receives:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    plain.bind((address, 0))
    plain.connect(("127.0.0.1", port))
    plain.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # as the API server: else the first request waits 40 ms
    return context.wrap_socket(plain)


def request(octets: bytes) -> bytes:
    """A review as the API server sends it."""
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(octets) + octets


def ask(client: ssl.SSLSocket, octets: bytes) -> None:
    """One review and its whole answer."""
    client.sendall(request(octets))
    answer(client)


def answer(client: ssl.SSLSocket) -> bytes:
    """The body of the next answer."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += client.recv(65536) or _gone()
    head, _, rest = read.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(rest) < size:
        rest += client.recv(65536) or _gone()
    return rest


def _gone() -> bytes:
    raise ConnectionError("closed")


# One of each kind

One = Callable[[ssl.SSLSocket, int], None]
_open: list[socket.socket] = []  # which stay so until the attack ends


def _reviews(bodies: list[bytes]) -> One:
    return lambda client, number: ask(client, bodies[number % len(bodies)])


def _large_templates(client: ssl.SSLSocket, number: int) -> None:
    """Verdicts of 60 KiB; larger ones than 64 KiB are not remembered."""
    ask(client, _injected(80, tolerations=[{"key": "k", "value": str(number)}]))


def _small_templates(client: ssl.SSLSocket, number: int) -> None:
    """Verdicts of 2 KiB, as those of most pods."""
    ask(client, body({"containers": asks(), "tolerations": [{"key": "k", "value": str(number)}]}))


def _injected(count: int, **spec: Any) -> bytes:
    """A review whose patch is six times as large."""
    return body({"containers": [container(n, {"nvidia.com/gpu": "1"}) for n in range(count)], **spec}, V100)


def _keys(client: ssl.SSLSocket, number: int) -> None:
    labels = {f"k{number}-{n}": "v" for n in range(14)}
    ask(client, body({"containers": asks(), "nodeSelector": {**labels, HOST: "n1"}}))


def _names(client: ssl.SSLSocket, number: int) -> None:
    ask(client, body({"containers": asks(f"{number}g." + "9" * 100_000 + "gb")}))


def _pipelined(client: ssl.SSLSocket, _number: int) -> None:
    client.sendall(b"HEAD /metrics HTTP/1.1\r\n\r\n" * (253 * 1024 // 26))
    for _ in range(20):
        client.recv(65536)


def _unread(client: ssl.SSLSocket, _number: int) -> None:
    """Reviews with large answers, sent as long as the server takes them; no answer is read."""
    one = connect(client.getpeername()[1], receives=4096)
    _open.append(one)
    one.settimeout(0.02)
    with contextlib.suppress(OSError):  # not taken, or refused
        for _ in range(1000):
            one.sendall(_LARGE_ANSWER)


_LARGE_ANSWER: Final = request(_injected(80))


def _unfinished(client: ssl.SSLSocket, _number: int) -> None:
    """One more body that never ends."""
    one = connect(client.getpeername()[1])
    _open.append(one)
    with contextlib.suppress(OSError):  # refused
        one.sendall(request(bytes(7_000_000))[:6_900_000])


def _idle(client: ssl.SSLSocket, number: int) -> None:
    """One more connection that says nothing, every second one not even hello."""
    port = client.getpeername()[1]
    _open.append(connect(port) if number % 2 else socket.create_connection(("127.0.0.1", port)))


def _nothing(_client: ssl.SSLSocket, _number: int) -> None:
    time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one is made, once it is known that any will be; and how often at the least."""

    make: Callable[[], One]
    least: int = 0


NOTHING: Final = "nothing, for comparison"
ATTACKS: Final[Mapping[str, Kind]] = {
    "hostile pods, all of the corpus": Kind(lambda: _reviews([make() for make in CORPUS.values()]), len(CORPUS)),
    # as many as fill the memory of verdicts, and some more
    "templates of 80 containers, each its own": Kind(lambda: _large_templates, 400),
    "templates of one container, each its own": Kind(lambda: _small_templates, 10_000),
    "15 label keys, each pod its own": Kind(lambda: _keys, 200),
    "profiles' names of 100 KiB": Kind(lambda: _names),
    "empty containers, 6.6 MiB": Kind(lambda: _reviews([CORPUS["empty containers, 6.6 MiB"]()])),
    "pipelined HEAD /metrics, 253 KiB at once": Kind(lambda: _pipelined),
    "answers that are not read": Kind(lambda: _unread, 1100),
    "bodies of 7 MB that never end": Kind(lambda: _unfinished, 40),
    "connections that say nothing": Kind(lambda: _idle, 2500),
}  # fmt: skip


def attack(port: int, name: str, seconds: float) -> int:
    """Let some clients do it again and again; how often."""
    kind = ATTACKS.get(name, Kind(lambda: _nothing))
    one, begun = kind.make(), time.monotonic()
    counts = [0] * CLIENTS

    def goes_on() -> bool:
        passed = time.monotonic() - begun
        return passed < seconds or (sum(counts) < kind.least and passed < _MOST_SECONDS)

    def client(place: int) -> None:
        connection: ssl.SSLSocket | None = None
        while goes_on():
            with contextlib.suppress(OSError):
                connection = connection or connect(port)
                one(connection, counts[place] * CLIENTS + place)
                counts[place] += 1
                continue
            connection = None

    threads = [threading.Thread(target=client, args=(place,)) for place in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while _open:
        _open.pop().close()
    return sum(counts)
