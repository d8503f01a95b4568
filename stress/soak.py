"""A soak: reviews over real TLS while nodes change, every answer checked against the pure decision.

    make soak                       200,000 reviews
    python -m stress.soak 10000     fewer

The handler under test remembers answers; beside it, on the same state of the cluster, the pure decision is made
again for every review. They must agree to the byte, and the process must not grow.
"""

import asyncio
import ctypes
import gc
import json
import random
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop
from e2e.cluster.pki import Authority

from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Quantity
from tessera.protocol.admission import review
from tessera.protocol.configuration import webhook as config
from tessera.serving.address import Address
from tessera.webhook.certificates.served import server_context
from tessera.webhook.endpoint import Admission
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits, Response, Route
from tessera.webhook.reviewed import review_pod

CONNECTIONS: Final = 16
NODES: Final = 200
GROWTH_KIB: Final = 1024  # what the allocator may keep without anything leaking
PROFILES: Final = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.30gb", "7g.80gb")
CONFIG: Final = """
injection: {resourceMap: {V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 4}, {name: memory, coefficient: 8, unit: Gi}]}}}}
"""


class Checked:
    """The handler, and the pure decision beside it."""

    def __init__(self, offers: Offers, policy: Policy) -> None:
        self.admission = Admission(offers, policy)
        self.offers, self.policy = offers, policy
        self.answered = 0
        self.outcomes: dict[str, int] = {}

    def __call__(self, body: bytes) -> Response:
        answer = self.admission.answer(body)
        request = review.decode(body)
        fresh = review_pod(request, self.offers, self.policy)
        if answer != review.wrap(request.uid, review.tail(fresh.decision, fresh.operations)):
            raise AssertionError(f"remembered and fresh answers differ for {body!r}")
        self.answered += 1
        name = type(fresh.decision).__name__
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        return Response(200, answer)


def random_node(dice: random.Random, number: int) -> Node:
    has = {f"nvidia.com/mig-{profile}": dice.randint(0, 4) for profile in dice.sample(PROFILES, 2)}
    if dice.random() < 0.3:
        has["nvidia.com/gpu"] = dice.randint(1, 8)
    labels = {"zone": dice.choice("abcd"), "kubernetes.io/hostname": f"n{number}"}
    return Node(f"n{number}", labels, (), {name: Quantity.parse(count) for name, count in has.items()})


def random_review(dice: random.Random, number: int) -> bytes:
    resource = f"nvidia.com/mig-{dice.choice(PROFILES)}" if dice.random() < 0.9 else "nvidia.com/gpu"
    count = str(dice.choice([1, 1, 1, 2, 5]))
    container: dict[str, Any] = {
        "name": "c",
        "image": "x",
        "resources": {"limits": {resource: count}, "requests": {resource: count}},
    }
    spec: dict[str, Any] = {"containers": [container]}
    if dice.random() < 0.5:
        spec["nodeSelector"] = {"zone": dice.choice("abcdx")}
    metadata: dict[str, Any] = {"generateName": f"p{number}-"}
    if dice.random() < 0.2:
        metadata["annotations"] = {"task.bkbcs.tencent.com/gpu-type": "V100"}
    request = {
        "uid": f"uid-{number}",
        "operation": "CREATE",
        "namespace": "soak",
        "object": {"metadata": metadata, "spec": spec},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


async def client(
    port: int, tls: ssl.SSLContext, dice: random.Random, numbers: range, checked: Checked
) -> None:
    """One kept-alive connection that asks, reads, and now and then changes a node."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1")
    for number in numbers:
        if dice.random() < 0.05:
            checked.offers.put(random_node(dice, dice.randrange(NODES)))
        body = random_review(dice, number)
        writer.write(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        text = await reader.readexactly(length)
        if b" 200 " not in head:
            raise AssertionError(f"{head!r} {text!r}")
        answer = json.loads(text)
        if answer["response"]["uid"] != f"uid-{number}":
            raise AssertionError(f"another request's answer: {answer}")
    writer.close()
    await writer.wait_closed()


def resident_kib() -> int:
    """What the process takes, once the allocator has given back what it holds for later (glibc alone can be told to)."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return int(
        next(
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
        ).split()[1]
    )


async def soak(reviews: int) -> None:
    """Run it in ten parts, and look at the memory after each."""
    dice = random.Random(7)
    checked = Checked(
        Offers(random_node(dice, number) for number in range(NODES)), config.parse(CONFIG).policy
    )
    faults: list[Exception] = []
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder) / "pki")
        pair = authority.issue("soak", "soak", hosts=["127.0.0.1"])
        context = server_context(pair.certificate.read_bytes(), pair.key.read_bytes())
        tls = ssl.create_default_context(cafile=str(authority.files.certificate))
    routes = {b"/mutate": Route(checked, b"POST", json=True)}
    listener = Listener(routes, Limits(), lambda: context, faults.append)
    port = listener.start(Address("127.0.0.1", 0)).port
    sizes = []
    begun = time.monotonic()
    part = max(1, reviews // 10 // CONNECTIONS)
    for _ in range(10):
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                first = dice.randrange(10**9)
                group.create_task(
                    client(port, tls, random.Random(first), range(first, first + part), checked)
                )
        gc.collect()  # closed connections are cycles: what would be collected some time is no growth
        sizes.append(resident_kib())
        print(f"{checked.answered:>8} answers, {sizes[-1] / 1024:.1f} MiB resident", flush=True)
    await listener.drain(5)
    if faults:
        raise faults[0]
    growth = sizes[-1] - sizes[2]  # after the first parts every cache is full
    seconds = time.monotonic() - begun
    print(
        f"{checked.answered} answers as the pure decision says, in {seconds:.0f} s: {checked.outcomes}; grown by {growth} KiB since the third part"
    )
    if growth > GROWTH_KIB:
        raise SystemExit(f"the process has grown by {growth} KiB, more than {GROWTH_KIB}")


if __name__ == "__main__":
    uvloop.run(soak(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
