"""`tessera capacity --watch`: a report shown again and again, as a picture, as documents or as changed lines."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from typing import Final

from tessera.cli.capacity.forms import Row, document, draw, drawn, tables
from tessera.cli.common.output import Output, Style, draw_screen, echo, print_document, table, warn
from tessera.inventory.following import following
from tessera.inventory.inventory import Inventory
from tessera.inventory.report import Report
from tessera.kube.clock import either
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import STALE

_PACE: Final = 0.5  # seconds between two pictures: people do not read faster


async def show_changes(
    client: Client, inventory: Inventory, report: Callable[[], Report], output: Output, *, headers: bool
) -> None:
    """Show a cluster as it is and as it changes, until interrupted."""
    screen = _screen_for(output, headers=headers)
    async with following(client, inventory) as cluster:
        while True:
            cluster.changed.clear()
            cluster.now()
            screen.show(report(), cluster.error)
            await asyncio.sleep(_PACE)
            await either(cluster.changed, STALE)  # then draw again: an error may be what is new


def _screen_for(output: Output, *, headers: bool) -> "Picture | Lines":
    if output.is_document:
        return Documents(lambda report: output.text(document(report), one_of_many=True))
    if output.form in ("csv", "name"):
        plain = Style(enabled=False)
        return Documents(lambda report: "\n".join(drawn(report, output.form, plain, headers=headers)))
    kind = Picture if sys.stdout.isatty() else ChangedLines
    return kind(wide=output.form == "wide", headers=headers)


class Picture:
    """A terminal that is drawn again and again; nodes come last, because not all of them may fit."""

    def __init__(self, *, wide: bool, headers: bool = True) -> None:
        self._wide, self._headers = wide, headers
        self._style = Style.of(sys.stdout)

    def show(self, report: Report, error: str) -> None:
        """One screen full: how things are now, and below it why that may not be so."""
        nodes, *others = tables(report, wide=self._wide)
        lines = draw([*others, nodes], self._style, headers=self._headers) or ["nothing to see yet"]
        below = ["", self._style.bad(error)] if error else []
        height = shutil.get_terminal_size().lines - 1 - len(below)
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
        draw_screen([*lines, *below])


class Lines:
    """For readers of lines, people or programs; an error goes to standard error, once."""

    _error = ""

    def show(self, report: Report, error: str) -> None:
        for text in self.changes(report):
            self.put(text)
        sys.stdout.flush()
        if error and not self._error:
            warn(error)
        self._error = error

    def changes(self, report: Report) -> list[str]:
        raise NotImplementedError

    def put(self, text: str) -> None:
        """Print one of them."""
        echo([text])


class Documents(Lines):
    """A document for every change."""

    def __init__(self, text: Callable[[Report], str]) -> None:
        self._text = text
        self._last = ""

    def changes(self, report: Report) -> list[str]:
        last, self._last = self._last, self._text(report)
        return [self._last] if self._last != last else []

    def put(self, text: str) -> None:
        print_document(text)


class ChangedLines(Lines):
    """Tables once, then each row that is new or different."""

    def __init__(self, *, wide: bool, headers: bool = True) -> None:
        self._wide, self._headers = wide, headers
        self._known: dict[Row, dict[Row, Row]] = {}  # by heading, then by the row's first columns
        self._longest: dict[Row, Row] = {}  # of each column the longest cell, by heading

    def changes(self, report: Report) -> list[str]:
        lines: list[str] = []
        for one in tables(report, wide=self._wide):
            known = self._known.get(one.heading)
            rows = {row[: one.keys]: row for row in one.rows}
            if known is None and not rows:
                continue
            changed = [row for key, row in rows.items() if known is None or known.get(key) != row]
            gone = [key for key in known or () if key not in rows]
            changed += [(*key, *["gone"] * (len(one.heading) - one.keys)) for key in gone]
            self._known[one.heading] = rows
            shown = [one.heading, *changed] if known is None and self._headers else changed
            if not shown:
                continue
            before = self._longest.get(one.heading, shown[0])
            longest = tuple(max(cells, key=len) for cells in zip(before, *shown, strict=True))
            self._longest[one.heading] = longest
            lines += table([longest, *shown])[1:]  # as wide as the lines before
        return lines
