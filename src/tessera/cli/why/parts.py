"""What the answers about pods and MigLayouts are printed with."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tessera.cli.common.output import Style, block, table
from tessera.core.text import number_of
from tessera.diagnosis.remedies.changes import Remedy

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
