"""A webhook under attack, over TLS: how much each kind costs in memory, and how long an innocent client waits.

    python -m stress.attack                 every kind in turn, then all together: growth, and time of the event loop in a row
    python -m stress.attack --memory 256    the same against `tessera webhook` in a control group of 256 MiB, the chart's limit

`make soak` runs both. The server is a process of its own with 1,000 nodes; so is the innocent client, which asks the same small
thing again and again, from another address than the attackers. Fault 43 promises: at most 48 MiB more by one kind, 96 MiB by all; with 256 MiB nothing is killed.
"""

import asyncio
import contextlib
import gc
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import uvloop
from e2e.cluster import cgroups
from e2e.cluster.pki import Authority

from stress.attacks import ATTACKS, NOTHING, answer, ask, attack, connect
from stress.hostile import CONFIG, asks, body, cluster, endpoint
from stress.limited import limited
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
SECONDS: Final = 5.0  # of each attack, at the least
REMEMBERED_MIB: Final = 16  # of verdicts, and of label tables (`docs/webhook.md`, limits)
FILLS: Final = {  # what these kinds are made to fill
    "templates of 80 containers, each its own": "verdicts",
    "templates of one container, each its own": "verdicts",
    "15 label keys, each pod its own": "label_tables",
}
EVERYTHING: Final = "all of them, one after the other"


async def serve(folder: Path) -> None:
    """The webhook's listener with its handler, and the port on standard output."""
    context = server_context((folder / "webhook.crt").read_bytes(), (folder / "webhook.key").read_bytes())
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


def innocent(port: int) -> None:
    """Ask the same small thing every few milliseconds until told to stop; print the waits in milliseconds.

    As an API server does it: from an address of its own, on a connection that it keeps, and now and then on a new one.
    """
    octets = body({"containers": asks()})
    client = connect(port, "127.0.0.2")
    waits: list[float] = []
    ask(client, octets)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.003)[0]:
        begun = time.perf_counter()
        if len(waits) % 100 == 99:
            with contextlib.closing(connect(port, "127.0.0.2")) as new:
                ask(new, octets)
        else:
            ask(client, octets)
        waits.append((time.perf_counter() - begun) * 1e3)
    print(json.dumps(sorted(waits)))


# The servers


@dataclass(frozen=True, slots=True)
class Server:
    """A process that is attacked."""

    pid: int
    port: int
    summary: Callable[[], str]  # about itself, after an attack
    errors: Callable[[str], str] = lambda _: ""  # about what a kind of attack has done to it

    def memory_mib(self, what: str) -> float:
        """VmRSS, or VmHWM: the most that it was."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


@contextlib.contextmanager
def watched() -> Iterator[Server]:
    """The listener and the handler alone, and a clock on the event loop."""
    with tempfile.TemporaryDirectory() as folder:
        Authority(Path(folder) / "pki").issue("webhook", "webhook", hosts=["127.0.0.1"])
        with _process(sys.executable, "-m", "stress.attack", "serve", f"{folder}/pki") as process:
            port = int(_output(process).readline())

            def summary() -> str:
                with contextlib.closing(connect(port)) as client:
                    client.sendall(b"GET /longest HTTP/1.1\r\n\r\n")
                    return f"{answer(client).decode():>5} ms of the processor in a row"

            yield Server(process.pid, port, summary)


@contextlib.contextmanager
def within(mib: int) -> Iterator[Server]:
    """The whole webhook, as the chart starts it, in a control group that has so much memory."""
    with tempfile.TemporaryDirectory() as name, limited(mib) as group:
        folder = Path(name)
        pair = Authority(folder / "pki").issue("webhook", "webhook", hosts=["127.0.0.1"])
        (folder / "nodes.json").write_text(json.dumps({"kind": "List", "items": _nodes()}))
        (folder / "config.yaml").write_text(CONFIG)
        listen = ("--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--log-format=json")
        files = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}",
                 f"--from={folder}/nodes.json", f"--config={folder}/config.yaml")  # fmt: skip
        with _process(*group.command(sys.executable, "-m", "tessera", "webhook", *listen, *files)) as process:
            lines = _output(process)
            found: list[int] = []
            while len(found) < 2:  # metrics first
                line = lines.readline()
                if not line:
                    raise SystemExit("the webhook has ended before it served")
                found += map(int, re.findall(r'"address":"127\.0\.0\.1:(\d+)"', line))
            threading.Thread(target=lines.read, daemon=True).start()  # as the container runtime does
            metrics, port = found

            def remembered() -> dict[str, float]:
                with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as told:
                    text = told.read().decode()
                sizes = re.findall(
                    r'^gpu_webhook_remembered_bytes\{what="(\w+)"\} (\d+)$', text, re.MULTILINE
                )
                return {what: int(size) / 2**20 for what, size in sizes}

            def summary() -> str:
                parts = ", ".join(f"{size:.1f} {what}" for what, size in remembered().items())
                return f"{group.peak_mib:5.1f} of {mib} MiB at the peak; MiB remembered: {parts}"

            def errors(kind: str) -> str:
                if group.kills or process.poll() is not None:
                    return f"{kind}: the webhook was killed"
                kept = remembered()
                if max(kept.values()) > REMEMBERED_MIB:
                    return f"{kind}: more is remembered than {REMEMBERED_MIB} MiB"
                if kind in FILLS and kept[FILLS[kind]] < 0.9 * REMEMBERED_MIB:
                    return f"{kind}: should fill the {FILLS[kind]}, and only {kept[FILLS[kind]]:.1f} MiB were remembered"
                return ""

            yield Server(process.pid, port, summary, errors)


@contextlib.contextmanager
def _process(*command: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _output(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _nodes() -> list[object]:
    return [
        {
            "kind": "Node",
            "metadata": {"name": node.name, "labels": dict(node.labels)},
            "spec": {"taints": [{"key": one.key, "value": one.value, "effect": one.effect} for one in node.taints]},
            "status": {"allocatable": {name: str(amount) for name, amount in node.allocatable.items()}},
        }
        for node in cluster(NODES).nodes.values()
    ]  # fmt: skip


# The report


def report(name: str, server: Server, kinds: list[str], seconds: float) -> float:
    """Attack, and print what it cost; how many MiB more at the most."""
    with contextlib.closing(connect(server.port)) as first:
        ask(first, body({"containers": asks()}))  # what every server needs once
    before = server.memory_mib("VmRSS")
    command = [sys.executable, "-m", "stress.attack", "innocent", str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        _output(client).readline()
        times = sum(attack(server.port, kind, seconds) for kind in kinds)
        told, _ = client.communicate("stop\n")
    if not told:
        raise SystemExit(f"{name}: the innocent client was not answered. {server.errors(name)}")
    waits = json.loads(told)
    most, after = server.memory_mib("VmHWM") - before, server.memory_mib("VmRSS") - before
    print(
        f"{name:45} {times:>6} times; {before:.0f} MiB, at most {most:5.1f} more, {after:5.1f} after; {server.summary()}; "
        f"the innocent client waited {waits[len(waits) // 2]:.1f} ms (median), {waits[len(waits) * 99 // 100]:.1f} (99 of 100), "
        f"{waits[-1]:.1f} (most)",
        flush=True,
    )
    if error := server.errors(name):
        raise SystemExit(error)
    return most


def main(server: Callable[[], contextlib.AbstractContextManager[Server]], seconds: float) -> None:
    """Every kind against a fresh server, and all of them against one."""
    print(f"load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
    costs = {}
    for kind in (NOTHING, *ATTACKS):
        with server() as one:
            costs[kind] = report(kind, one, [kind], seconds)
    with server() as one:
        every = report(EVERYTHING, one, list(ATTACKS), seconds)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
    large = [f"{kind}: {mib:.0f} MiB" for kind, mib in costs.items() if mib > ONE_KIND_MIB]
    if large or every > ALL_KINDS_MIB:
        raise SystemExit(f"too much memory: {', '.join(large) or f'{every:.0f} MiB by all'}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", where]:
            uvloop.run(serve(Path(where)))
        case ["innocent", where]:
            innocent(int(where))
        case ["--memory", _] if not cgroups.writable():
            print(
                "without the right to make control groups (root) the memory of a process is not limited: left out"
            )
        case ["--memory", most, *how_long]:
            main(lambda: within(int(most)), *(map(float, how_long) if how_long else [SECONDS]))
        case how_long:
            main(watched, *(map(float, how_long) if how_long else [SECONDS]))
