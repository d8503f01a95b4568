"""`tessera why`: why a pod waits, was changed or was never created, and what would make it run."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from tessera.cli.admit.command import read_policy
from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.options import option
from tessera.cli.common.output import Output, Style, block, output_option, table
from tessera.core.admission.policy import Policy
from tessera.core.text import first_of, number_of
from tessera.diagnosis.diagnosis import Diagnosis, diagnose
from tessera.diagnosis.evidence import Evidence
from tessera.diagnosis.gather import Gatherer, parse_target
from tessera.diagnosis.nodes import counted
from tessera.diagnosis.remedies import age
from tessera.kube.rest.client import Client
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
@option("--config FILE", "The webhook's configuration.  [default: read from its ConfigMap]", "config_file")
@option("--webhook-namespace", "Where the webhook is installed.", default="gpu-webhook")
@option("--webhook-name", "The webhook's ConfigMap.", default="gpu-webhook")
@cluster_options
def command(
    target: str,
    namespace: str | None,
    output: Output,
    config_file: str | None,
    webhook_namespace: str,
    webhook_name: str,
    cluster: ClusterChoice,
) -> int:
    """Say why a pod waits, got another slice, or was never created, and what would make it run.

    The first line is the answer. Below it: what admission did and would do now, the scheduler's words, what each node
    lacks, who holds the slices and since when, and the smallest changes that would help. For a workload (deploy/web, rs/…,
    sts/…, ds/…, job/…) the command takes the pod that waits, or that was never created. It changes nothing, and names what you may
    not read. Exit code 0, whatever the answer is.

    \b
    tessera why train-0 -n team
    tessera why deploy/web
    kubectl tessera why job/night -o json
    """  # fmt: skip
    kind, name = parse_target(target)
    policy = read_policy(config_file) if config_file else None

    async def ask(client: Client) -> tuple[Diagnosis, Evidence]:
        where, installed = namespace or client.cluster.namespace, (webhook_namespace, webhook_name)
        return await _diagnosed(Gatherer(client, where, policy=policy, installed=installed), kind, name)

    found, seen = cluster.run(ask)
    output.show(lambda: _document(found), lambda style: _text(found, seen, style))
    return 0


def explained(client: Client, policy: Policy | None = None) -> Callable[[str, str], Awaitable[str]]:
    """The same answer for the dashboard: why a pod of a namespace waits."""

    async def answer(namespace: str, pod: str) -> str:
        found, seen = await _diagnosed(Gatherer(client, namespace, policy=policy), "pod", pod)
        return "\n".join(_text(found, seen, Style(enabled=False)))

    return answer


async def _diagnosed(gatherer: Gatherer, kind: str, name: str) -> tuple[Diagnosis, Evidence]:
    seen, asked = await gatherer.gather(kind, name)
    return diagnose(seen, asked, highs), seen


def _document(found: Diagnosis) -> dict[str, Any]:
    return {
        "object": found.title,
        "cause": found.cause,
        "answer": found.answer,
        "admission": found.admission,
        "scheduler": found.scheduler,
        "nodes": found.nodes,
        "holders": [
            {"pod": one.pod, "node": one.node, "holds": one.holds, "since": _time(one.since)}
            for one in found.holders
        ],
        "remedies": [
            {"kind": one.kind, "text": one.text, "commands": one.commands} for one in found.remedies
        ],
        "unseen": found.unseen,
    }


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def _text(found: Diagnosis, seen: Evidence, style: Style) -> list[str]:
    return [
        style.bold(found.answer),
        *block("run it", _remedies(found, style)),
        *block("admission", found.admission),
        *block("scheduler", found.scheduler),
        *block("nodes", _nodes(found, style)),
        *block("held by", _holders(found, seen, style)),
        *block("not seen", [style.note(f"{what}: {why}") for what, why in found.unseen.items()]),
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
