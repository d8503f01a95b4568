"""Reading a cluster into an `Inventory`, with a progress bar where a person waits for it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from tessera.cli.common.cluster import ClusterChoice
from tessera.inventory.inventory import Inventory

_WORTH_SHOWING: Final = 2000  # objects; fewer are there in an instant
_STEP: Final = 100  # objects between two drawings of the bar


def read_inventory(
    inventory: Inventory, cluster: ClusterChoice, sources: Sequence[str] = (), *, pods: bool = True
) -> None:
    """Read files where there are any, else the cluster."""
    if sources:
        inventory.read_files(sources)
        return
    progress = _bar if sys.stderr.isatty() else None
    cluster.run(lambda client: inventory.read_cluster(client, pods=pods, progress=progress))


@contextmanager
def _bar(what: str, number: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error for a long list; for a short one, nothing."""
    if number < _WORTH_SHOWING:
        yield lambda _: None
        return
    with click.progressbar(length=number, label=f"Reading {what}", file=sys.stderr, show_pos=True) as bar:

        def so_far(count: int) -> None:
            if count % _STEP == 0 or count < bar.pos:  # less than before: the list was begun again
                bar.update(count - bar.pos)

        yield so_far
