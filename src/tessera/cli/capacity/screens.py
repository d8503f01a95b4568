"""`tessera capacity --watch`: a report shown again and again, as a picture, as documents or as changed lines."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import click

from tessera.cli.capacity.documents import LINES, document
from tessera.cli.capacity.tables import Row, draw, tables
from tessera.cli.common.output import Output
from tessera.cli.common.terminal import Style
from tessera.inventory.following import following
from tessera.inventory.inventory import Inventory
from tessera.inventory.report import Report
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import STALE

_PACE: Final = 0.5  # seconds between two pictures: people do not read faster
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"


async def show_changes(
    client: Client, inventory: Inventory, report: Callable[[], Report], output: Output, *, headers: bool
) -> None:
    """Show a cluster as it is and as it changes, until interrupted."""
    screen = screen_for(output, headers=headers)
    async with following(client, inventory) as cluster:
        while True:
            cluster.changed.clear()
            cluster.now()
            screen.show(report(), cluster.error)
            await asyncio.sleep(_PACE)
            with suppress(TimeoutError):  # then draw again: the trouble may be what is new
                async with asyncio.timeout(STALE):
                    await cluster.changed.wait()


class Screen(Protocol):
    """Where a report goes, again and again."""

    def show(self, report: Report, trouble: str) -> None:
        """How things are now, and why that may not be so."""
        ...


def screen_for(output: Output, *, headers: bool = True) -> Screen:
    """The one that suits an output and standard output."""
    if output.is_document:
        return Documents(lambda report: output.text(document(report), one_of_many=True))
    if lines_of := LINES.get(output.form):
        return Documents(lambda report: "\n".join(lines_of(report, headers=headers)))
    kind = Picture if sys.stdout.isatty() else ChangedLines
    return kind(wide=output.form == "wide", headers=headers)


class Picture:
    """A terminal that is drawn anew."""

    def __init__(self, *, wide: bool, headers: bool = True) -> None:
        self._wide, self._headers = wide, headers
        self._style = Style.of(sys.stdout)

    def show(self, report: Report, trouble: str) -> None:
        """One screen full."""
        drawn = draw(report, self._style, wide=self._wide, nodes_last=True, headers=self._headers)
        lines = drawn or ["nothing to see yet"]
        below = ["", self._style.bad(trouble)] if trouble else []
        height = shutil.get_terminal_size().lines - 1 - len(below)
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
        click.echo(_HOME_AND_CLEAR + "\n".join([*lines, *below]), color=True)


class Lines:
    """For readers of lines, people or programs; trouble goes to standard error, once."""

    _trouble = ""

    def show(self, report: Report, trouble: str) -> None:
        """What is new."""
        for line in self.news(report):
            click.echo(line)
        sys.stdout.flush()
        if trouble and not self._trouble:
            click.echo(trouble, err=True)
        self._trouble = trouble

    def news(self, report: Report) -> list[str]:
        """The lines to print."""
        raise NotImplementedError


class Documents(Lines):
    """A document for every change."""

    def __init__(self, text: Callable[[Report], str]) -> None:
        self._text = text
        self._last = ""

    def news(self, report: Report) -> list[str]:
        """The document, if it is another than the last."""
        last, self._last = self._last, self._text(report)
        return [self._last] if self._last != last else []


class ChangedLines(Lines):
    """Tables once, then each row that is new or different."""

    def __init__(self, *, wide: bool, headers: bool = True) -> None:
        self._wide, self._headers = wide, headers
        self._known: dict[Row, dict[Row, Row]] = {}  # by heading, then by the row's first columns
        self._widths: dict[Row, list[int]] = {}

    def news(self, report: Report) -> list[str]:
        """Headings the first time, and rows that changed."""
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
            widths = self._widths.setdefault(one.heading, [0] * len(one.heading))
            widths[:] = [max(width, *map(len, cells)) for width, *cells in zip(widths, *shown, strict=True)]
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in shown
            ]
        return lines
