"""Pods that wait, in groups: those of one owner that ask for the same, for the same reason, are one row of the page.

A Job with a thousand pods that wait is one thing to know. The reason is the diagnosis' where it is known, else the scheduler's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from tessera.dashboard.history import asks_of
from tessera.dashboard.observed import DashboardPod

_MOST: Final = 200  # groups that are shown

Alike = tuple[tuple[object, ...], str]  # what the pods of a group have in common; the reason last


@dataclass(slots=True)
class Group:
    """Pods that wait alike: the one that waits longest, and how many they are."""

    oldest: DashboardPod
    count: int = 0

    def add(self, oldest: DashboardPod, count: int = 1) -> None:
        self.oldest = min(self.oldest, oldest, key=_age)
        self.count += count


def groups_of(pods: Iterable[DashboardPod]) -> dict[Alike, Group]:
    """The groups, by what their pods have in common, the scheduler's words last."""
    found: dict[Alike, Group] = {}
    for one in pods:
        use = one.use
        key = (use.namespace, one.owner, use.record, use.claim, *use.amounts.items()), one.why
        found.setdefault(key, Group(one)).add(one)
    return found


def longest(pods: Iterable[DashboardPod], most: int) -> dict[Alike, DashboardPod]:
    """The groups that wait longest, each with its oldest pod."""
    found = nsmallest(most, groups_of(pods).items(), key=lambda item: _age(item[1].oldest))
    return {alike: group.oldest for alike, group in found}


def pending_part(pods: Iterable[DashboardPod], reasons: Mapping[Alike, str]) -> dict[str, Any]:
    """Those that wait longest first; all are counted, some are shown. `reasons`: the diagnosis', by group."""
    alike: dict[Alike, Group] = {}
    for key, group in groups_of(pods).items():
        asks, said = key
        alike.setdefault((asks, reasons.get(key, said)), Group(group.oldest)).add(group.oldest, group.count)
    shown = nsmallest(_MOST, alike.items(), key=lambda found: _age(found[1].oldest))
    return {
        "count": sum(group.count for group in alike.values()),
        "groups": len(alike),
        "longest": [_row(group, why) for (_, why), group in shown],
    }


def _row(group: Group, why: str) -> dict[str, Any]:
    use = group.oldest.use
    return {
        "namespace": use.namespace,
        "pod": use.name,
        "owner": group.oldest.owner,
        "count": group.count,
        "asks": asks_of(use),
        "record": use.record,
        "why": why,
        "since": use.created,
    }


def _age(one: DashboardPod) -> tuple[str, str]:
    return one.use.created, one.use.name
