"""`tessera why`: why a pod waits, was changed or was never created, and what would make it run."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options, policy_options
from tessera.cli.common.options import option
from tessera.cli.common.output import Output, Style, block, output_option, table
from tessera.core.text import age, first_of, number_of
from tessera.diagnosis.diagnosis import Diagnosis, diagnose
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.gather import CONFIGURATION, Gatherer, parse_target
from tessera.diagnosis.nodes import counted
from tessera.diagnosis.waiting import Cause
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource
from tessera.solver import highs

_MOST_ROWS: Final = 12  # of groups of nodes and of holders; beyond that a person reads the answer
_MOST_NAMES: Final = 3
_MARKS: Final = {"room": "✓", "missing": "-"}


@click.command()
@click.argument("target", metavar="POD|KIND/NAME", shell_complete=completing.pods_and_workloads)
@option(
    "-n, --namespace NAME",
    "Its namespace.  [default: the context's]",
    is_eager=True,  # known when names are completed
    shell_complete=completing.namespaces,
)
@output_option("text")
@policy_options()
@cluster_options
def command(
    target: str,
    namespace: str | None,
    output: Output,
    cluster: ClusterChoice,
    decides_by: PolicySource,
) -> int:
    """Say why a pod waits, got another slice, or was never created, and what would make it run.

    The first line is the answer. Below it: what admission did and would do now, the scheduler's words, what each node
    lacks, who holds the slices and since when, and the smallest changes that would help. For a workload (deploy/web, rs/…,
    sts/…, ds/…, job/…) the command takes the pod that waits, or that was never created. It changes nothing, and names what you may
    not read. The last line says which configuration of the webhook it judged by. Exit code 0, whatever the answer is.

    \b
    tessera why train-0 -n team
    tessera why deploy/web
    kubectl tessera why job/night -o json
    """  # fmt: skip
    kind, name = parse_target(target)

    async def ask(client: Client) -> tuple[Diagnosis, Evidence]:
        where = namespace or client.cluster.namespace
        return await _diagnosed(Gatherer(client, where, decides_by=decides_by), kind, name)

    found, seen = cluster.run(ask)
    output.show(lambda: _document(found, seen), lambda style: _text(found, seen, style))
    return 0


def explained(client: Client, decides_by: PolicySource) -> Callable[[str, str], Awaitable[str]]:
    """The same answer for the dashboard: why a pod of a namespace waits."""

    async def answer(namespace: str, pod: str) -> str:
        found, seen = await _diagnosed(Gatherer(client, namespace, decides_by=decides_by), "pod", pod)
        return "\n".join(_text(found, seen, Style(enabled=False)))

    return answer


async def _diagnosed(gatherer: Gatherer, kind: str, name: str) -> tuple[Diagnosis, Evidence]:
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
        "holders": [
            {"pod": one.pod, "node": one.node, "holds": one.holds, "since": _time(one.since)}
            for one in found.holders
        ],
        "remedies": [
            {"kind": one.kind, "text": one.text, "commands": one.commands} for one in found.remedies
        ],
        "unseen": found.unseen,
        "configuration": seen.decided_with,
    }


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def _text(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    # the last line says what is decided with
    unseen = {what: why for what, why in found.unseen.items() if what != CONFIGURATION}
    return [
        style.bold(found.answer),
        *block("end it" if found.cause == Cause.ENDING else "run it", _remedies(found, style)),
        *block("admission", found.admission),
        *block("scheduler", found.scheduler),
        *block("patience", found.patience),
        *block("nodes", _nodes(found, style)),
        *block("held by", _holders(found, seen, style)),
        *block("not seen", [style.note(f"{what}: {why}") for what, why in unseen.items()]),
        style.dim(seen.decided_with),
    ]


def _remedies(found: Diagnosis, style: Style) -> list[str]:
    lines = []
    for number, one in enumerate(found.remedies):
        lines.append(style.good(one.text) if number == 0 else f"or: {one.text}")
        lines += [style.dim(f"  $ {command}") for command in one.commands]
    return lines


def _nodes(found: Diagnosis, style: Style) -> list[str]:
    rows = [(_MARKS.get(one.lack, "✗"), first_of(one.nodes, _MOST_NAMES), one.reason) for one in found.nodes]
    return _first_rows(rows, "more group", " of nodes", style)


def _holders(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    rows = [
        (one.pod, one.node, counted(one.holds), "ending" if one.ending else age(seen.now, one.since))
        for one in found.holders
    ]
    return _first_rows(rows, "more pod", "", style)


def _first_rows(rows: Sequence[tuple[str, ...]], noun: str, of: str, style: Style) -> list[str]:
    more = len(rows) - _MOST_ROWS
    shown = table(rows[:_MOST_ROWS]) if rows else []
    return [*shown, style.dim(f"… and {number_of(more, noun)}{of}")] if more > 0 else shown
