"""What `tessera mig apply` says to people: what would change, and what became of it."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tessera.cli.common.terminal import Style
from tessera.core.text import first_of
from tessera.rollout.changes import Change
from tessera.rollout.rollout import NodeRollout

_CONTEXT: Final = 2  # lines around a change: a layout has few
_MOST_NAMED: Final = 8  # nodes that change alike are named up to here, and counted beyond


def describe(changes: Sequence[Change], style: Style) -> Iterator[str]:
    """What would change, for people; nodes that change alike are told together."""
    alike: dict[tuple[Any, ...], list[Change]] = {}
    for change in changes:
        if not change.written:
            key = (change.before, change.after, tuple(change.counts))
            alike.setdefault(key, []).append(change)
    for same in alike.values():
        yield style.bold(_nodes([change.node for change in same]))
        for line in _diff(same[0]):
            paint = {"-": style.bad, "+": style.good}.get(line[:1], style.dim)
            yield "  " + paint(line)
        for resource, before, after in same[0].counts:
            yield f"  {resource}: {before} → {after}"
        for change in same:
            for risk in change.risks:
                yield "  " + style.note(f"warning: {change.node}: {risk}")
    already = [change.node for change in changes if change.written]
    if already:
        yield f"{_nodes(already)}: no change, the layout is the same"


def _diff(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.wanted.label:
        if before is not None:
            yield f"- {change.wanted.key}={before}"
        yield f"+ {change.wanted.key}={after}"
        return
    yield change.wanted.key
    lines = difflib.unified_diff((before or "").splitlines(), after.splitlines(), n=_CONTEXT, lineterm="")
    for line in list(lines)[2:]:  # without names of files, of which there are none
        if not line.startswith("@@"):
            yield f"{line[:1]} {line[1:]}"


def _nodes(names: Sequence[str]) -> str:
    return f"node{'s' if len(names) > 1 else ''} {first_of(names, _MOST_NAMED)}"


def summary(outcomes: Iterable[NodeRollout]) -> Iterator[str]:
    """What became of the nodes: a line for each with a reason, then how many ended in each way."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts[outcome.result] += 1
        if outcome.reason:
            yield f"{outcome.node}: {outcome.result}: {outcome.reason}"
    yield ", ".join(f"{number} {result}" for result, number in counts.items())
