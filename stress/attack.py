"""A webhook under attack, over TLS: how much each kind costs in memory, and how long an innocent client waits.

    python -m stress.attack          every kind in turn, then all together (`make soak` runs it too)

The server is a process of its own with 1,000 nodes; so is the innocent client, which asks the same small thing again and
again. Fault 43 promises: at most 48 MiB more by one kind, 96 MiB by all.
"""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import uvloop
from e2e.cluster.pki import Authority

from stress.hostile import CONFIG, CORPUS, HOST, MIG, asks, body, cluster, container, endpoint
from tessera.protocol.configuration import webhook as config
from tessera.serving.address import Address
from tessera.webhook.certificates.served import server_context
from tessera.webhook.endpoint import Admission
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits, Response, Route
from tessera.webhook.metrics import Metrics

NODES: Final = 1000
ONE_KIND_MIB: Final = 48
ALL_KINDS_MIB: Final = 96
SECONDS: Final = 5.0  # of each attack
CLIENTS: Final = 4  # that attack at once


async def serve(folder: Path) -> None:
    """The webhook's listener with its handler, and the port on standard output."""
    context = server_context((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes())
    metrics = Metrics("stress")
    handler = endpoint(Admission(cluster(NODES), config.parse(CONFIG).policy), metrics)
    longest = 0.0  # seconds of the processor between two rounds of the event loop, while a timer was due
    before = time.thread_time()
    loop = asyncio.get_running_loop()

    def tick() -> None:
        nonlocal longest, before
        now = time.thread_time()
        longest, before = max(longest, now - before), now
        loop.call_later(0.001, tick)

    routes = {
        b"/mutate": handler.route(),
        b"/metrics": metrics.route(),
        b"/longest": Route(lambda _: Response(200, b"%.1f" % (longest * 1e3))),
    }
    listener = Listener(routes, Limits(), lambda: context)
    gc.collect()
    gc.freeze()  # as the webhook does
    tick()
    print(listener.start(Address("127.0.0.1", 0)).port, flush=True)
    await asyncio.Event().wait()


def connect(port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=30))


def request(octets: bytes) -> bytes:
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(octets) + octets


def ask(client: ssl.SSLSocket, octets: bytes) -> None:
    """One review and its whole answer."""
    client.sendall(request(octets))
    answer(client)


def answer(client: ssl.SSLSocket) -> bytes:
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


def innocent(port: int, seconds: float) -> None:
    """Ask the same small thing every few milliseconds; print the waits in milliseconds."""
    client, octets, waits = connect(port), body({"containers": asks()}), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        ask(client, octets)
        waits.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.003)
    print(json.dumps(sorted(waits)))


# The attacks: each is called again and again, by several clients, with a number of its own each time


def _reviews(bodies: list[bytes]) -> Callable[[ssl.SSLSocket, int], None]:
    return lambda client, number: ask(client, bodies[number % len(bodies)])


def _templates(client: ssl.SSLSocket, number: int) -> None:
    many = [container(n, {MIG + "2g.20gb": "1"}) for n in range(150)]
    ask(
        client,
        body(
            {"containers": many, "nodeSelector": {"zone": "a"}}, {"gpu-webhook.k8s.io/fallback": str(number)}
        ),
    )


def _keys(client: ssl.SSLSocket, number: int) -> None:
    labels = {f"k{number}-{n}": "v" for n in range(14)}
    ask(client, body({"containers": asks(), "nodeSelector": {**labels, HOST: "n1"}}))


def _names(client: ssl.SSLSocket, number: int) -> None:
    ask(client, body({"containers": asks(f"{number}g." + "9" * 100_000 + "gb")}))


def _pipelined(client: ssl.SSLSocket, _number: int) -> None:
    client.sendall(b"HEAD /metrics HTTP/1.1\r\n\r\n" * (253 * 1024 // 26))
    for _ in range(20):
        client.recv(65536)


def _unfinished(client: ssl.SSLSocket, number: int) -> None:
    """One more body that never ends; the connections stay open."""
    _open.append(client if number < CLIENTS else connect(client.getpeername()[1]))
    _open[-1].sendall(request(bytes(7_000_000))[:6_900_000])


def _idle(client: ssl.SSLSocket, number: int) -> None:
    """One more connection that says nothing, every second one not even hello."""
    port = client.getpeername()[1]
    _open.append(connect(port) if number % 2 else socket.create_connection(("127.0.0.1", port)))


_open: list[socket.socket] = []


def _nothing(_client: ssl.SSLSocket, _number: int) -> None:
    time.sleep(0.1)


ATTACKS: Final[Mapping[str, Callable[[], Callable[[ssl.SSLSocket, int], None]]]] = {
    "hostile pods, all of the corpus": lambda: _reviews([make() for make in CORPUS.values()]),
    "templates of 150 containers, each its own": lambda: _templates,
    "15 label keys, each pod its own": lambda: _keys,
    "profiles' names of 100 KiB": lambda: _names,
    "empty containers, 6.6 MiB": lambda: _reviews([CORPUS["empty containers, 6.6 MiB"]()]),
    "pipelined HEAD /metrics, 253 KiB at once": lambda: _pipelined,
    "bodies of 7 MB that never end": lambda: _unfinished,
    "connections that say nothing": lambda: _idle,
}


def attack(port: int, one: Callable[[ssl.SSLSocket, int], None], seconds: float) -> int:
    """Let some clients do it again and again; how often."""
    until = time.monotonic() + seconds
    counts = [0] * CLIENTS

    def client(place: int) -> None:
        connection: ssl.SSLSocket | None = None
        while time.monotonic() < until:
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


@contextlib.contextmanager
def server() -> Iterator[tuple[int, int]]:
    """A fresh process: its id and its port."""
    with tempfile.TemporaryDirectory() as folder:
        pair = Authority(Path(folder) / "pki").issue("stress", "stress", hosts=["127.0.0.1"])
        (Path(folder) / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (Path(folder) / "tls.key").write_bytes(pair.key.read_bytes())
        command = [sys.executable, "-m", "stress.attack", "serve", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.pid, int(process.stdout.readline())
            finally:
                process.kill()


def memory_mib(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def report(name: str, pid: int, port: int, kinds: list[str], seconds: float) -> float:
    """Attack, and print what it cost; how many MiB more at the most."""
    with contextlib.closing(connect(port)) as first:
        ask(first, body({"containers": asks()}))  # what every server needs once
    before = memory_mib(pid, "VmRSS")
    command = [sys.executable, "-m", "stress.attack", "innocent", str(port), str(seconds * len(kinds))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        times = sum(attack(port, ATTACKS[kind]() if kind in ATTACKS else _nothing, seconds) for kind in kinds)
        told, _ = client.communicate()
    waits = json.loads(told)
    with contextlib.closing(connect(port)) as last:
        last.sendall(b"GET /longest HTTP/1.1\r\n\r\n")
        longest = answer(last).decode()
    most = memory_mib(pid, "VmHWM") - before
    left = memory_mib(pid, "VmRSS") - before
    print(
        f"{name:45} {times:>7} times; at most {most:5.1f} MiB more, {left:5.1f} MiB after; {longest:>5} ms of the processor at a time; the innocent client waited "
        f"{waits[len(waits) // 2]:.1f} ms (median), {waits[len(waits) * 99 // 100]:.1f} ms (99 of 100), {waits[-1]:.1f} ms (most)",
        flush=True,
    )
    return most


def main(seconds: float = SECONDS) -> None:
    """Every kind against a fresh server, and all of them against one."""
    costs = {}
    with server() as (pid, port):
        report("nothing, for comparison", pid, port, ["nothing"], seconds)
    for kind in ATTACKS:
        with server() as (pid, port):
            costs[kind] = report(kind, pid, port, [kind], seconds)
    with server() as (pid, port):
        every = report("all of them, one after the other", pid, port, list(ATTACKS), seconds)
    large = [f"{kind}: {mib:.0f} MiB" for kind, mib in costs.items() if mib > ONE_KIND_MIB]
    if large or every > ALL_KINDS_MIB:
        raise SystemExit(f"too much memory: {', '.join(large) or f'{every:.0f} MiB by all'}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", where]:
            uvloop.run(serve(Path(where)))
        case ["innocent", where, how_long]:
            innocent(int(where), float(how_long))
        case arguments:
            main(*map(float, arguments))
