"""Attacks by tenants who may create pods, and by clients that reach a port: on the controller, the dashboard and their small servers.

    python -m stress.tenants     part of `make soak`

Each attack says what it was, what it cost, and whether what docs/faults.md promises did hold (45, 47 and 48).
"""

import asyncio
import json
import logging
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final

from stress import floods, neighbours
from tessera.controller.leader import LeaseTimes
from tessera.controller.process import Controller
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, template_name
from tessera.core.requests.tickets import TICKET_ANNOTATION
from tessera.dashboard.board import Board
from tessera.dashboard.observed import read_node, read_pod
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.serving.address import Address
from tessera.serving.http_server import health_server
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES

FORGED: Final = 2000  # pods
CROWD: Final = 200  # clients that send half a request; a server has 64 places
CROWD_SECONDS: Final = 20.0
FLOOD: Final = (18, 12_000)  # pods, and invented resources of each
MOST_METRICS: Final = 20_000  # bytes that the flood may add: a few of the resources are shown


async def forged_claims() -> str:
    """Thousands of pods whose annotations name alternatives that the webhook never chose: nothing is made."""
    server = ApiServer()
    async with await server.start():
        server.store.create(NAMESPACES, {"metadata": {"name": "gpu-webhook"}})
        for number in range(FORGED):
            text = f"1*1g.18gb={1 + number % 7}g.{18 + number}gb/admins-only"
            annotations = {ALTERNATIVES_ANNOTATION: text, TICKET_ANNOTATION: f"k.{number}.{'0' * 64}"}
            claim = {"name": "tessera-gpu", "resourceClaimTemplateName": template_name(text)}
            spec = {"containers": [{"name": "main"}], "resourceClaims": [claim]}
            metadata = {"name": f"p{number}", "namespace": "team", "annotations": annotations}
            server.store.create(PODS, {"metadata": metadata, "spec": spec}, "team")
        cluster = Cluster(ServerAddress.parse(server.url, where="stress"))
        async with Client(cluster) as client:
            controller = Controller(client, "gpu-webhook", "stress", lease=LeaseTimes(retry=0.1))
            running = asyncio.create_task(controller.run())
            began, used = time.monotonic(), time.process_time()
            while f"refused_pods {FORGED}" not in exposition(controller.metrics.families()).decode():
                if time.monotonic() - began > 60:
                    return "WRONG: the controller did not refuse all pods within a minute"
                await asyncio.sleep(0.2)
            used = time.process_time() - used
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        made = len(server.store.list(RESOURCE_CLAIM_TEMPLATES, "team"))
    told = f"{FORGED} forged pods refused, {made} templates made, {used:.1f} s of processor time"
    return f"WRONG: {told}" if made else told


async def half_sent_requests() -> str:
    """A crowd that sends half a request and comes again: probes are answered all the time."""
    server = health_server(tuple)
    address = await server.start(Address("127.0.0.1", 0))
    over = asyncio.Event()

    async def one() -> None:
        while not over.is_set():
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
                writer.write(b"GET /metrics HT")
                await reader.read()
                writer.close()
            await asyncio.sleep(0.05)

    crowd = [asyncio.create_task(one()) for _ in range(CROWD)]
    longest, failed, asked = 0.0, 0, 0
    end = time.monotonic() + CROWD_SECONDS
    while time.monotonic() < end:
        began = time.monotonic()
        asked += 1
        try:
            await asyncio.to_thread(_probe, f"{server.url}/livez")
        except OSError:
            failed += 1
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.2)
    over.set()
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    await server.stop()
    told = f"{asked} probes beside {CROWD} clients, {failed} failed, the longest took {longest * 1e3:.0f} ms"
    return f"WRONG: {told}" if failed else told


async def invented_resources() -> str:
    """Pods with thousands of resources that no node has: metrics and tables stay as they were."""
    board = Board("stress")
    board.set_error("")
    has = {"nvidia.com/mig-1g.10gb": "7"}
    node = {"metadata": {"name": "n"}, "status": {"allocatable": has, "capacity": has}}
    board.put_node(read_node(json.dumps(node).encode()))

    def size() -> int:
        board.sample()
        return len(exposition(board.metrics())) + sum(map(len, board.parts().values()))

    before = size()
    pods, resources = FLOOD
    for number in range(pods):
        limits = {f"example.com/{number}-{at}": "1" for at in range(resources)}
        pod = {
            "metadata": {
                "name": f"p{number}",
                "namespace": "team",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
            "status": {"phase": "Pending"},
        }
        board.put_pod(read_pod(json.dumps(pod).encode()))
    more = size() - before
    told = (
        f"{pods} pods with {resources:,} invented resources each: {more:,} bytes more of metrics and tables"
    )
    return f"WRONG: {told}" if more > MOST_METRICS else told


def _probe(url: str) -> None:
    with urllib.request.urlopen(url, timeout=1.0) as answer:  # noqa: S310 # our own server; a liveness probe's timeout
        answer.read()


ATTACKS: Final[tuple[Callable[[], Coroutine[None, None, str]], ...]] = (
    forged_claims,
    half_sent_requests,
    invented_resources,
)


def main() -> int:
    """All of them; 1 where something did not hold."""
    wrong = False
    logging.getLogger("tessera").addHandler(logging.NullHandler())
    logging.getLogger("tessera").propagate = False
    for attack in ATTACKS:
        told = asyncio.run(attack())
        wrong |= told.startswith("WRONG")
        print(f"{attack.__name__.replace('_', ' ')}: {told}", flush=True)
    wrong |= bool(floods.main([]))
    return neighbours.main([]) or int(wrong)


if __name__ == "__main__":
    sys.exit(main())
