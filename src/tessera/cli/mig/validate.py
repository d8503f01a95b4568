"""`tessera mig validate`: does a layout fit its cards, and if not, why."""

from dataclasses import dataclass, field
from enum import StrEnum

import click

from tessera.cli.common.output import Output, output_option
from tessera.cli.common.terminal import Style
from tessera.cli.mig.sources import Given, read_sources, source_options
from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import LayoutEntry
from tessera.inventory.layouts import Source, Unreadable


class Fit(StrEnum):
    """What can be said of a layout."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_BE_CHECKED = "cannot be checked"  # the node's annotation is no layout, or its product is unknown
    READABLE = "readable"  # and the cards that it should fit on are unknown


@dataclass(frozen=True, slots=True)
class LayoutCheck:
    """What is said of one layout."""

    layout: str
    outcome: Fit
    reasons: list[str] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)


@click.command("validate")
@source_options
@output_option("text")
def command(given: Given, config: str | None, output: Output) -> int:
    """Check that layouts fit their cards, and say why they do not.

    Layouts are run.ai annotations, mig-parted files or plain counts, or the annotations of Node objects as
    `kubectl get nodes -o json` prints them, with their product and number of cards. With --cluster the command
    reads the nodes, and arguments are their names.

    \b
    tessera mig validate layout.yaml --product H200 --cards 4
    tessera mig validate 3g.71gb=2,1g.18gb=1 --product H200
    kubectl get nodes -o json | tessera mig validate
    tessera mig validate --cluster
    tessera mig validate mig-parted.yaml --config all-balanced --product A100-40GB

    \b
    Exit codes: 0 all fit (or can be read, without --product), 1 some do not, 2 bad input.
    """  # fmt: skip
    verdicts = [verdict for source in read_sources(given) for verdict in _verdicts(source, config)]
    output.show(lambda: verdicts, lambda style: [_line(verdict, style) for verdict in verdicts])
    return int(any(verdict.outcome not in (Fit.FITS, Fit.READABLE) for verdict in verdicts))


def _verdicts(source: Source | Unreadable, config: str | None) -> list[LayoutCheck]:
    if isinstance(source, Unreadable):
        return [LayoutCheck(source.where, Fit.CANNOT_BE_CHECKED, source.reason.split("\n"))]
    several = len(source.document.configs) > 1
    return [
        _verdict(f"{source.where}: {name}" if several else source.where, source, entries)
        for name, entries in source.configs(config).items()
    ]


def _verdict(title: str, source: Source, entries: tuple[LayoutEntry, ...]) -> LayoutCheck:
    if source.product is None:
        return LayoutCheck(title, Fit.READABLE, ["to check whether it fits, give --product"])
    try:
        resources = source.layout(entries).resources(source.strategy)
    except InvalidInput as error:
        return LayoutCheck(title, Fit.DOES_NOT_FIT, str(error).split("\n"))
    return LayoutCheck(title, Fit.FITS, resources=resources)


def _line(verdict: LayoutCheck, style: Style) -> str:
    paint = {Fit.FITS: style.good, Fit.READABLE: style.note}.get(verdict.outcome, style.bad)
    offered = [f"{name} ×{count}" for name, count in verdict.resources.items()]
    details = verdict.reasons or [", ".join(offered) or "no devices"]
    return ("\n  " if len(details) > 1 else " ").join(
        [f"{verdict.layout}: {paint(verdict.outcome)}:", *details]
    )
