"""What pods take of the nodes that decisions see, and pods that wait: as the view has them, made without documents."""

from collections.abc import Iterator
from typing import Final

from benchmarks.corpus.templates import TEMPLATES
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, ViewedPod, WaitingPod, ordered, usage_of
from tessera.core.kubernetes.node import Offer
from tessera.core.kubernetes.pod import Container, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.profile import MigProfile

_PODS: Final = 20  # of a node; one in three holds a device
_ORIGIN: Final = Origin("team-0", "3c1f6d7e-52a0-4c0e-8a55-0f6b0a1d2c3b", "trainer-")
_GIB: Final = 2**30


def pods_on(offers: Offers, *, full: bool = False, waiting: int = 0) -> Iterator[tuple[str, ViewedPod]]:
    """The pods of the nodes with GPUs, and so many that wait.

    In a full cluster they hold all devices but a quarter of each node's smallest slices.
    """
    for number, node in enumerate(offers.nodes.values()):
        offer = node.offer
        if not offer.counts:
            continue
        held = list(_held(offer)) if full else [offer.counts[0][0]] * (_PODS // 3)
        for place in range(max(_PODS, len(held))):
            gpus = {held[place]: 10**9} if place < len(held) else {}
            size = {"cpu": (100 + (number + place) % 40 * 25) * 10**6, "memory": _GIB * 10**9}
            yield f"team-0/trainer-{number}-{place}", BoundPod(node.name, ordered(gpus | size), _ORIGIN)
    for number in range(waiting):
        template = TEMPLATES[number % 5]
        containers = tuple(_container(asks, number + place) for place, asks in enumerate(template.asks))
        pod = Pod(containers=containers, node_selector=template.selector)
        shape = Shape(pod, usage_of(pod))
        yield f"team-0/queued-{number}", WaitingPod(shape, _ORIGIN, created=float(number))


def _held(offer: Offer) -> Iterator[str]:
    profiles = [(profile, name) for name, _ in offer.counts if (profile := MigProfile.of_resource(name))]
    smallest = min(profiles)[1] if profiles else ""
    for resource, count in offer.counts:
        yield from [resource] * (count - count // 4 if resource == smallest else count)


def _container(asks: dict[str, str], number: int) -> Container:
    amounts = {"cpu": f"{100 + number % 40 * 25}m", "memory": "1Gi", **asks}
    return Container(f"c{number}", {name: Quantity.parse(amount) for name, amount in amounts.items()})
