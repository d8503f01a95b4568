"""What a search found for a pod: what it asked for, replacements, or nothing, with every candidate and the reason why not."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tessera.core.admission.fallback.candidates import Step
from tessera.core.admission.view.usable import UNLIMITED, Usable
from tessera.core.resources import short
from tessera.core.text import first_of
from tessera.core.values import value

_WANTED: Final = re.compile(r"asked for ((?:[^\s:,]+: \d{1,6}, )+)")  # how `Unmatched` begins
_MOST_NAMED: Final = 12  # candidates in a message; a person reads no more


@value
class AsAsked:
    """Everything asked for is offered, or nothing that fallback looks at is asked for."""


@value
class Replace:
    """The profiles to replace: resource → resource, in container order."""

    by: Mapping[str, str]


@value
class Trial:
    """One candidate for one profile, and what speaks for or against it."""

    asked: str
    candidate: str
    kind: Step
    offered: bool
    reason: str
    chosen: bool = False


@value
class Unmatched:
    """Nothing that is allowed fits: what was asked, what was tried and why not, what is there."""

    asked: tuple[tuple[str, int], ...]  # whole GPUs besides are the last of them
    trials: tuple[Trial, ...]
    usable: tuple[tuple[str, int], ...]  # on the nodes that the pod could be placed on
    anywhere: tuple[tuple[str, int], ...]
    too_small: tuple[str, ...] = ()  # the needs of the pod for which further nodes are too small
    never: str = ""  # who wants the pod to wait
    too_many: bool = False  # more profiles than can be searched
    over_quota: bool = False  # nodes offer something that would do, and a quota has no room for it

    @property
    def wanted(self) -> str:
        return ", ".join(f"{resource}: {count}" for resource, count in self.asked)

    def __str__(self) -> str:
        if self.too_many:
            return f"asked for {self.wanted}: too many different profiles to place together; ask for fewer"
        own = [one for one in self.trials if one.kind is Step.AS_ASKED]
        if all(one.offered for one in own):
            why = "and no node that this pod can use has all of it"
        elif len(own) == 1:
            why = _why_not(own[0])
        else:
            why = "; ".join(f"{short(one.asked)}: {one.reason}" for one in own)
        tried = list(dict.fromkeys(
            f"{short(one.candidate)} ({one.reason})" for one in self.trials if one.kind is not Step.AS_ASKED
        ))  # fmt: skip
        words = first_of(tried, _MOST_NAMED) or "nothing else, since its chain names nothing else"
        where = f"the nodes that this pod can use offer {listed(self.usable)}"
        if self.usable != self.anywhere:
            where += f", the whole cluster {listed(self.anywhere)}"
        if self.too_small:
            where += f"; nodes that could never hold its {', '.join(self.too_small)} do not count"
        return f"asked for {self.wanted}, {why}; tried {words}; {where}"


def wanted_in(message: str) -> dict[str, int]:
    """What a pod asked for that was rejected with this message; nothing where it was rejected for something else."""
    found = _WANTED.search(message)
    pairs = (one.partition(": ") for one in found[1].split(", ") if one) if found else ()
    return {resource: int(number) for resource, _, number in pairs}


def _why_not(own: Trial) -> str:
    if own.reason == NOT_OFFERED:
        return "and no node that this pod can use offers it"
    if own.reason == NO_ROOM:
        return "and no node that this pod can use has room for it and for what is injected"
    return f"and no node that this pod can use has enough of it ({own.reason.removeprefix(NOT_ENOUGH)})"


def offered_in_words(usable: Usable, resource: str) -> str:
    """How many of a resource the usable nodes offer, and through what."""
    most = usable.most.get(resource, 0)
    if most == UNLIMITED:
        return "offered (autoscaler)"
    through = ""
    if usable.from_dra(resource):
        through = ", through a device plugin or DRA" if usable.from_plugin(resource) else ", through DRA"
    return f"offered, up to {most} a node{through}"


def free_in_words(now: Usable, resource: str, most: int) -> str:
    """How many of a resource are free, behind what is offered; `most`: on one node, whatever else is free there."""
    if now.most.get(resource) == UNLIMITED:
        return ""
    if count := now.most.get(resource, 0):
        return f"; up to {count} free on a node now"
    return "; free now only where the rest of the pod has no room" if most else "; none free now"


def listed(counts: Sequence[tuple[str, int]]) -> str:
    return (
        ", ".join(f"{short(r)} (up to {n} a node)" if n < UNLIMITED else short(r) for r, n in counts)
        or "no GPU at all"
    )


Found = AsAsked | Replace | Unmatched

NOT_OFFERED: Final = "not offered"
NOT_ENOUGH: Final = "not enough: "
NOT_TOGETHER: Final = "not together with the rest"
NO_ROOM: Final = "no node has room for it and for what is injected"
