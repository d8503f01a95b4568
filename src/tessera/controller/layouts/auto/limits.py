"""Limits that hold whatever becomes of the nodes that are being changed.

A node on which a re-cut has begun has its old devices, its new ones, or soon its old ones again; of a node whose layout is not known only what is allocatable
is. What is counted of such nodes may not be there, and other devices may be: the limits are made as much stricter.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tessera.controller.layouts.plan import SeenNode
from tessera.core.autopilot.values import CardSupply, Limits
from tessera.core.kubernetes.resources import WHOLE_GPU
from tessera.core.mig.profile import MigProfile
from tessera.rollout.progress import offered_by

Device = MigProfile | None  # None: a whole GPU


def careful(
    limits: Limits,
    nodes: Iterable[SeenNode],
    cards: Mapping[str, Sequence[CardSupply]],
    changed: Collection[str],
) -> Limits:
    """The limits for what is counted in `cards`; `changed`: nodes of which what was seen may be out of date."""
    missing, more = Counter[Device](), Counter[Device]()
    for node in nodes:
        others = [*_others(node, out_of_date=node.name in changed or node.name not in cards)]
        if not others:
            continue
        counted = _counted(cards.get(node.name, ()))
        ways = [counted, *others]
        for device in set[Device]().union(*ways):
            numbers = [one[device] for one in ways]
            if node.name in cards:
                missing[device] += counted[device] - min(numbers)
            more[device] += max(numbers) - counted[device]
    return replace(
        limits,
        minimum={one: number + missing[one] for one, number in limits.minimum.items()},
        maximum={one: number - more[one] for one, number in limits.maximum.items()},
        keep_whole=limits.keep_whole and limits.keep_whole + missing[None],
    )


def _counted(cards: Iterable[CardSupply]) -> Counter[Device]:
    found = Counter[Device]()
    for card in cards:
        if card.layout.mig_enabled:
            found.update(one.profile for one in card.layout.instances)
        else:
            found[None] += 1
    return found


def _others(node: SeenNode, *, out_of_date: bool) -> Iterable[Counter[Device]]:
    """What a node may have instead."""
    record = node.record
    if record is not None:
        yield _devices(record.offered)
        yield _devices(record.expected or {})
    if out_of_date and (offered := offered_by(node.node)):
        yield _devices(offered)


def _devices(resources: Mapping[str, int]) -> Counter[Device]:
    """Devices by what they are called under the MIG strategy mixed, which alone is planned for."""
    found = Counter[Device]()
    for resource, number in resources.items():
        profile = MigProfile.of_resource(resource)
        if profile is not None or resource == WHOLE_GPU:
            found[profile] += number
    return found
