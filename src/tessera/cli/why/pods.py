"""Why a pod waits, was changed or was never created, and what would make it run: as text, and as a document."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tessera.cli.common.output import Style, block, table
from tessera.core.text import age, first_of, number_of
from tessera.diagnosis.diagnosis import Diagnosis, diagnose
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.gather import CONFIGURATION, Gatherer
from tessera.diagnosis.nodes import counted
from tessera.diagnosis.remedy import Remedy
from tessera.diagnosis.waiting import Cause
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource
from tessera.protocol.kubernetes.objects import moment
from tessera.solver import highs

_MOST_ROWS: Final = 12  # of groups of nodes, of holders, of rollouts; beyond that a person reads the answer
MOST_NAMES: Final = 3


def remedy_lines(remedies: Iterable[Remedy], style: Style, between: str = "or: ") -> list[str]:
    lines = []
    for number, one in enumerate(remedies):
        lines.append(style.good(one.text) if number == 0 else f"{between}{one.text}")
        lines += [style.dim(f"  $ {command}") for command in one.commands]
    return lines


def remedy_documents(remedies: Iterable[Remedy]) -> list[dict[str, Any]]:
    return [{"kind": one.kind, "text": one.text, "commands": one.commands} for one in remedies]


def first_rows(rows: Sequence[tuple[str, ...]], noun: str, of: str, style: Style) -> list[str]:
    """The first rows as a table, and how many more there are."""
    more = len(rows) - _MOST_ROWS
    shown = table(rows[:_MOST_ROWS]) if rows else []
    return [*shown, style.dim(f"… and {number_of(more, noun)}{of}")] if more > 0 else shown


def unseen_block(unseen: Mapping[str, str], style: Style) -> list[str]:
    return block("not seen", [style.note(f"{what}: {why}") for what, why in unseen.items()])


_MARKS: Final = {"room": "✓", "missing": "-"}


def explained(client: Client, decides_by: PolicySource) -> Callable[[str, str], Awaitable[str]]:
    """The same answer for the dashboard: why a pod of a namespace waits."""

    async def answer(namespace: str, pod: str) -> str:
        found, seen = await diagnosed(Gatherer(client, namespace, decides_by=decides_by), "pod", pod)
        return "\n".join(text(found, seen, Style(enabled=False)))

    return answer


async def diagnosed(gatherer: Gatherer, kind: str, name: str) -> tuple[Diagnosis, Evidence]:
    seen, asked = await gatherer.gather(kind, name)
    return diagnose(seen, asked, highs), seen


def document(found: Diagnosis, seen: Evidence) -> dict[str, Any]:
    return {
        "object": found.title,
        "cause": found.cause,
        "answer": found.answer,
        "admission": found.admission,
        "scheduler": found.scheduler,
        "patience": found.patience,
        "nodes": found.nodes,
        "holders": [
            {"pod": one.pod, "node": one.node, "holds": one.holds, "since": _time(one.since)}
            for one in found.holders
        ],
        "remedies": remedy_documents(found.remedies),
        "unseen": found.unseen,
        "configuration": seen.decided_with,
    }


def _time(seconds: float) -> str | None:
    return moment(seconds) if seconds else None


def text(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    # the last line says what is decided with
    unseen = {what: why for what, why in found.unseen.items() if what != CONFIGURATION}
    return [
        style.bold(found.answer),
        *block("end it" if found.cause == Cause.ENDING else "run it", remedy_lines(found.remedies, style)),
        *block("admission", found.admission),
        *block("scheduler", found.scheduler),
        *block("patience", found.patience),
        *block("nodes", _nodes(found, style)),
        *block("held by", _holders(found, seen, style)),
        *unseen_block(unseen, style),
        style.dim(seen.decided_with),
    ]


def _nodes(found: Diagnosis, style: Style) -> list[str]:
    rows = [(_MARKS.get(one.lack, "✗"), first_of(one.nodes, MOST_NAMES), one.reason) for one in found.nodes]
    return first_rows(rows, "more group", " of nodes", style)


def _holders(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    rows = [
        (one.pod, one.node, counted(one.holds), "ending" if one.ending else age(seen.now, one.since))
        for one in found.holders
    ]
    return first_rows(rows, "more pod", "", style)
