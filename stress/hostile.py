"""Hostile pods: as large in every direction as the API server lets a tenant make them, and larger.

The corpus is what the tests, the fuzzer (`make fuzz`) and the soak (`make soak`) attack with. Each pod is a review's body.

    python -m stress.hostile          how long each one keeps the webhook busy, and how much memory it leaves behind
"""

import gc
import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import median
from typing import Any, Final

import msgspec

from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import DeviceClass
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import Taint
from tessera.core.requests.alternatives import own_expression
from tessera.core.resources import is_any_gpu
from tessera.protocol.admission import review
from tessera.protocol.configuration import webhook as config
from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics

MIG: Final = "nvidia.com/mig-"
V100: Final = {"task.bkbcs.tencent.com/gpu-type": "V100"}
HOST: Final = "kubernetes.io/hostname"
CONFIG: Final = """
injection:
  resourceMap:
    V100:
      nvidia.com/gpu: &list
        resourceList: [{name: cpu, coefficient: 4}, {name: memory, coefficient: 8, unit: Gi}, {name: rdma/hca, coefficient: 1}]
      nvidia.com/mig-1g.10gb: *list
"""
EIGHTS: Final = 100  # pods of eight profiles, at random
TIMES: Final = 3  # that each pod is decided about; the least time counts, as the machine may be busy
MOST_MS: Final = 20.0  # of the processor, beside reading the review: fault 43 promises it
AIM_MS: Final = 5.0  # what we aim for; what takes longer is named at the end
Document = dict[str, Any]


def body(spec: Document, annotations: Mapping[str, str] | None = None, uid: str = "u") -> bytes:
    """A review of a pod that is created."""
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "team",
        "object": {"metadata": {"name": "p", "annotations": dict(annotations or {})}, "spec": spec},
    }
    whole = {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}
    return json.dumps(whole, separators=(",", ":")).encode()


def workload(*specs: Document, annotations: Mapping[str, str] | None = None) -> bytes:
    """A review of a JobSet that is created, with pod templates of these specs."""
    template = {"metadata": {"annotations": dict(annotations or {})}}
    jobs = [
        {"name": f"r{n}", "template": {"spec": {"template": {**template, "spec": one}}}}
        for n, one in enumerate(specs)
    ]
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
        "spec": {"replicatedJobs": jobs},
    }
    request = {
        "uid": "u",
        "kind": {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"},
        "operation": "CREATE",
        "namespace": "team",
        "object": made,
    }
    whole = {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}
    return json.dumps(whole, separators=(",", ":")).encode()


def container(number: int, limits: Document | None = None, **more: Any) -> Document:
    """A container as the API server sends it."""
    both = {"requests": limits, "limits": limits} if limits else {}
    return {"name": f"c{number}", "image": "x", "resources": both, **more}


def asks(profile: str = "2g.20gb", count: int = 1) -> list[Document]:
    """One container that asks for a slice."""
    return [container(0, {MIG + profile: str(count)})]


def required(*terms: Document) -> Document:
    """Node affinity with these terms."""
    selector = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": selector}


def expression(key: str, operator: str, *values: str) -> Document:
    """One condition of a term."""
    return {"key": key, "operator": operator, "values": list(values)}


def profiles(count: int) -> list[str]:
    """So many different profiles, none of which exists."""
    return [f"{1 + n % 999}g.{1 + n}gb" for n in range(count)]


def _term(field: str, *expressions: Document) -> Document:
    return {field: list(expressions)}


def _scattered(count: int, operator: str, keys: int) -> Document:
    terms = (_term("matchExpressions", expression(f"k{n % keys}", operator, f"v{n}")) for n in range(count))
    return {"containers": asks(), "affinity": required(*terms)}


def _sidecars(count: int, names: int) -> Document:
    """Init containers of both kinds, each with resources of its own: every moment is different."""
    init = [
        container(n, {f"example.com/r{n % names}": "1"}, **({"restartPolicy": "Always"} if n % 2 else {}))
        for n in range(count)
    ]
    return {"initContainers": init, "containers": asks()}


def _together(several: list[str]) -> Document:
    """Profiles that nearly fit together: the search for a node has the most to try."""
    return {"containers": [container(n, {MIG + one: "1"}) for n, one in enumerate(several)]}


_FIT: Final = ["1g.5gb", "1g.10gb", "1g.20gb", "2g.10gb", "2g.20gb", "3g.20gb", "3g.40gb", "4g.40gb"]
_NEAR: Final = ["1g.6gb", "1g.12gb", "1g.24gb", "2g.12gb", "2g.24gb", "3g.24gb", "3g.48gb", "4g.48gb"]
_FULL: Final = {"3g.40gb": 15, "1g.20gb": 15, "4g.40gb": 6, "2g.24gb": 15, "3g.20gb": 17, "3g.24gb": 18, "4g.48gb": 15, "2g.20gb": 14}  # fmt: skip


def _mixed(several: list[str]) -> Document:
    """As many containers as a pod may have, 24 of them with these profiles."""
    asks_for = [{MIG + several[n % len(several)]: "1"} if n < 24 else {"cpu": "10m"} for n in range(200)]
    return {"containers": [container(n, one) for n, one in enumerate(asks_for)]}


def eight(seed: int) -> bytes:
    """A pod of eight profiles, many of each, with injection."""
    chance = random.Random(seed)
    some = chance.sample([*_FIT, *_NEAR], 8)
    has = [{MIG + one: str(chance.randint(1, 18)), "cpu": str(chance.randint(1, 8))} for one in some]
    return body({"containers": [container(n, one) for n, one in enumerate(has)]}, V100)


# Workloads: at most ten times as much work as one pod.
WORKLOADS: Final[Mapping[str, Callable[[], bytes]]] = {
    "10 templates of 8 profiles that exist": lambda: workload(*[_together(_FIT)] * 10, annotations=V100),
    "10 templates with 60 resources that no node has": lambda: workload(
        *[
            {
                "containers": [
                    container(0, {MIG + "2g.20gb": "1", **{f"example.com/r{n}": "1" for n in range(60)}})
                ]
            }
        ]
        * 10
    ),
    "10 templates with 15 selected labels": lambda: workload(
        *[{"containers": asks(), "nodeSelector": {f"k{n}": "v" for n in range(15)}}] * 10
    ),
    "10 templates with 20 GPU containers, injected": lambda: workload(
        *[{"containers": [container(n, {"nvidia.com/gpu": "1"}) for n in range(20)]}] * 10, annotations=V100
    ),
    "10 templates with 200 GPU containers": lambda: workload(
        *[{"containers": [container(n, {"nvidia.com/gpu": "1"}) for n in range(200)]}] * 10, annotations=V100
    ),
    "5,000 templates": lambda: workload(*[{"containers": asks()}] * 5000),
    "nothing but lists, 6 MiB": lambda: workload({"containers": "LIST"}).replace(
        b'"LIST"', b"[" + b"[]," * 2_000_000 + b"[]]"
    ),
    "nothing but objects, 6 MiB": lambda: workload({"containers": "LIST"}).replace(
        b'"LIST"', b"[" + b"{}," * 2_000_000 + b"{}]"
    ),
    "nested deeply": lambda: workload({"containers": "LIST"}).replace(b'"LIST"', b"[" * 900 + b"]" * 900),
}


CORPUS: Final[Mapping[str, Callable[[], bytes]]] = {
    "4,000 GPU containers, injected": lambda: body(
        {"containers": [container(n, {"nvidia.com/gpu": "1"}) for n in range(4000)]}, V100
    ),
    "4,000 slices, rewritten and injected": lambda: body(
        {"containers": [container(n, {MIG + "2g.20gb": "1"}) for n in range(4000)]}, V100
    ),
    "200 GPU containers, injected": lambda: body(
        {"containers": [container(n, {"nvidia.com/gpu": "1"}) for n in range(200)]}, V100
    ),
    "200 slices, rewritten and injected": lambda: body(
        {"containers": [container(n, {MIG + "1g.5gb": "0" if n else "1"}) for n in range(200)]}, V100
    ),
    "200 containers of 3 profiles, injected": lambda: body(_mixed(["1g.5gb", "2g.20gb", "3g.40gb"]), V100),
    "200 containers of 8 profiles, injected": lambda: body(_mixed(_NEAR), V100),
    "6,000 profiles": lambda: body(
        {"containers": [container(n, {MIG + one: "1"}) for n, one in enumerate(profiles(6000))]}
    ),
    "6,000 profiles in one container": lambda: body(
        {"containers": [container(0, dict.fromkeys((MIG + one for one in profiles(6000)), "1"))]}
    ),
    "60 profiles in one container, injected": lambda: body(
        {"containers": [container(0, dict.fromkeys((MIG + one for one in profiles(60)), "1"))]}, V100
    ),
    "8 profiles that exist": lambda: body(_together(_FIT), V100),
    "8 profiles that do not exist": lambda: body(_together(_NEAR)),
    "8 profiles that fill a node": lambda: body(
        {"containers": [container(n, {MIG + one: str(_FULL[one])}) for n, one in enumerate(_FULL)]}, V100
    ),
    "8 profiles that nearly fit together": lambda: body(
        {
            "containers": [
                container(n, {MIG + one: str(count)})
                for n, (one, count) in enumerate(zip(_NEAR, (8, 20, 3, 12, 5, 2, 3, 1), strict=True))
            ]
        }
    ),
    "10,000 terms, In": lambda: body(_scattered(10_000, "In", 1)),
    "10,000 terms, NotIn": lambda: body(_scattered(10_000, "NotIn", 1)),
    "10,000 terms, In, of 1,000 keys": lambda: body(_scattered(10_000, "In", 1000)),
    "500 terms, NotIn, DoesNotExist": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(
                    _term(
                        "matchExpressions",
                        expression(HOST, "DoesNotExist"),
                        expression(f"k{n % 14}", "NotIn", f"v{n}"),
                    )
                    for n in range(500)
                )
            ),
        }
    ),
    "450 terms that begin alike": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(
                    _term("matchExpressions", expression("zone", "In", "a"), expression(HOST, "In", f"x{n}"))
                    for n in range(450)
                )
            ),
        }
    ),
    "400 excluded nodes": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                _term("matchExpressions", expression(HOST, "NotIn", *(f"n{n}" for n in range(400))))
            ),
        }
    ),
    "500 terms, Gt": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(_term("matchExpressions", expression("number", "Gt", f"{9000 + n}")) for n in range(500))
            ),
        }
    ),
    "4,900 values": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                _term("matchExpressions", expression(HOST, "NotIn", *(f"v{n}" for n in range(4900))))
            ),
        }
    ),
    "20,000 values": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                _term("matchExpressions", expression(HOST, "NotIn", *(f"v{n}" for n in range(20_000))))
            ),
        }
    ),
    "10,000 matchFields": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(_term("matchFields", expression("metadata.name", "NotIn", f"v{n}")) for n in range(10_000))
            ),
        }
    ),
    "400 named nodes": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(_term("matchFields", expression("metadata.name", "In", f"n{n}")) for n in range(400))
            ),
        }
    ),
    "10,000 named nodes": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(_term("matchFields", expression("metadata.name", "In", f"n{n}")) for n in range(10_000))
            ),
        }
    ),
    "39,000 containers with requests only": lambda: body(
        {"containers": [container(n) | {"resources": {"requests": {"cpu": "1m"}}} for n in range(39_000)]}
    ),
    "400 init containers and sidecars": lambda: body(_sidecars(400, 400)),
    "199 init containers and sidecars, 60 resources": lambda: body(_sidecars(199, 60)),
    "5,000 resources in one container": lambda: body(
        {
            "containers": [
                container(0, {MIG + "2g.20gb": "1", **{f"example.com/r{n}": "1" for n in range(5000)}})
            ]
        }
    ),
    "60 resources that no node has": lambda: body(
        {
            "containers": [
                container(0, {MIG + "2g.20gb": "1", **{f"example.com/r{n}": "1" for n in range(60)}})
            ]
        }
    ),
    "a profile's name of 300 KiB": lambda: body(
        {"containers": [container(0, {MIG + "1g." + "9" * 300_000 + "gb": "1"})]}
    ),
    "a container's name of 300 KiB": lambda: body(
        {"containers": [container(0, {MIG + "2g.20gb": "-1"}) | {"name": "n" * 300_000}]}
    ),
    "a resource's name of 200 KiB": lambda: body(
        {"containers": [container(0, {MIG + "2g.20gb": "1", "a" * 200_000 + ".example.com/x": "1"})]}
    ),
    "5,000 tolerations": lambda: body(
        {
            "containers": asks(),
            "tolerations": [
                {"key": f"k{n}", "operator": "Exists", "effect": "NoSchedule"} for n in range(5000)
            ],
        }
    ),
    "200 tolerations": lambda: body(
        {
            "containers": asks(),
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": f"v{n}"} for n in range(200)],
        }
    ),
    "200 tolerations of taints that nodes have": lambda: body(
        {
            "containers": asks(),
            "tolerations": [{"key": "pool", "operator": "Equal", "value": f"p{n}"} for n in range(200)],
        }
    ),
    "200 tolerations that compare": lambda: body(
        {
            "containers": asks(),
            "tolerations": [{"key": "size", "operator": "Lt", "value": f"{n}"} for n in range(200)],
        }
    ),
    "3 labels that differ on every node": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                _term(
                    "matchExpressions",
                    *(expression(key, "NotIn", "v") for key in (HOST, "number", "own")),
                )
            ),
        }
    ),
    "16 labels that no pod looked at before": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                _term("matchExpressions", *(expression(f"label{n}", "NotIn", "v") for n in range(16)))
            ),
        }
    ),
    "16 labels that no pod compared before": lambda: body(
        {
            "containers": asks(),
            "affinity": required(
                *(_term("matchExpressions", expression(f"label{n}", "Gt", "2500")) for n in range(16))
            ),
        }
    ),
    "15 selected labels": lambda: body(
        {
            "containers": asks(),
            "nodeSelector": {f"k{n}": "v" for n in range(14)},
            "affinity": required(_term("matchExpressions", expression(HOST, "NotIn", "v"))),
        }
    ),
    "5,000 selected labels": lambda: body(
        {"containers": asks(), "nodeSelector": {f"k{n}": "v" for n in range(5000)}}
    ),
    "10,000 annotations": lambda: body({"containers": asks()}, {f"k{n}": "v" * 10 for n in range(10_000)}),
    "a record of 250 KiB": lambda: body(
        {"containers": asks()},
        {"gpu-webhook.k8s.io/fallback": ",".join(f"{n % 900 + 1}g.{n + 1}gb->1g.5gb" for n in range(12_000))},
    ),
    "a GPU type of 250 KiB": lambda: body(
        {"containers": asks()}, {"task.bkbcs.tencent.com/gpu-type": "T" * 250_000}
    ),
    "quantities of thousands of digits": lambda: body(
        {"containers": [container(n, {"cpu": "9" * 5000}) for n in range(50)]}
    ),
    "quantities of 120 digits": lambda: body(
        {
            "containers": [
                container(
                    n, {MIG + "2g.20gb": "1", "cpu": f"{n:03}" + "9" * 110 + "m", "memory": f"1.{n}e900"}
                )
                for n in range(150)
            ]
        },
        V100,
    ),
    "needs between the smallest and the largest node": lambda: body(
        {
            "containers": [container(0, {MIG + "2g.20gb": "1", "cpu": "40", "memory": "1Gi"})],
            "nodeSelector": {"zone": "b"},
            "tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(60)],
        }
    ),
    "empty containers, 6.6 MiB": lambda: body({"containers": "LIST"}).replace(
        b'"LIST"', b"[" + b"{}," * 2_300_000 + b"{}]"
    ),
    "tolerations of one letter, 6 MiB": lambda: body({"containers": asks(), "tolerations": "LIST"}).replace(
        b'"LIST"', b"[" + b"{}," * 2_000_000 + b"{}]"
    ),
    "annotations of one letter, 6 MiB": lambda: body({"containers": asks()}, {"LIST": ""}).replace(
        b'"LIST":""', b",".join(b'"%d":""' % n for n in range(500_000))
    ),
    "values of one letter, 6 MiB": lambda: body(
        {"containers": asks(), "affinity": required(_term("matchExpressions", expression("a", "In", "LIST")))}
    ).replace(b'"LIST"', b",".join([b'"ab"'] * 1_200_000)),
}


_OFFERED: Final = ("1g.10gb", "1g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def cluster(nodes: int, *, dra: bool = False) -> Offers:
    """Nodes of several kinds, with labels, taints and sizes that differ; `dra`, with classes that serve their GPUs."""
    offers = Offers(_node(number, dra=dra) for number in range(nodes))
    if dra:
        types = [MIG + profile for profile in _OFFERED] + ["nvidia.com/gpu"]
        offers.put_classes({name: DeviceClass("c", (own_expression(name),)) for name in types}, ())
    return offers


@cache
def _node(number: int, *, dra: bool) -> Node:
    has = {
        MIG + _OFFERED[number % 5]: 1 + number % 7,
        MIG + _OFFERED[(number + 1) % 5]: 1,
        "cpu": 32 + number % 32,
    }
    if number % 7 == 0:
        has["nvidia.com/gpu"] = 8
    labels = {"zone": "abcd"[number % 4], HOST: f"n{number}", "nvidia.com/gpu.product": f"P{number % 5}"}
    taints = (Taint("dedicated", f"team{number % 3}"),) if number % 6 == 0 else ()
    amounts = {name: Quantity.parse(str(count)) for name, count in has.items()}
    every = amounts | {"memory": Quantity.parse("64Gi")}
    if not dra:
        return Node(f"n{number}", labels, taints, every)
    gpus = {name: has[name] for name in has if is_any_gpu(name)}
    return Node(f"n{number}", labels, taints, {n: every[n] for n in every if n not in gpus}, dra=gpus)


_TAINTS: Final[tuple[Callable[[int], tuple[Taint, ...]], ...]] = (
    lambda number: (Taint("dedicated", f"team{number % 3}"),),
    lambda number: (Taint("pool", f"p{number % 300}"),),
    lambda number: (Taint("size", f"{number % 400}"),),
    *[lambda _: ()] * 3,
)


def different(nodes: int, *, dra: bool = False) -> Offers:
    """Nodes of which nearly every one differs: in what it offers, in cpu, memory and disk, in labels, half of them in taints."""
    chance = random.Random(7)
    offered = (*_FIT, "7g.80gb", "1g.10gb.me")

    def one(number: int) -> Node:
        gpus = {MIG + name: chance.randint(1, 28) for name in chance.sample(offered, chance.randint(2, 5))}
        if chance.random() < 0.3:
            gpus["nvidia.com/gpu"] = chance.randint(1, 8)
        labels = {
            "zone": "abcd"[number % 4],
            "number": str(number),
            HOST: f"n{number}",
            "nvidia.com/gpu.product": f"P{number % 5}",
            "nvidia.com/gpu.memory": chance.choice(("16384", "40960", "81920")),
            "own": f"own-{number}",
            **{f"label{n}": f"{number}" if n < 2 else f"{number % (n + 2)}" for n in range(24)},
        }
        taints = _TAINTS[number % 6](number)
        rest = {
            "cpu": Quantity.parse(f"{chance.randint(16_000, 128_000)}m"),
            "memory": Quantity.parse(f"{chance.randint(2**26, 2**30)}Ki"),
            "ephemeral-storage": Quantity.parse(f"{chance.randint(10**8, 10**9)}Ki"),
        }
        if dra:
            return Node(f"n{number}", labels, taints, rest, dra=gpus)
        amounts = {name: Quantity.parse(str(count)) for name, count in gpus.items()}
        return Node(f"n{number}", labels, taints, rest | amounts)

    offers = Offers(map(one, range(nodes)))
    if dra:
        types = [MIG + profile for profile in offered] + ["nvidia.com/gpu"]
        offers.put_classes({name: DeviceClass("c", (own_expression(name),)) for name in types}, ())
    return offers


def prepared(offers: Offers) -> Offers:
    """With all made that the webhook makes before it decides."""
    for _ in offers.prepare():
        pass
    return offers


CLUSTERS: Final[Mapping[str, Callable[[], Offers]]] = {
    "1,000 nodes": partial(cluster, 1000),
    "1,000 nodes, all different": partial(different, 1000),
    "5,000 nodes, all different": partial(different, 5000),
    "5,000 nodes, all different, of DRA": partial(different, 5000, dra=True),
}


def endpoint(admission: Admission, metrics: Metrics | None = None) -> Endpoint:
    """The handler that the server calls."""
    log = Log(fd=os.open(os.devnull, os.O_WRONLY))
    return Endpoint(admission, lambda: None, metrics or Metrics("stress"), log)


def parsing(octets: bytes) -> float:
    """Seconds that reading a body alone takes, whatever is decided about it."""
    begun = time.thread_time()
    try:
        msgspec.json.decode(octets, type=msgspec.Raw)
        review.decode(octets)
    except InvalidInput:
        return time.thread_time() - begun  # what is refused has been read, too
    return time.thread_time() - begun


def deciding(octets: bytes, offers: Offers, policy: Policy) -> float:
    """Seconds that deciding takes, beside reading: the least of several times, by a webhook that remembers no pod."""
    read = min(parsing(octets) for _ in range(TIMES))
    spent = []
    for _ in range(TIMES):
        handler = endpoint(Admission(offers, policy))
        gc.collect()
        gc.freeze()  # as the webhook does
        begun = time.thread_time()
        handler.handle(octets)
        spent.append(time.thread_time() - begun)
    return max(0.0, min(spent) - read)


def left_behind(octets: bytes, offers: Offers, policy: Policy) -> tuple[int, int]:
    """Bytes at the peak of a decision, and after it."""
    handler = endpoint(Admission(offers, policy))
    gc.collect()
    tracemalloc.start()
    handler.handle(octets)
    gc.collect()
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, left


def main() -> None:
    """Print what each attack costs in each cluster."""
    policy = config.parse(CONFIG).policy
    spent: dict[str, float] = {}
    for where, make in CLUSTERS.items():
        offers = prepared(make())
        print(f"{offers.label_bytes / 2**20:.1f} MiB of label tables at {where}")
        print(f"{'attack':55} {'KiB':>7} {'reading':>9} {'the rest':>9} {'peak MiB':>9} {'left KiB':>9}")
        for name, make_pod in CORPUS.items():
            octets = make_pod()
            rest = spent[f"{name}, at {where}"] = deciding(octets, offers, policy) * 1e3
            peak, left = left_behind(octets, offers, policy)
            print(
                f"{name:55} {len(octets) / 1024:7.0f} {parsing(octets) * 1e3:6.1f} ms {rest:6.1f} ms {peak / 2**20:9.1f} {left / 1024:9.1f}"
            )
        some = {seed: deciding(eight(seed), offers, policy) * 1e3 for seed in range(EIGHTS)}
        spent |= {f"eight({seed}), at {where}": ms for seed, ms in some.items()}
        print(
            f"{EIGHTS} pods of 8 profiles with injection: median {median(some.values()):.1f} ms, longest {max(some.values()):.1f} ms"
        )
    longest = max(spent, key=spent.__getitem__)
    print(
        f"the longest: {spent[longest]:.1f} ms of the processor, by {longest}; load of the machine: {os.getloadavg()[0]:.1f}"
    )
    beyond = [f"{name} ({ms:.1f} ms)" for name, ms in spent.items() if ms > AIM_MS]
    print(f"more than {AIM_MS:.0f} ms: {'; '.join(beyond) or 'none'}")
    if spent[longest] > MOST_MS:
        raise SystemExit(f"{longest} takes {spent[longest]:.1f} ms, more than {MOST_MS:.0f}")


if __name__ == "__main__":
    main()
