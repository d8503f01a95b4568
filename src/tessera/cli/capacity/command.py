"""`tessera capacity`: what is there, what is taken, what is left.

`tessera capacity --watch`: a report shown again and again, as a picture, as documents or as changed lines.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import click

from tessera.cli.capacity.forms import AMOUNTS, FIELDS, Row, document, draw, drawn, in_order_of, tables
from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import NO_CLUSTER, ClusterChoice, cluster_options, option, selector_option
from tessera.cli.common.output import (
    Output,
    Style,
    draw_screen,
    echo,
    no_headers_option,
    output_option,
    print_document,
    table,
    warn,
)
from tessera.cli.common.reading import files_option, mig_parted_option, read_inventory, warn_of_dra
from tessera.core.devices.capacity import Usage, total
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import InvalidQuantity, Quantity
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.core.resources import PODS, WHOLE_GPU, is_any_gpu
from tessera.core.text import nodes_named
from tessera.inventory.inventory import Inventory, following
from tessera.inventory.report import Report, not_counted, report_of
from tessera.kube.clock import either
from tessera.kube.object_files import called
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import STALE
from tessera.protocol.mig.operator import MigManagerConfig

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
        nodes, *others = tables(report, wide=self._wide, totals=self._headers)
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
        for one in tables(report, wide=self._wide, totals=self._headers):
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


_PLAIN: Final = ("cpu", "memory", "ephemeral-storage", PODS)  # Kubernetes' own resources have no domain


@click.command(cls=Command)
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=completing.nodes)
@option(
    "--resource NAME",
    "Only this resource; gpu and 2g.20gb are short for NVIDIA's. Repeatable.  [default: GPUs and MIG devices]",
    "resources",
    multiple=True,
    shell_complete=completing.resources,
    group="What to show",
)
@option(
    "--all",
    "All resources: cpu, memory, pods and whatever else nodes have.",
    "everything",
    group="What to show",
)
@selector_option("Only nodes with such labels: pool=a,zone in (x,y),!old.", group="What to show")
@option("--pods", "Also the pods that hold these resources or wait for them.", group="What to show")
@option(
    "--by",
    "By node: what each has. By namespace: what its pods ask for, hold and wait for now.",
    type=click.Choice(["node", "namespace"]),
    default="node",
    group="What to show",
)
@option(
    "-n, --namespace NAME",
    "With --pods: only those of this namespace; all are counted.",
    shell_complete=completing.namespaces,
    group="What to show",
)
@option("-A, --all-namespaces", "With --pods: those of all namespaces, as without -n.", group="What to show")
@files_option()
@mig_parted_option("With -o wide, json or yaml: ")
@option(
    "--fail-below NAME=N",
    f"Exit with code {ExitCode.NO} if less than that is available in total. Repeatable.",
    "thresholds",
    multiple=True,
    shell_complete=completing.resources,
    group="Output",
)
@option("-w, --watch", "Keep running, and show what changes.", group="Output")
@option(
    "--sort-by FIELD",
    f"Order nodes and pods by one of {', '.join(FIELDS)}; the largest amounts come first.  [default: name]",
    type=click.Choice(list(FIELDS)),
    group="Output",
)
@no_headers_option
@output_option("table", "wide", "csv", "name")
@cluster_options
def command(
    nodes: tuple[str, ...],
    resources: tuple[str, ...],
    everything: bool,
    selector: str,
    pods: bool,
    by: str,
    namespace: str | None,
    all_namespaces: bool,
    sources: tuple[str, ...],
    mig_manager: MigManagerConfig | None,
    thresholds: tuple[str, ...],
    watch: bool,
    sort_by: str | None,
    no_headers: bool,
    output: Output,
    cluster: ClusterChoice,
) -> ExitCode:
    """Show what nodes have, what pods hold of it, what is left, and what waiting pods ask for.

    The command counts as the scheduler does: init containers, sidecars, overhead, pod-level requests. Pods that have ended hold
    nothing, pods being deleted hold what they have until they are gone. Where DRA serves devices, a column says what comes from it
    and what from device plugins; DRA's devices are allocated while claims hold them. `-o wide` adds products, the state of nodes, and how many
    more MIG devices their cards could hold. --no-headers leaves out the totals, too. `-o name` prints the nodes' names, with --pods those of the pods.

    \b
    Examples:
      tessera capacity
      tessera capacity gpu-1 gpu-2
      tessera capacity --sort-by available --no-headers
      tessera capacity -o jsonpath='{range .nodes[*]}{.name} {.state}{"\\n"}{end}'
      tessera capacity -l pool=training --pods
      tessera capacity --by namespace
      tessera capacity --fail-below 2g.20gb=4 -o json
      kubectl get nodes,pods -A -o json | tessera capacity --from -

    \b
    Exit code 3: less is available than --fail-below says.
    """  # fmt: skip
    by_namespace = by == "namespace"
    if watch and (sources or thresholds):
        raise click.UsageError("--watch follows a cluster: it goes neither with --from nor with --fail-below")
    if sources and cluster != NO_CLUSTER:
        raise click.UsageError("--from reads files: it does not go with --kubeconfig, --context or --as")
    if namespace and all_namespaces:
        raise click.UsageError("-n and -A: say one of them")
    _check_whose(namespace, pods=pods, by_namespace=by_namespace, output=output)
    if everything and sort_by in AMOUNTS:
        raise click.UsageError(
            f"--sort-by {sort_by} does not go with --all: bytes and devices do not compare"
        )
    if everything and resources:
        raise click.UsageError("--all and --resource: say one of them")
    least = [_threshold(text) for text in thresholds]
    wanted = frozenset(_resource_named(text, "--resource") for text in resources)
    watched = frozenset(resource for resource, _ in least)

    def shown(resource: str) -> bool:
        return everything or (resource in wanted if wanted else is_any_gpu(resource))

    rooms = output.is_document or output.form == "wide"
    inventory = Inventory(
        # GPUs always count: what is left of a card depends on all that is cut from it
        keep=cache(lambda resource: shown(resource) or is_any_gpu(resource) or resource in watched),
        selector=LabelSelector.parse(selector),
        names=frozenset(nodes),
        holds=lambda use: (pods or by_namespace) and namespace in (None, use.namespace),
        with_layouts=rooms,
        mig_manager=mig_manager,
    )

    def report() -> Report:
        found = report_of(inventory, shown, with_pods=pods, with_rooms=rooms, with_namespaces=by_namespace)
        return in_order_of(sort_by, found)

    if watch:
        cluster.run(lambda client: show_changes(client, inventory, report, output, headers=not no_headers))
        return ExitCode.DONE
    read_inventory(inventory, cluster, sources)
    warn_of_dra(inventory)
    if missing := [name for name in nodes if name not in inventory.capacity]:
        raise InvalidInput(f"{_where(sources)} no node {', '.join(missing)}")
    found = report()
    output.show(
        lambda: document(found), lambda style: drawn(found, output.form, style, headers=not no_headers)
    )
    warn(*_left_out(found, inventory, output))
    if not any(usage for one in found.nodes for usage in one.resources.values()):
        warn(_nothing(inventory, wanted, sources))
    elif pods and not found.pods:
        warn(_no_pods(namespace, "anything" if everything else _what(wanted)))
    return _below(inventory, least)


def _left_out(found: Report, inventory: Inventory, output: Output) -> list[str]:
    """Which nodes are no part of the room for more, a line for each reason; documents have it in them."""
    if output.form != "wide":
        return []
    return [
        f"{nodes_named(names)}: not counted in the room for more, because the layout is not known: {reason}"
        for reason, names in not_counted(found, inventory).items()
    ]


def _no_pods(namespace: str | None, what: str) -> str:
    return f"{f'namespace {namespace}: ' if namespace else ''}no pod holds or waits for {what}"


def _check_whose(namespace: str | None, *, pods: bool, by_namespace: bool, output: Output) -> None:
    if by_namespace and (pods or output.form in ("wide", "name")):
        raise click.UsageError("--by namespace goes neither with --pods nor with -o wide or name")
    if namespace and not pods and not by_namespace:
        raise click.UsageError("-n says whose pods to list: it goes with --pods or --by namespace")


def _where(sources: Sequence[str]) -> str:
    return f"{called(*sources)}:" if sources else "the cluster has"


def _nothing(inventory: Inventory, wanted: frozenset[str], sources: Sequence[str]) -> str:
    """Why there is nothing to see."""
    if not len(inventory.capacity):
        chosen = f' that match "{inventory.selector.text}"' if inventory.selector.text else ""
        return f"{_where(sources)} no nodes{chosen}"
    number = len(inventory.capacity)
    on = "the one node" if number == 1 else f"any of {number} nodes"
    return f"no {_what(wanted)} on {on}; --all shows every resource"


def _what(wanted: frozenset[str]) -> str:
    return ", ".join(sorted(wanted)) if wanted else "GPUs"


def _threshold(text: str) -> tuple[str, Quantity]:
    """A resource and the least of it that must be available in total, of `nvidia.com/mig-2g.20gb=4`."""
    resource, equals, least = text.rpartition("=")
    if not equals:
        raise InvalidInput(f"--fail-below {text}: expected a resource and a number, such as 2g.20gb=4")
    try:
        number = Quantity.parse(least)
    except InvalidQuantity as error:
        raise InvalidInput(f"--fail-below {text}: {error}") from error
    if number.value < 0:
        raise InvalidInput(f"--fail-below {text}: nothing is less than that; expected a number from 0")
    return _resource_named(resource, "--fail-below"), number


def _resource_named(text: str, where: str) -> str:
    """The resource that a person means: its name, or a short one (`gpu`, `2g.20gb`)."""
    if "/" in text or text in _PLAIN or text.startswith("hugepages-"):
        return text
    if text == "gpu":
        return WHOLE_GPU
    try:
        return MigProfile.parse(text.removeprefix("mig-")).resource
    except InvalidProfile as error:
        why = f"{where} {text}: not a resource such as gpu, 2g.20gb, nvidia.com/gpu or cpu"
        raise InvalidInput(why) from error


def _below(inventory: Inventory, thresholds: Sequence[tuple[str, Quantity]]) -> ExitCode:
    code = ExitCode.DONE
    totals = total(one.resources for one in inventory.capacity.nodes()) if thresholds else {}
    for resource, least in thresholds:
        available = totals.get(resource, Usage()).available
        if available < least:
            warn(f"{resource}: {available} available, less than {least}")
            code = ExitCode.NO
    return code
