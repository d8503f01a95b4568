"""What `tessera mig apply` and `tessera mig plan --apply` share: what changes is shown, confirmed, and rolled out."""

import difflib
import getpass
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import click

from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.options import ClusterChoice
from tessera.cli.common.output import Style, echo, warn, whoever_reads
from tessera.core.planning.changes import NodeChange
from tessera.core.resources import short
from tessera.core.text import counts_in_words, first_of, number_of
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.protocol.mig.edited import entries_text, own_copy
from tessera.protocol.mig.rollouts import Owner
from tessera.rollout.change import Change, Changes, WhenInUse
from tessera.rollout.config_map import ConfigMap
from tessera.rollout.planned import planned_changes
from tessera.rollout.rollout import Cordon, MaxUnavailable, NodeRollout, Rollout
from tessera.rollout.writing import refusal
from tessera.serving.ending import Signalled, until_signalled

_CONTEXT: Final = 2  # lines around a change: a layout has few
_MOST_NAMED: Final = 8  # nodes that change alike are named up to here, and counted beyond
ONE: Final = MaxUnavailable(1, percent=False)
TIMEOUT: Final = 300.0  # seconds that a node may take, by default


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How changes are carried out."""

    yes: bool = False
    dry_run: str = "none"
    at_once: MaxUnavailable = ONE
    timeout: float | None = TIMEOUT  # None: do not wait
    when_in_use: WhenInUse | None = None  # None: as each node's way has it
    cordon: Cordon | None = None  # None: nodes are not cordoned

    def check(self, instead: str = "--dry-run to see what would change", *, stdin_read: bool = False) -> None:
        """Refuse to begin where a person must confirm, and no terminal is there to ask."""
        if self.dry_run == "none" and not self.yes and (stdin_read or not sys.stdin.isatty()):
            raise click.UsageError(f"no terminal to ask for confirmation: use --yes, or {instead}")


def caller() -> str:
    """The user who calls the command, for other people who find it on a node."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def apply_plan(plan: Sequence[NodeChange], cluster: ClusterChoice, how: ApplyOptions) -> ExitCode:
    """Apply a plan to the nodes that it names, each its own way."""
    return apply_changes(cluster.run(lambda client: planned_changes(client, plan)), cluster, how)


def apply_changes(found: Changes, cluster: ClusterChoice, how: ApplyOptions) -> ExitCode:
    """Show what would change, ask, and do it. With `--yes` it does not ask."""
    with whoever_reads() if how.yes else nullcontext():
        return _apply(found, cluster, how)


def _apply(found: Changes, cluster: ClusterChoice, how: ApplyOptions) -> ExitCode:
    warn(*found.warnings)
    echo(_describe(found, how, Style.of(sys.stdout)))
    manager, refused = found.manager, any(change.refused for change in found.changes)
    if manager is not None and manager.owned and found.new:
        warn(
            f"nothing is written: the operator owns {manager}, and would undo what is added to it. Use one of your own, and run this again:"
        )
        echo(own_copy(manager, found.new))
        return ExitCode.FAILED
    to_write = [change for change in found.changes if not (change.written or change.refused)]
    if how.dry_run == "server":
        refused |= cluster.run(lambda client: _is_refused(client, found, to_write))
    if how.dry_run != "none":
        return _failed_if(refused)
    if (
        to_write
        and not how.yes
        and not click.confirm(f"Change {number_of(len(to_write), 'node')}?", err=True)
    ):
        warn("nothing was changed")
        return ExitCode.FAILED
    try:
        with whoever_reads():
            return cluster.run(lambda client: _roll_out(client, found, how))
    except Signalled:
        raise KeyboardInterrupt from None


def _failed_if(condition: bool) -> ExitCode:
    return ExitCode.FAILED if condition else ExitCode.DONE


async def _is_refused(client: Client, found: Changes, to_write: Sequence[Change]) -> bool:
    """Ask the API server about each change, and report its answers."""
    refused = False
    if found.manager is not None and found.new:
        try:
            await ConfigMap(client, found.manager, warn).add(found.new, dry_run=True)
            echo([f"{found.manager}: the API server would accept it"])
        except ApiError as error:
            warn(f"{found.manager}: {error}")
            refused = True
    for change in to_write:
        if why := await refusal(client, change):
            warn(f"{change.node}: {why}")
            refused = True
        else:
            echo([f"{change.node}: the API server would accept it"])
    return refused


async def _roll_out(client: Client, found: Changes, how: ApplyOptions) -> ExitCode:
    rollout = Rollout(
        client,
        owner=Owner(caller()),
        at_once=how.at_once.of(len(found.changes)),
        timeout=how.timeout,
        report=warn,
        when_in_use=how.when_in_use,
        cordon=how.cordon,
    )
    try:
        await until_signalled(rollout.run(found))
    finally:  # also when interrupted: the operator wants to know what is where
        echo(_summary(rollout.outcomes.values()))
    return _failed_if(not rollout.succeeded)


def _describe(found: Changes, how: ApplyOptions, style: Style) -> Iterator[str]:
    """What would change; nodes that change alike are listed together."""
    yield from _configurations(found, style)
    alike: dict[tuple[Any, ...], list[Change]] = {}
    for change in found.changes:
        if not (change.written or change.refused):
            removed = None if change.removed is None else tuple(change.removed.items())
            key = (change.before, change.after, tuple(change.counts), removed)
            alike.setdefault(key, []).append(change)
    for same in alike.values():
        yield style.bold(_nodes([change.node for change in same]))
        yield from _changed(same[0], style)
        for change in same:
            for risk in change.risks:
                yield "  " + style.note(f"warning: {change.node}: {risk}")
            if change.risks and (how.when_in_use or change.when_in_use) is WhenInUse.REFUSE:
                yield "  " + style.note(f"{change.node} is refused while these pods run")
            if change.risks and how.cordon is not None and how.cordon.drain:
                yield "  " + style.note(f"these pods are evicted from {change.node}")
    already = [change.node for change in found.changes if change.written and not change.refused]
    if already:
        yield f"{_nodes(already)}: no change, the layout is the same"
    for change in found.changes:
        if change.refused and not (how.yes and how.dry_run == "none"):  # else the summary says so at once
            yield style.note(f"node {change.node} is refused: {change.refused}")


def _configurations(found: Changes, style: Style) -> Iterator[str]:
    """What is added to mig-manager's ConfigMap, and removed from it."""
    if found.new or found.replaced:
        yield style.bold(str(found.manager))
    for line in entries_text(found.new).splitlines() if found.new else ():
        yield "  " + style.good(f"+ {line}")
    for name in found.replaced:
        yield "  " + style.bad(f"- {name}") + ", when no node uses it any more"


def _changed(change: Change, style: Style) -> Iterator[str]:
    for line in _diff(change):
        paint = {"-": style.bad, "+": style.good}.get(line[:1], style.dim)
        yield "  " + paint(line)
    for resource, before, after in change.counts:
        yield f"  {resource}: {before} → {after}"
    if change.label:
        yield f"  {_removed(change)}"


def _removed(change: Change) -> str:
    """What mig-manager removes: a card that changes is cleared whole."""
    if change.removed is None:
        return "removed: not known, any device may be"
    counts = counts_in_words((short(resource), number) for resource, number in change.removed.items())
    return f"removed: {counts or 'nothing'}"


def _diff(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.label:
        if before is not None:
            yield f"- {change.key}={before}"
        yield f"+ {change.key}={after}"
        return
    yield change.key
    lines = difflib.unified_diff((before or "").splitlines(), after.splitlines(), n=_CONTEXT, lineterm="")
    for line in list(lines)[2:]:  # without the names of files
        if not line.startswith("@@"):
            yield f"{line[:1]} {line[1:]}"


def _nodes(names: Sequence[str]) -> str:
    return f"node{'s' if len(names) > 1 else ''} {first_of(names, _MOST_NAMED)}"


def _summary(outcomes: Iterable[NodeRollout]) -> Iterator[str]:
    """What became of the nodes: a line for each with a reason, then how many ended in each way."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts[outcome.result] += 1
        if outcome.reason:
            yield f"{outcome.node}: {outcome.result}: {outcome.reason}"
    yield ", ".join(f"{number} {result}" for result, number in counts.items())
