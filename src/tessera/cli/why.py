"""`tessera why`: why a pod waits, was changed or was never created, and what would make it run."""

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.output import Output, output_option
from tessera.cli.common.terminal import Style, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tessera.core.admission.policy import Policy
    from tessera.diagnosis.diagnosis import Diagnosis
    from tessera.diagnosis.evidence import Evidence, Target
    from tessera.kube.rest.client import Client

_MOST_ROWS: Final = 12  # of groups of nodes and of holders; beyond that a person reads the answer
_MOST_NAMES: Final = 3
_MARKS: Final = {"room": "✓", "missing": "-"}


@click.command()
@click.argument("target", metavar="POD|KIND/NAME", shell_complete=completing.pods_and_workloads)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    is_eager=True,  # known when names are completed
    shell_complete=completing.namespaces,
    help="Its namespace.  [default: the context's]",
)
@output_option("text")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    shell_complete=completing.files,
    help="The webhook's configuration.  [default: read from its ConfigMap]",
)
@click.option(
    "--webhook-namespace", default="gpu-webhook", show_default=True, help="Where the webhook is installed."
)
@click.option("--webhook-name", default="gpu-webhook", show_default=True, help="The webhook's ConfigMap.")
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
    lacks, who holds the slices and since when, and the smallest changes that would help. Of a workload (deploy/web, rs/…,
    sts/…, ds/…, job/…) the pod is taken that waits, or that was never created. Nothing is changed, and what may not be read is
    said. Exit code 0, whatever the answer is.

    \b
    tessera why train-0 -n team
    tessera why deploy/web
    kubectl tessera why job/night -o json
    """  # fmt: skip
    from tessera.cli.admit.command import read_policy
    from tessera.diagnosis.diagnosis import diagnose
    from tessera.diagnosis.gather import Gatherer, parse_target
    from tessera.solver import highs

    kind, name = parse_target(target)
    policy = read_policy(config_file) if config_file else None

    async def gather(client: "Client") -> "tuple[Evidence, Target]":
        where = namespace or client.cluster.namespace
        installed = (webhook_namespace, webhook_name)
        return await Gatherer(client, where, policy=policy, installed=installed).gather(kind, name)

    seen, asked = cluster.run(gather)
    found = diagnose(seen, asked, highs)
    if not output.is_document:
        style = Style.of(sys.stdout)
        click.echo("\n".join(_text(found, seen, style)), color=style.enabled)
    else:
        output.print(document(found))
    return 0


def explained(client: "Client", policy: "Policy | None" = None) -> "Callable[[str, str], Awaitable[str]]":
    """The same answer for the dashboard: why a pod of a namespace waits."""
    from tessera.diagnosis.diagnosis import diagnose
    from tessera.diagnosis.gather import Gatherer
    from tessera.solver import highs

    async def answer(namespace: str, pod: str) -> str:
        seen, asked = await Gatherer(client, namespace, policy=policy).gather("pod", pod)
        return "\n".join(_text(diagnose(seen, asked, highs), seen, Style(enabled=False)))

    return answer


def document(found: "Diagnosis") -> dict[str, Any]:
    """The diagnosis for programs."""
    return {
        "object": found.title,
        "cause": str(found.cause),
        "answer": found.answer,
        "admission": list(found.admission),
        "scheduler": list(found.scheduler),
        "nodes": [
            {"lack": str(one.lack), "reason": one.reason, "nodes": list(one.nodes)} for one in found.nodes
        ],
        "holders": [
            {"pod": one.pod, "node": one.node, "holds": dict(one.holds), "since": _time(one.since)}
            for one in found.holders
        ],
        "remedies": [
            {"kind": one.kind, "text": one.text, "commands": list(one.commands)} for one in found.remedies
        ],
        "unseen": dict(found.unseen),
    }


def _time(seconds: float) -> str | None:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def _text(found: "Diagnosis", seen: "Evidence", style: Style) -> list[str]:
    lines = [style.bold(found.answer)]
    lines += _block("run it", _remedies(found, style))
    lines += _block("admission", list(found.admission))
    lines += _block("scheduler", list(found.scheduler))
    lines += _block("nodes", _nodes(found, style))
    lines += _block("held by", _holders(found, seen, style))
    lines += _block("not seen", [style.note(f"{what}: {why}") for what, why in found.unseen.items()])
    return lines


def _block(label: str, texts: list[str]) -> list[str]:
    return [f"  {(label if at == 0 else ''):<12}{text}".rstrip() for at, text in enumerate(texts)]


def _remedies(found: "Diagnosis", style: Style) -> list[str]:
    lines = []
    for number, one in enumerate(found.remedies):
        lines.append(style.good(one.text) if number == 0 else f"or: {one.text}")
        lines += [style.dim(f"  $ {command}") for command in one.commands]
    return lines


def _nodes(found: "Diagnosis", style: Style) -> list[str]:
    from tessera.core.text import first_of, number_of

    rows = [
        (_MARKS.get(one.lack, "✗"), first_of(one.nodes, _MOST_NAMES), one.reason)
        for one in found.nodes[:_MOST_ROWS]
    ]
    lines = table(rows) if rows else []
    if len(found.nodes) > _MOST_ROWS:
        lines.append(style.dim(f"… and {number_of(len(found.nodes) - _MOST_ROWS, 'more group')} of nodes"))
    return lines


def _holders(found: "Diagnosis", seen: "Evidence", style: Style) -> list[str]:
    from tessera.core.text import number_of
    from tessera.diagnosis.nodes import counted
    from tessera.diagnosis.remedies import age

    rows = [
        (one.pod, one.node, counted(one.holds), "ending" if one.ending else age(seen.now, one.since))
        for one in found.holders[:_MOST_ROWS]
    ]
    lines = table(rows) if rows else []
    if len(found.holders) > _MOST_ROWS:
        lines.append(style.dim(f"… and {number_of(len(found.holders) - _MOST_ROWS, 'more pod')}"))
    return lines
