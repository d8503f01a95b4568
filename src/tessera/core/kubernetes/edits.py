"""What is changed in a pod: edits, as the difference between two pods with the same containers."""

from collections.abc import Iterator
from typing import Literal

from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.values import value

Section = Literal["requests", "limits"]
ContainerList = Literal["initContainers", "containers"]


@value
class SetAmount:
    containers: ContainerList
    index: int
    section: Section
    resource: str
    amount: Quantity


@value
class DropAmount:
    containers: ContainerList
    index: int
    section: Section
    resource: str


@value
class SetAnnotation:
    key: str
    value: str


@value
class ClaimRequest:
    claim: str
    request: str


@value
class SetClaims:
    """Write which claims a container uses; it has none before."""

    containers: ContainerList
    index: int
    claims: tuple[ClaimRequest, ...]


@value
class SetPodClaims:
    """Write the pod's one claim, and the template that it is made from; it has none before."""

    claim: str
    template: str


Edit = SetAmount | DropAmount | SetAnnotation | SetClaims | SetPodClaims


def difference(before: Pod, after: Pod) -> Iterator[Edit]:
    """The edits that turn one pod into the other, which has the same containers."""
    if before is after:
        return
    lists: tuple[tuple[ContainerList, tuple[Container, ...], tuple[Container, ...]], ...] = (
        ("initContainers", before.init_containers, after.init_containers),
        ("containers", before.containers, after.containers),
    )
    for name, old, new in lists:
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            if one is not other:
                yield from _section_difference(name, index, "requests", one.requests, other.requests)
                yield from _section_difference(name, index, "limits", one.limits, other.limits)
    if before.annotations is not after.annotations:
        for key, value in after.annotations.items():
            if before.annotations.get(key) != value:
                yield SetAnnotation(key, value)


def _section_difference(
    name: ContainerList, index: int, section: Section, old: Amounts, new: Amounts
) -> list[Edit]:
    if old is new:
        return []
    edits: list[Edit] = [
        DropAmount(name, index, section, resource) for resource in old if resource not in new
    ]
    edits += [
        SetAmount(name, index, section, resource, amount)
        for resource, amount in new.items()
        if (before := old.get(resource)) is None or (before is not amount and before != amount)
    ]
    return edits
