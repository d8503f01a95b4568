"""`tessera why`: why a pod waits, was changed or was never created, or how far a MigLayout is; and what to do.

The answers themselves are `tessera.diagnosis`. Here they become text, and documents.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from tessera.cli.common import completing
from tessera.cli.common.help import Command
from tessera.cli.common.options import ClusterChoice, cluster_options, option, policy_options
from tessera.cli.common.output import Output, Style, block, format_age, headed, output_option, table
from tessera.cli.why_groups import groups_document, groups_text
from tessera.core.resources import short
from tessera.core.text import counts_in_words, first_of, number_of
from tessera.diagnosis.diagnosis import Diagnosis, diagnose
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.gather import CONFIGURATION, Gatherer
from tessera.diagnosis.layouts.gather import LayoutEvidence, gather_layout
from tessera.diagnosis.layouts.layout_diagnosis import LayoutDiagnosis, diagnose_layout
from tessera.diagnosis.layouts.status import cut
from tessera.diagnosis.layouts.words import card_words, decided, decided_why, result_of, worth
from tessera.diagnosis.node_state.answer import NodeDiagnosis, diagnose_node
from tessera.diagnosis.nodes import Lack, counted
from tessera.diagnosis.pod_groups.groups import WaitingDiagnosis, explain_groups
from tessera.diagnosis.reading import MIG_LAYOUT, NODE, parse_target
from tessera.diagnosis.remedies import Holder
from tessera.diagnosis.remedy import Remedy
from tessera.diagnosis.waiting import Cause
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource
from tessera.protocol.kubernetes.objects import moment, seconds
from tessera.protocol.mig.miglayout import AutopilotStatus, HistoryRow, NamespaceRow, RecutRow
from tessera.solver import highs

_MOST_ROWS: Final = 12  # of groups of nodes, of holders, of rollouts; beyond that a person reads the answer

_MOST_NAMES: Final = 3
_LACK_MARKS: Final = {"room": "✓", "missing": "-"}
_STATE_MARKS: Final = {"Failed": "✗", "Invalid": "✗"}
_SAID_BY_NUMBERS: Final = (Lack.NOTHING, Lack.TAKEN)  # what a node's devices lack
_DEMAND: Final = ("devices", "waiting", "fell back", "rejected", "in use", "idle", "forecast")


@click.command(cls=Command)
@click.argument("target", metavar="[POD|KIND/NAME]", required=False, shell_complete=completing.targets)
@option(
    "-n, --namespace NAME",
    "The namespace.  [default: the context's]",
    is_eager=True,  # known when names are completed
    shell_complete=completing.namespaces,
)
@option("-A, --all-namespaces", "Without a name: explain the pods that wait in all namespaces.")
@output_option("text")
@policy_options()
@cluster_options
def command(
    target: str | None,
    namespace: str | None,
    all_namespaces: bool,
    output: Output,
    cluster: ClusterChoice,
    decides_by: PolicySource,
) -> None:
    """Say why a pod waits, got another slice, or was never created, and what would make it run.

    The first line is the answer. Below it: what admission did and would do now, the scheduler's words, what each node
    lacks, who holds the slices and since when, and the smallest changes that would help. For a workload (deploy/web, rs/…,
    sts/…, ds/…, job/…) the command takes the pod that waits, or that was never created. It changes nothing, and names what you may
    not read. The last line says which configuration of the webhook it judged by. The exit code is 0 when there is an answer, whatever it is.

    Without a name: all pods of the namespace that wait, or with -A of all namespaces. Pods of one owner that ask for the same are
    one line. Pods that were never created are not among them.

    For a MigLayout (miglayout/NAME): how far it is, why nodes do not have their layout, and whether a controller keeps it, by its Lease
    in --tessera-namespace. In mode Auto: what is wanted, what would be cut and why, what gets no room, what was decided. The last lines say
    what to do next.

    For a node (node/NAME): whether it takes pods, which devices it offers, who holds them, who cuts its cards, and what is wrong.

    \b
    Examples:
      tessera why -n team
      tessera why -A
      tessera why train-0 -n team
      tessera why deploy/web
      tessera why miglayout/inference
      tessera why node/gpu-1
      kubectl tessera why job/night -o json
    """  # fmt: skip
    if all_namespaces and (target or namespace):
        raise click.UsageError("use -A without a name and without -n")
    if target is None:

        async def gather_groups(client: Client) -> tuple[str, WaitingDiagnosis]:
            where = "" if all_namespaces else namespace or client.cluster.namespace
            seen, groups = await Gatherer(client, where, decides_by=decides_by).gather_waiting()
            return where, explain_groups(seen, groups)

        where, waiting = cluster.run(gather_groups)
        output.show(lambda: groups_document(waiting), lambda style: groups_text(waiting, where, style))
        return
    kind, name = parse_target(target)
    if kind == MIG_LAYOUT:

        async def gathered(client: Client) -> LayoutEvidence:
            return await gather_layout(client, name, decides_by.namespace)

        show_layout(cluster.run(gathered), output)
        return

    if kind == NODE:
        seen = cluster.run(lambda client: Gatherer(client, "", decides_by=decides_by).gather_node(name))
        node = diagnose_node(seen, name)
        output.show(lambda: _node_document(node, seen), lambda style: _node_text(node, seen, style))
        return

    async def ask(client: Client) -> tuple[Diagnosis, Evidence]:
        where = namespace or client.cluster.namespace
        return await _diagnose(Gatherer(client, where, decides_by=decides_by), kind, name)

    found, evidence = cluster.run(ask)
    output.show(lambda: _document(found, evidence), lambda style: _text(found, evidence, style))


def _remedy_lines(remedies: Iterable[Remedy], style: Style, between: str = "or: ") -> list[str]:
    lines = []
    for number, one in enumerate(remedies):
        lines.append(style.good(one.text) if number == 0 else f"{between}{one.text}")
        lines += [style.dim(f"  $ {command}") for command in one.commands]
    return lines


def _remedy_documents(remedies: Iterable[Remedy]) -> list[dict[str, Any]]:
    return [{"kind": one.kind, "text": one.text, "commands": one.commands} for one in remedies]


def _holder_documents(holders: Iterable[Holder]) -> list[dict[str, Any]]:
    return [
        {"pod": one.pod, "node": one.node, "holds": one.holds, "since": _time(one.since)} for one in holders
    ]


def _first_rows(rows: Sequence[tuple[str, ...]], noun: str, of: str, style: Style) -> list[str]:
    """The first rows as a table, and how many more there are."""
    more = len(rows) - _MOST_ROWS
    shown = table(rows[:_MOST_ROWS]) if rows else []
    return [*shown, style.dim(f"… and {number_of(more, noun)}{of}")] if more > 0 else shown


def _unseen_block(unseen: Mapping[str, str], style: Style) -> list[str]:
    return block("not seen", [style.note(f"{what}: {why}") for what, why in unseen.items()])


def explained(client: Client, decides_by: PolicySource) -> Callable[[str, str], Awaitable[str]]:
    """The same answer for the dashboard: why a pod of a namespace waits."""

    async def answer(namespace: str, pod: str) -> str:
        found, seen = await _diagnose(Gatherer(client, namespace, decides_by=decides_by), "pod", pod)
        return "\n".join(_text(found, seen, Style(enabled=False)))

    return answer


async def _diagnose(gatherer: Gatherer, kind: str, name: str) -> tuple[Diagnosis, Evidence]:
    seen, asked = await gatherer.gather(kind, name)
    return diagnose(seen, asked, highs), seen


def _document(found: Diagnosis, seen: Evidence) -> dict[str, Any]:
    return {
        "object": found.title,
        "cause": found.cause,
        "answer": found.answer,
        "admission": found.admission,
        "scheduler": found.scheduler,
        "patience": found.patience,
        "nodes": found.nodes,
        "holders": _holder_documents(found.holders),
        "remedies": _remedy_documents(found.remedies),
        "unseen": found.unseen,
        "configuration": seen.decided_with,
    }


def _time(seconds: float) -> str | None:
    return moment(seconds) if seconds else None


def _text(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    # the last line says what is decided with
    unseen = {what: why for what, why in found.unseen.items() if what != CONFIGURATION}
    return [
        style.bold(found.answer),
        *block("end it" if found.cause == Cause.ENDING else "run it", _remedy_lines(found.remedies, style)),
        *block("admission", found.admission),
        *block("scheduler", found.scheduler),
        *block("patience", found.patience),
        *block("nodes", _nodes(found, style)),
        *block("held by", _holders(found, seen, style)),
        *_unseen_block(unseen, style),
        style.dim(seen.decided_with),
    ]


def _nodes(found: Diagnosis, style: Style) -> list[str]:
    rows = [
        (_LACK_MARKS.get(one.lack, "✗"), first_of(one.nodes, _MOST_NAMES), one.reason) for one in found.nodes
    ]
    return _first_rows(rows, "more group", " of nodes", style)


def _holders(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    rows = [
        (one.pod, one.node, counted(one.holds), "ending" if one.ending else format_age(seen.now, one.since))
        for one in found.holders
    ]
    return _first_rows(rows, "more pod", "", style)


def show_layout(seen: LayoutEvidence, output: Output) -> None:
    """Print the answer in the form that was asked for."""
    found = diagnose_layout(seen)
    output.show(lambda: _layout_document(found), lambda style: _layout_text(found, seen, style))


def _layout_document(found: LayoutDiagnosis) -> dict[str, Any]:
    status, autopilot = found.status, msgspec.to_builtins(found.autopilot)
    return {
        "object": found.title,
        "cause": found.cause,
        "answer": found.answer,
        "mode": found.mode,
        "about": found.about,
        "counts": {
            "desired": status.desired,
            "current": status.current,
            "updating": status.updating_count,
            "failed": status.failed,
        },
        "conditions": status.conditions,
        "nodes": found.nodes,
        "rollouts": found.rollouts,
        "autopilot": autopilot and {key: value for key, value in autopilot.items() if key != "past"},
        "remedies": _remedy_documents(found.remedies),
        "unseen": found.unseen,
    }


def _layout_text(found: LayoutDiagnosis, seen: LayoutEvidence, style: Style) -> list[str]:
    return [
        style.bold(found.answer),
        *block("mode", found.about),
        *block("nodes", _layout_nodes(found, seen, style)),
        *block("conditions", _conditions(found, seen)),
        *block("rollouts", _rollouts(found, seen, style)),
        *(_autopilot(found.autopilot, found.answer, style) if found.autopilot is not None else ()),
        *_unseen_block(found.unseen, style),
        *block("next", _remedy_lines(found.remedies, style, between="")),
    ]


def _layout_nodes(found: LayoutDiagnosis, seen: LayoutEvidence, style: Style) -> list[str]:
    one = found.status
    counts = (
        f"desired {one.desired}, current {one.current}, updating {one.updating_count}, failed {one.failed}"
    )
    selected = f"{seen.selected} selected by " if seen.selected is not None else "selected by "
    # what is waited for on nodes that are being changed stands with their rollouts
    rows = [
        (_STATE_MARKS.get(group.state, "-"), first_of(group.nodes, _MOST_NAMES), group.state, group.reason)
        for group in found.nodes
        if group.state != "Updating" or not found.rollouts
    ]
    lines = _first_rows(rows, "more group", " of nodes", style)
    rest = (
        [style.dim(f"… and {found.more} more, whose reasons the status does not have")] if found.more else []
    )
    return [f"{counts}; {selected}{cut(seen.layout.selector)}", *lines, *rest]


def _conditions(found: LayoutDiagnosis, seen: LayoutEvidence) -> list[str]:
    rows = [
        (one.type, one.status, one.reason, format_age(seen.now, one.since), one.message)
        for one in found.status.conditions
    ]
    return table(rows) if rows else []


def _rollouts(found: LayoutDiagnosis, seen: LayoutEvidence, style: Style) -> list[str]:
    rows = [
        (
            one.node,
            one.phase,
            format_age(seen.now, seconds(one.since)) if one.since else "",
            one.owner,
            "; ".join(filter(None, (one.words, one.reason))),
        )
        for one in found.rollouts
    ]
    return _first_rows(rows, "more rollout", "", style)


def _autopilot(one: AutopilotStatus, answer: str, style: Style) -> Iterator[str]:
    said = decided(one)
    yield from block("decides", [] if said in answer else [said])
    yield from block("wanted", _demand(one, style))
    recuts = (line for recut in one.recuts for line in _recut(recut, one))
    yield from block("would cut" if one.dry_run else "cuts next", recuts)
    refusals = (f"{counts_in_words([(no.profile, no.number)])}: {no.reason}" for no in one.refusals)
    yield from block("no room", refusals)
    yield from block("spent", map(_spent, one.namespaces))
    history = (line for row in one.history for line in _past(row))
    yield from block("history", history)


def _recut(recut: RecutRow, one: AutopilotStatus) -> Iterator[str]:
    yield card_words(recut)
    yield f"  {worth(recut)}"
    yield f"  {recut.reason}"
    if recut.waits and not one.dry_run:  # which was said
        yield f"  not at once: {recut.waits}"


def _spent(row: NamespaceRow) -> str:
    counts = f"namespace {row.namespace}: cards an hour: {row.used} used, {row.unused} unused, {row.undecided} undecided"
    return f"{counts}; its share is free again at {row.free_at} at the latest" if row.free_at else counts


def _past(row: HistoryRow) -> Iterator[str]:
    yield f"{row.at}  {card_words(row)}"
    yield f"  {'; '.join(filter(None, (result_of(row)[1], decided_why(row))))}"


def _demand(one: AutopilotStatus, style: Style) -> list[str]:
    rows = [
        (row.profile, *map(str, (row.waiting, row.fell_back, row.rejected, row.in_use, row.idle)), f"{row.forecast:g}")
        for row in one.demand
    ]  # fmt: skip
    return headed([_DEMAND, *rows], style) if rows else []


def _node_document(diagnosis: NodeDiagnosis, seen: Evidence) -> dict[str, Any]:
    return {
        "object": f"node {diagnosis.name}",
        "cause": diagnosis.cause,
        "answer": diagnosis.answer,
        "state": diagnosis.state,
        "layout": diagnosis.layout,
        "keptBy": diagnosis.keeper,
        "devices": [
            {"resource": kind.resource, "offered": kind.offered, "inUse": kind.in_use, "reason": kind.reason}
            for kind in diagnosis.devices
        ],
        "rollout": diagnosis.rollout,
        "holders": _holder_documents(diagnosis.holders),
        "remedies": _remedy_documents(diagnosis.remedies),
        "unseen": seen.unseen,
    }


def _node_text(diagnosis: NodeDiagnosis, seen: Evidence, style: Style) -> list[str]:
    devices = [
        (
            short(kind.resource),
            f"{kind.in_use} of {kind.offered} in use",
            "" if kind.lack in _SAID_BY_NUMBERS else style.note(kind.reason),
        )
        for kind in diagnosis.devices
    ]
    holders = [
        (pod.pod, counted(pod.holds), "ending" if pod.ending else format_age(seen.now, pod.since))
        for pod in diagnosis.holders
    ]
    return [
        style.bold(diagnosis.answer),
        *block("state", [diagnosis.state]),
        *block("layout", [diagnosis.layout] if diagnosis.layout else []),
        *block("kept by", [f"MigLayout {diagnosis.keeper}"] if diagnosis.keeper else []),
        *block("devices", table(devices) if devices else []),
        *block("held by", _first_rows(holders, "more pod", "", style)),
        *_unseen_block(seen.unseen, style),
        *block("next", _remedy_lines(diagnosis.remedies, style)),
    ]
