"""`tessera mig validate`, `convert` and `show`: does a layout fit its cards, the same in another format, the cards as tiles."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import click

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import option
from tessera.cli.common.output import Output, Style, echo, output_option, print_document, warn
from tessera.cli.common.reading import mig_parted_option
from tessera.cli.mig.sources import LayoutOptions, Reading, read_sources, source_options
from tessera.cli.mig.tiles import draw_cards
from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.mig.known import KnownLayout
from tessera.core.mig.layout import DoesNotFit, LayoutEntry
from tessera.core.text import first_of, nodes_named
from tessera.inventory.known import NO_CONFIGURATIONS
from tessera.inventory.layouts import Source, Unreadable
from tessera.kube.object_files import called
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.operator import MigManagerConfig

_MOST_NAMES: Final = 5
_NOT_SEEN: Final = "which slices pods hold is not known on nodes whose layout no annotation describes; drawn on as few cards as possible"
_ASSUMED: Final = (
    "the API does not say which devices are in use (kubelets write it from Kubernetes 1.36); "
    "drawn on as few cards as possible"
)


class Fit(StrEnum):
    """What is known of a layout."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_BE_CHECKED = "cannot be checked"  # the node's annotation is no layout, or its product is unknown
    READABLE = "readable"  # and the cards that it should fit on are unknown


@dataclass(frozen=True, slots=True)
class LayoutCheck:
    """What is shown of one layout."""

    layout: str
    outcome: Fit
    reasons: list[str] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)


@click.command("validate", cls=Command)
@source_options
@output_option("text")
def validate(given: LayoutOptions, mig_config: str | None, output: Output) -> ExitCode:
    """Check that layouts fit their cards, and say why they do not.

    Layouts are run.ai annotations, mig-parted files or plain counts, or the annotations of Node objects as
    `kubectl get nodes -o json` prints them, with their product and number of cards. An argument that is the
    name of a node asks the cluster, as --cluster does for all nodes.

    \b
    Examples:
      tessera mig validate layout.yaml --product H200 --cards 4
      tessera mig validate 3g.71gb=2,1g.18gb=1 --product H200
      kubectl get nodes -o json | tessera mig validate
      tessera mig validate gpu-1
      tessera mig validate --cluster
      tessera mig validate mig-parted.yaml --mig-config all-balanced --product A30

    Exit code 3: a layout does not fit. Without --product a layout is only read: exit code 0 if it can be.
    """  # fmt: skip
    verdicts = [verdict for source in read_sources(given) for verdict in _verdicts(source, mig_config)]
    output.show(
        lambda: verdicts,
        lambda style: [line for verdict in verdicts for line in _draw_verdict(verdict, style)],
    )
    outcomes = {verdict.outcome for verdict in verdicts}
    if Fit.DOES_NOT_FIT in outcomes:
        return ExitCode.NO
    return ExitCode.FAILED if Fit.CANNOT_BE_CHECKED in outcomes else ExitCode.DONE


def _verdicts(source: Source | Unreadable, mig_config: str | None) -> list[LayoutCheck]:
    if isinstance(source, Unreadable):
        return [LayoutCheck(source.where, Fit.CANNOT_BE_CHECKED, source.reason.split("\n"))]
    several = len(source.document.configs) > 1
    return [
        _verdict(f"{source.where}: {name}" if several else source.where, source, entries)
        for name, entries in source.configs(mig_config).items()
    ]


def _verdict(title: str, source: Source, entries: tuple[LayoutEntry, ...]) -> LayoutCheck:
    if source.product is None:
        return LayoutCheck(title, Fit.READABLE, ["to check whether it fits, give --product"])
    try:
        resources = source.layout(entries).resources(source.strategy)
    except InvalidInput as error:
        return LayoutCheck(title, Fit.DOES_NOT_FIT, str(error).split("\n"))
    return LayoutCheck(title, Fit.FITS, resources=resources)


def _draw_verdict(verdict: LayoutCheck, style: Style) -> list[str]:
    paint = {Fit.FITS: style.good, Fit.READABLE: style.note}.get(verdict.outcome, style.bad)
    offered = [f"{name} ×{count}" for name, count in verdict.resources.items()]
    details = verdict.reasons or [", ".join(offered) or "no devices"]
    heading = f"{verdict.layout}: {paint(verdict.outcome)}:"
    if len(details) == 1:
        return [f"{heading} {details[0]}"]
    return [heading, *(f"  {detail}" for detail in details)]


@click.command("convert", cls=Command)
@source_options
@option("--to", "The format to write.", type=click.Choice([one.value for one in mig.Format]), required=True)
@option("--name NAME", "The configuration's new name.  [default: its present name]")
@mig_parted_option(group="Layout")
def convert(
    given: LayoutOptions,
    mig_config: str | None,
    to: str,
    name: str | None,
    mig_manager: MigManagerConfig | None,
) -> None:
    """Write a layout as a run.ai annotation, a mig-parted file or plain counts.

    run.ai's format names cards one by one: give --cards if the layout is for all of them. With --product devices get
    their positions. Standard error lists what the other format cannot express.

    \b
    Examples:
      tessera mig convert 2g.20gb=2,3g.40gb=1 --to runai --cards 4
      tessera mig convert annotation.yaml --to mig-parted --name two-and-one
      tessera mig convert config.yaml --mig-config all-1g.5gb --to runai --cards 8
      tessera mig convert gpu-1 --to counts
    """  # fmt: skip
    sources = read_sources(given, Reading(every=True, mig_manager=mig_manager))
    if len(sources) != 1:
        raise InvalidInput(_several(sources, given))
    source = sources[0]
    if isinstance(source, Unreadable):
        raise InvalidInput(f"{source.where}: {source.reason}")
    document = source.document
    if mig_config or name:
        chosen = next(iter(document.configs)) if len(document.configs) == 1 else mig_config
        document = mig.MigDocument(
            document.format, {name or chosen or "selected": document.select(mig_config)}
        )
    # a product that only the node's labels name is no request for positions
    conversion = mig.convert(document, mig.Format(to), given.cards or source.cards, given.product)
    warn(*(f"Warning: {loss}" for loss in conversion.losses))
    print_document(mig.write(conversion.document), ends_line=False)


def _several(sources: Sequence[Source | Unreadable], given: LayoutOptions) -> str:
    """Which layouts there are, and how to say which one is meant."""
    nodes = [source.where for source in sources if source.where.startswith("node ")]
    names = nodes or list(map(called, given.names))
    if given.in_cluster:
        how = "name one node"
    elif nodes:
        how = "give it one node, as kubectl get node NAME -o yaml prints it"
    else:
        how = "give it one of them"
    return f"{len(sources)} layouts ({first_of(names, _MOST_NAMES)}); convert takes one at a time: {how}"


@click.command("show", cls=Command)
@source_options
@mig_parted_option(group="Layout")
def show(given: LayoutOptions, mig_config: str | None, mig_manager: MigManagerConfig | None) -> ExitCode:
    """Draw a node's cards as tiles, as wide as their memory slices.

    Takes what `tessera mig validate` takes. If it also gets pods (of the cluster, or among the objects of a file) it shows which devices
    are in use: as the kubelets report it, with DRA as claims report it, else on as few cards as possible. Cards that are cut on demand
    show what claims hold now. Colour only on a terminal, and not where NO_COLOR is set; a terminal that is too narrow for tiles (or
    where COLUMNS says so) gets a list.

    Nodes of NVIDIA's operator have no annotation. Their layout is known from the label nvidia.com/mig.config with mig-manager's
    ConfigMap, from the labels of GPU Feature Discovery or from their capacity, and the command says from which. Where these leave
    more than one way to cut the cards, it says so and draws nothing.

    \b
    Examples:
      tessera mig show 4g.71gb=1,3g.71gb=1 --product H200
      tessera mig show gpu-1
      kubectl get nodes,pods -A -o json | tessera mig show
      kubectl get nodes -o json | tessera mig show --mig-parted config.yaml
    """
    style = Style.of(sys.stdout)
    width = shutil.get_terminal_size((0, 0)).columns or None
    sources = read_sources(given, Reading(pods=True, every=True, mig_manager=mig_manager))
    unknown: dict[str, list[Unreadable]] = {}
    failed = assumed = not_seen = drawn = False
    for source in sources:
        if isinstance(source, Unreadable):
            if source.unknown is not None:
                unknown.setdefault(source.unknown.reason, []).append(source)
            else:
                warn(f"{source.where}: {source.reason}")
                failed = True
            continue
        try:
            present = None if mig_config else source.present
            layout = present or source.layout(source.document.select(mig_config))
            in_use = source.in_use(layout)
        except (InvalidInputs, DoesNotFit) as error:
            warn(f"{source.where}: {error}")
            failed = True
            continue
        if len(sources) > 1:
            echo([*([""] if drawn else []), style.bold(source.where)])
        drawn = True
        if source.known is not None:
            echo(_from(source.known))
        echo(draw_cards(layout.cards, style, in_use.slots if in_use else None, width))
        if in_use is not None and not in_use.certain:
            assumed, not_seen = assumed or source.known is None, not_seen or source.known is not None
        if source.pending and not mig_config:
            warn(f"{source.where}: the layout is pending: {source.pending}")
    warn(*([_ASSUMED] if assumed else []), *([_NOT_SEEN] if not_seen else []), *_unknown(unknown))
    named = given.in_cluster and given.names
    return ExitCode.FAILED if failed or (unknown and (named or not drawn)) else ExitCode.DONE


def _from(known: KnownLayout) -> Iterator[str]:
    """Where a layout is known from, and how far."""
    sure = "" if known.placed else "; where on a card its slices lie is not certain"
    yield f"layout from {known.source}{sure}"
    if known.note:
        yield f"note: {known.note}"


def _unknown(reasons: Mapping[str, Sequence[Unreadable]]) -> Iterator[str]:
    """A line for each reason, whatever the number of nodes; numbers only for a single one."""
    for reason, nodes in reasons.items():
        hint = "; --mig-parted FILE gives them" if reason.endswith(NO_CONFIGURATIONS) else ""
        why = nodes[0].reason if len(nodes) == 1 else reason
        names = nodes_named([one.where.removeprefix("node ") for one in nodes])
        yield f"{names}: the layout is not known: {why}{hint}"
