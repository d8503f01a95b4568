"""A GPU cluster with a queue, as `kubectl get nodes,pods -A -o json` saves it: what `tessera mig plan` is measured with.

Half of the nodes have eight H200, half eight A100-80GB, cut in eight ways and mostly in use; one in twenty-five is
idle, one in twenty not cut. Most waiting pods wait for devices that are cut too rarely. Some wait for another reason
while devices of theirs are free: a taint, a label that no node has, more cpu than the nodes have.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations_with_replacement
from itertools import product as cartesian
from typing import Final

from benchmarks.corpus.documents import Document, encoded
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout, entries_of
from tessera.core.mig.placement import Instance, Wish, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import CardToCut
from tessera.core.resources import MIG_PREFIX
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, mapping_of

CARDS: Final = 8  # of a node
_PRODUCTS: Final = ("H200", "A100-80GB")
# sizes of devices on one card; a node has one of these on its first four cards and the next on the others
_CUTS: Final = (
    ("3g", "3g"),
    ("7g",),
    ("4g", "3g"),
    ("7g",),
    ("3g", "2g"),
    ("3g",),
    ("2g",),
    ("1g", "1g", "1g"),
)
_GIGABYTES: Final = {
    "H200": {"1g": 18, "2g": 35, "3g": 71, "4g": 71, "7g": 141},
    "A100-80GB": {"1g": 10, "2g": 20, "3g": 40, "4g": 40, "7g": 80},
}
_DEDICATED: Final = {"key": "dedicated", "value": "research", "effect": "NoSchedule"}


def profile(product: str, size: str) -> MigProfile:
    """`3g` of an H200: 3g.71gb."""
    return MigProfile(int(size[0]), _GIGABYTES[product][size])


@cache
def _card(product: str, cut: Sequence[str]) -> CardLayout:
    return CardLayout.cut(product_named(product), [Wish(profile(product, size)) for size in cut])


@cache
def _layout(product: str, first: int) -> NodeLayout:
    cuts = [_CUTS[first]] * (CARDS // 2) + [_CUTS[(first + 1) % len(_CUTS)]] * (CARDS - CARDS // 2)
    return NodeLayout(tuple(_card(product, cut) for cut in cuts))


@cache
def _annotation(product: str, first: int) -> str:
    return mig.write(mig.MigDocument(mig.Format.RUNAI, {mig.SELECTED: entries_of(_layout(product, first))}))


def _cut_of(number: int) -> int:
    return number * 7 % len(_CUTS)


def _uncut(number: int) -> bool:
    return number % 40 >= 38


def cluster_file(nodes: int = 5000, running: int = 57_000, waiting: int = 3000) -> Iterator[bytes]:
    """The file, in pieces; the same for the same numbers."""
    yield b'{"apiVersion":"v1","kind":"List","items":[\n'
    for number in range(nodes):
        yield (b"" if number == 0 else b",\n") + encoded(gpu_node(number))
    for placed, (number, held) in enumerate(_held(nodes, running)):
        yield b",\n" + encoded(_pod(f"trainer-{placed}", placed, held, f"gpu-{number:05d}"))
    for number in range(waiting):
        yield b",\n" + encoded(waiting_pod(number))
    yield b"]}\n"


def gpu_node(number: int) -> Document:
    """A node as it is listed."""
    product, name = _PRODUCTS[number % 2], f"gpu-{number:05d}"
    layout = _layout(product, _cut_of(number))
    label = product_named(product).label
    annotations = {} if _uncut(number) else {"run.ai/mig.config": _annotation(product, _cut_of(number))}
    if annotations and number % 4 < 2:  # operators differ in whether they tell what became of a layout
        annotations[MAPPING] = encode_mapping(mapping_of(layout, name))
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "creationTimestamp": "2026-03-01T10:00:00Z",
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": f"zone-{'abc'[number // 2 % 3]}",
                "nvidia.com/gpu.product": label,
                "nvidia.com/gpu.memory": str(product_named(product).memory_mib),
                "nvidia.com/gpu.count": str(CARDS),
                "nvidia.com/mig.strategy": "mixed",
                "nvidia.com/mig.config.state": "success",
            },
            "annotations": annotations,
        },
        "spec": {"taints": [_DEDICATED]} if number % 20 == 4 else {},
        "status": {
            "allocatable": {
                "cpu": "191500m",
                "memory": "2014Gi",
                "pods": "110",
                **(
                    {"nvidia.com/gpu": str(CARDS)}
                    if _uncut(number)
                    else {resource: str(count) for resource, count in layout.resources().items()}
                ),
            },
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _held(nodes: int, running: int) -> Iterator[tuple[int, str]]:
    """Node and resource of every running pod: node by node every device, those that are cut small last."""
    left = running
    for number in sorted(range(nodes), key=lambda number: (_CUTS[_cut_of(number)] == ("2g",), number)):
        if _uncut(number) or number % 25 == 24:
            continue
        offered = _layout(_PRODUCTS[number % 2], _cut_of(number)).resources()
        for resource in [resource for resource, count in offered.items() for _ in range(count)][:left]:
            left -= 1
            yield number, resource


# size, where it may go, what else it asks for; of twenty waiting pods in a row
_QUEUE: Final = (
    *[("1g", {}, "4")] * 2,
    *[("2g", {}, "8")] * 2,
    *[("3g", {}, "8")] * 3,
    *[("4g", {}, "8")] * 2,
    *[("7g", {}, "16")] * 5,
    *[("3g", {"topology.kubernetes.io/zone": "zone-b"}, "8")] * 2,
    ("2g", {"topology.kubernetes.io/zone": "zone-a"}, "8"),
    ("1g", {"team": "none"}, "4"),  # a label that no node has
    ("3g", {}, "400"),  # more cpu than any node has
    ("2g", {"dedicated": "research"}, "8"),
)


def waiting_pod(number: int) -> Document:
    """A pod that no node has."""
    size, selector, cpu = _QUEUE[number * 7 % len(_QUEUE)]
    product = _PRODUCTS[number // len(_QUEUE) % 2]
    return _pod(f"queued-{number}", number, MIG_PREFIX + str(profile(product, size)), "", selector, cpu)


def _pod(
    name: str, number: int, resource: str, node: str, selector: Document | None = None, cpu: str = "2"
) -> Document:
    amounts = {"cpu": cpu, "memory": "16Gi", resource: "1"}
    phase = "Running" if node else "Pending"
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 7}",
            "uid": f"{number:08x}-0000-4000-8000-000000000001",
            "creationTimestamp": "2026-11-15T08:00:00Z",
            "labels": {"app": "trainer", "pod-template-hash": "5d4f8c7b9"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "3c1f6d7e-52a0-4c0e-8a55-0f6b0a1d2c3b"}
            ],
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            **({"nodeSelector": selector} if selector else {}),
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/research/main:2026.11.3",
                    "command": ["python", "-m", "main", "--epochs", "90", "--data", "/data"],
                    "resources": {"requests": amounts, "limits": amounts},
                    "volumeMounts": [{"name": "dataset", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "dataset", "persistentVolumeClaim": {"claimName": "imagenet"}}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {"phase": phase, "conditions": [{"type": "PodScheduled", "status": str(bool(node))}]},
    }  # fmt: skip


@cache
def _states(product: str) -> tuple[tuple[Instance, ...], ...]:
    """Ways in which a card may hold devices and have room for more, the empty one first."""
    known = product_named(product)
    layouts: dict[tuple[Instance, ...], None] = {(): None}
    for sizes in combinations_with_replacement(("1g", "2g", "3g", "4g"), 2):
        for count in (1, 2):
            for places in cartesian(range(8), repeat=count):
                wishes = [Wish(profile(product, size), at) for size, at in zip(sizes, places, strict=False)]
                placed = place(known, wishes)
                if placed is not None and place(known, [*wishes, Wish(profile(product, "1g"))]):
                    layouts[placed] = None
    return tuple(layouts)


def cards_of(count: int, kinds: int) -> list[CardToCut]:
    """Cards of both products, in so many states; every state as often as the others."""
    states = [
        CardToCut(product_named(product), state)
        for product, half in zip(_PRODUCTS, (kinds - kinds // 2, kinds // 2), strict=True)
        for state in _states(product)[:half]
    ]
    return [states[number % len(states)] for number in range(count)]


def demand_for(cards: int) -> dict[MigProfile, int]:
    """A demand that some cards serve in part: of every size as many as a fifth of the cards, of the smallest as many as all."""
    return {
        profile(product, size): cards // (1 if size == "1g" else 5)
        for product in _PRODUCTS
        for size in ("1g", "2g", "3g", "4g", "7g")
    }
