"""`tessera capacity --watch`: the same, kept up to date."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import click

from tessera.cli.capacity.documents import as_csv, as_json, as_yaml
from tessera.cli.capacity.tables import Row, draw, tables
from tessera.cli.common.terminal import Style
from tessera.core.devices.capacity import Claim
from tessera.inventory.inventory import UNFINISHED, Inventory, InventoryNode
from tessera.inventory.report import Report
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import Key, Resource

_PACE: Final = 0.5  # seconds between two pictures: faster than that nobody reads
_STALE: Final = 90.0  # seconds without a word; bookmarks come about every minute
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"


@dataclass(slots=True)
class Nodes:
    """Keeps a inventory's nodes right."""

    inventory: Inventory
    changed: asyncio.Event

    def replace(self, objects: Iterable[InventoryNode]) -> None:
        """These are all there are."""
        self.inventory.capacity.forget_nodes()
        self.inventory.gpus.clear()
        for one in objects:
            self.inventory.put(one)
        self.changed.set()

    def upsert(self, one: InventoryNode) -> None:
        """This one is new or changed."""
        self.inventory.put(one)
        self.changed.set()

    def delete(self, key: Key) -> None:
        """This one is gone."""
        self.inventory.capacity.remove_node(key.name)
        self.inventory.gpus.pop(key.name, None)
        self.changed.set()


@dataclass(slots=True)
class Pods:
    """Keeps a inventory's claims right; those that claim nothing of interest are not remembered."""

    inventory: Inventory
    changed: asyncio.Event
    claims: dict[Key, Claim] = field(default_factory=dict)

    def replace(self, objects: Iterable[Claim]) -> None:
        """These are all there are."""
        self.inventory.capacity.forget_claims()
        self.claims.clear()
        for one in objects:
            self.upsert(one)
        self.changed.set()

    def upsert(self, one: Claim) -> None:
        """This one is new or changed."""
        key = Key(one.namespace, one.name)
        before = self.claims.get(key)
        if before == one or (before is None and not one.amounts):
            return
        self.delete(key)
        if one.amounts:
            self.claims[key] = one
            self.inventory.capacity.add(one)
        self.changed.set()

    def delete(self, key: Key) -> None:
        """This one is gone."""
        claim = self.claims.pop(key, None)
        if claim is not None:
            self.inventory.capacity.remove(claim)
            self.changed.set()


@dataclass(frozen=True, slots=True)
class Following:
    """A inventory that is kept right."""

    inventory: Inventory
    pods: Pods
    changed: asyncio.Event
    reflectors: tuple["Reflector[InventoryNode]", "Reflector[Claim]"]

    def now(self) -> None:
        """Bring the inventory's list of claims up to date; its sums are."""
        self.inventory.claims[:] = [
            claim for claim in self.pods.claims.values() if self.inventory.holds(claim)
        ]

    @property
    def trouble(self) -> str:
        """Why this may not be how things are; empty when it is."""
        for one in self.reflectors:
            if one.age is not None and one.age > _STALE:
                return f"{one.resource.name}: nothing heard for {one.age:.0f} s: {one.status.last_error}"
        return ""


@asynccontextmanager
async def following(client: Client, inventory: Inventory) -> AsyncIterator[Following]:
    """Follow a cluster: complete when this begins, and right until it ends."""
    nodes_path, pods_path = path_of("v1", "nodes"), path_of("v1", "pods")
    for path in (nodes_path, pods_path):  # a reflector would try for ever: whoever may not, hears it now
        await client.get(path, {"limit": 1})
    changed = asyncio.Event()
    pods = Pods(inventory, changed)
    chosen = {"labelSelector": inventory.selector.text} if inventory.selector.text else {}
    reflectors = (
        Reflector(
            client, Resource("nodes", nodes_path, inventory.decode_node, chosen), Nodes(inventory, changed)
        ),
        Reflector(
            client, Resource("pods", pods_path, inventory.decode_pod, {"fieldSelector": UNFINISHED}), pods
        ),
    )
    running = [asyncio.create_task(one.run()) for one in reflectors]
    try:
        for one in reflectors:
            await one.synced()
        yield Following(inventory, pods, changed, reflectors)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def follow(client: Client, inventory: Inventory, report: Callable[[], Report], output: str) -> None:
    """Show a cluster as it is and as it changes, until somebody has seen enough."""
    screen = _screen(output)
    async with following(client, inventory) as cluster:
        while True:
            cluster.changed.clear()
            cluster.now()
            screen.show(report(), cluster.trouble)
            await asyncio.sleep(_PACE)
            with suppress(TimeoutError):  # then draw again: the trouble may be what is new
                async with asyncio.timeout(_STALE):
                    await cluster.changed.wait()


class Screen(Protocol):
    """Where a report goes, again and again."""

    def show(self, report: Report, trouble: str) -> None:
        """How things are now, and why that may not be so."""
        ...


def _screen(output: str) -> Screen:
    match output:
        case "json":
            return Documents(lambda report: as_json(report, lines=True))
        case "yaml":
            return Documents(lambda report: f"---\n{as_yaml(report)}")
        case "csv":
            return Documents(as_csv)
    kind = Picture if sys.stdout.isatty() else ChangedLines
    return kind(wide=output == "wide")


class Picture:
    """A terminal that is drawn anew."""

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
        self._style = Style.of(sys.stdout)

    def show(self, report: Report, trouble: str) -> None:
        """One screen full."""
        lines = draw(report, self._style, wide=self._wide, nodes_last=True) or ["nothing to see yet"]
        below = ["", self._style.bad(trouble)] if trouble else []
        height = shutil.get_terminal_size().lines - 1 - len(below)
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
        click.echo(_HOME_AND_CLEAR + "\n".join([*lines, *below]), color=True)


class Lines:
    """For whoever reads line by line; trouble goes to standard error, once."""

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

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
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
            shown = changed if known is not None else [one.heading, *changed]
            if not shown:
                continue
            widths = self._widths.setdefault(one.heading, [0] * len(one.heading))
            widths[:] = [max(width, *map(len, cells)) for width, *cells in zip(widths, *shown, strict=True)]
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in shown
            ]
        return lines
