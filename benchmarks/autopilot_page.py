"""What the page on the autopilot says of its worth: written from the record, so that no number is copied by hand."""

from pathlib import Path
from typing import Final

from benchmarks import autopilot
from benchmarks.aims import AIMS
from benchmarks.results import Results

PAGE: Final = Path(__file__).parents[1] / "docs" / "autopilot.md"
BEGIN: Final = "<!-- written by `python -m benchmarks autopilot` -->\n"
END: Final = "<!-- end of what is written -->\n"
_WAITED: Final = {
    autopilot.STATIC: "best static",
    autopilot.KEPT: "never cut",
    autopilot.OURS: "**autopilot**, single slices",
    autopilot.MANAGER: "**autopilot**, whole idle cards",
    autopilot.BLIND: "the same as the first, no forecast",
    autopilot.NOS: "nos's rule",
    autopilot.FREE: "free re-cutting",
}
_CHECKS: Final = {
    autopilot.OURS: "autopilot, single slices",
    autopilot.CORDONED: "the same, node cordoned meanwhile",
    autopilot.UNCUT: "the same, begun with cards that are not cut",
    autopilot.MANAGER: "autopilot, whole idle cards",
    autopilot.FREE_CARDS: "the same, re-cut for nothing, without limits",
    autopilot.FREE: "free re-cutting",
    autopilot.FREE_KEPT: "the same, one 4g kept from smaller tasks",
    autopilot.MOVING: "the same, pods move for nothing",
}
_BESIDES: Final = (
    autopilot.P95,
    autopilot.SLOWDOWN,
    autopilot.USE,
    autopilot.CUTS,
)


def part(results: Results) -> str:
    """The tables: what tasks waited, other figures, other demand, and the aims."""
    parts = _waited(results, autopilot.CASES), _besides(results), _checks(results), _aims(results)
    return "\n".join(one for one in parts if one)


def write(results: Results) -> None:
    """Put the tables into the page."""
    if autopilot.RUN in results.runs() and PAGE.exists():
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        if rest:
            PAGE.write_text(before + BEGIN + "\n" + part(results) + "\n" + END + rest.partition(END)[2])


def _waited(results: Results, cases: tuple[autopilot.Case, ...], *, short: bool = False) -> str:
    subjects = {one: name for one, name in _WAITED.items() if not short or one != autopilot.BLIND}
    rows = [["minutes waited, mean (by the best static layout's)", *subjects.values()]]
    measured = [case for case in cases if _cell(results, str(case), autopilot.STATIC)]
    rows += [[str(case), *(_cell(results, str(case), one) for one in subjects)] for case in measured]
    return _table(rows) if measured else ""


def _cell(results: Results, what: str, subject: str) -> str:
    found = results.find(autopilot.RUN, what, autopilot.POOLED, subject)
    static = results.find(autopilot.RUN, what, autopilot.POOLED, autopilot.STATIC)
    if found is None or static is None:
        return ""
    if subject == autopilot.STATIC or static.median <= autopilot.NOTHING:
        return _shown(found.median)
    return f"{_shown(found.median)} ({found.median / static.median:.2f})"


def _besides(results: Results) -> str:
    subjects = (autopilot.STATIC, autopilot.OURS, autopilot.MANAGER, autopilot.NOS)
    rows = [["16 cards, medians of the seeds", *(f"{_WAITED[one]}" for one in subjects)]]
    for case in (one for one in autopilot.CASES if one.cards == 16):
        for unit in _BESIDES:
            found = [results.find(autopilot.RUN, str(case), unit, one) for one in subjects]
            rows.append(
                [
                    f"{case.mix}, load {case.load}: {unit}",
                    *("" if one is None else _shown(one.median) for one in found),
                ]
            )
    return _table(rows)


def _checks(results: Results) -> str:
    rows = [["a check", *_CHECKS.values()]]
    for case in autopilot.CASES:
        if _cell(results, str(case), autopilot.CORDONED):
            rows += [[str(case), *(_cell(results, str(case), one) for one in _CHECKS)]]
    found = [_table(rows) if rows[1:] else "", _waited(results, autopilot.OTHERS, short=True)]
    return "\n".join(one for one in found if one)


def _aims(results: Results) -> str:
    rows = [
        [
            "aim (the worst case, where the best static layout waits longer than a second)",
            "wanted",
            "measured",
            "",
        ]
    ]
    for aim in AIMS:
        value = aim.measure.of(results) if aim.measure.run == autopilot.RUN else None
        if value is not None:
            rows.append(
                [aim.text, aim.bound, str(value), "reached" if aim.met(value.median) else "**not reached**"]
            )
    return _table(rows)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(rows: list[list[str]]) -> str:
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others, ""])
