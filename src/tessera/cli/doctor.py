"""`tessera doctor`: what is wrong, and what to type."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.terminal import Style
from tessera.core.errors import InvalidInput

if TYPE_CHECKING:
    from tessera.doctor.evidence import Evidence, Names
    from tessera.doctor.findings import Answer
    from tessera.kube.rest.client import Client

_EXIT_PROBLEMS: Final = 1


def _check_names() -> list[str]:
    from tessera.doctor.checks import CHECKS

    return [check.name for check in CHECKS]


@click.command()
@cluster_options
@click.option(
    "-n", "--namespace", default="gpu-webhook", show_default=True, help="Where Tessera is installed."
)
@click.option(
    "--name", default="gpu-webhook", show_default=True, help="The webhook's Deployment and Service."
)
@click.option("--configuration", default="gpu-allocation-webhook", show_default=True,
              help="The MutatingWebhookConfiguration.")  # fmt: skip
@click.option("--try-namespace", default="default", show_default=True,
              help="Where a GPU pod is tried, with a dry run.")  # fmt: skip
@click.option("--cdi-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="On a node: also look at the CDI specs there, such as /var/run/cdi.")  # fmt: skip
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", default=Path("/var/lib/tessera"),
              show_default=True, help="On a node: where its device plugin keeps its state.")  # fmt: skip
@click.option("--check", "only", multiple=True, metavar="NAME", shell_complete=completing.names(_check_names),
              help="Make only this check, by its name in -o json. Repeatable.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    cluster: ClusterChoice,
    namespace: str,
    name: str,
    configuration: str,
    try_namespace: str,
    cdi_dir: Path | None,
    state_dir: Path,
    only: tuple[str, ...],
    output: str,
) -> int:
    """Look at a cluster and say what is wrong and what to type, in the order that matters.

    Nothing is changed: the one pod that is tried is created with a dry run. Exit code 0 when nothing is wrong, 1 when
    something does not work.
    """
    from tessera.doctor.checks import CHECKS, examine
    from tessera.doctor.evidence import Evidence, Names

    if unknown := set(only) - {check.name for check in CHECKS}:
        known = ", ".join(check.name for check in CHECKS)
        raise click.UsageError(f"no check {', '.join(sorted(unknown))}; there are {known}")
    names = Names(namespace, name, configuration, try_namespace)
    on_node_only = set(only) == {"cdi"}  # a node's files need no cluster
    seen = Evidence(names) if on_node_only else cluster.run(lambda client: _gather(client, names))
    answers = list(examine(_with_cdi(seen, cdi_dir, state_dir), only))
    if output == "json":
        click.echo(json.dumps([_document(answer) for answer in answers], indent=2))
    else:
        for line in _lines(answers, Style.of(sys.stdout)):
            click.echo(line)
    return _EXIT_PROBLEMS if any(answer.failed for answer in answers) else 0


async def _gather(client: "Client", names: "Names") -> "Evidence":
    from tessera.doctor.gather import Gatherer

    return await Gatherer(client, names).gather()


def _with_cdi(seen: "Evidence", cdi_dir: Path | None, state_dir: Path) -> "Evidence":
    """What only a node can tell."""
    from tessera.doctor.local import read_cdi

    if cdi_dir is None:
        return replace(seen, unseen={**seen.unseen, "cdi": "only on a node, with --cdi-dir"})
    try:
        files, devices = read_cdi(cdi_dir, state_dir)
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {(error.strerror or str(error)).lower()}") from error
    return replace(seen, cdi=files, devices=devices)


def _lines(answers: Sequence["Answer"], style: Style) -> list[str]:
    from tessera.doctor.findings import Severity

    marks = {
        Severity.PROBLEM: style.bad("PROBLEM"),
        Severity.WARNING: style.note("warning"),
        Severity.NOTE: style.dim("note   "),
        Severity.UNSEEN: style.dim("unseen "),
    }
    lines = []
    for answer in answers:
        if not answer.findings:
            lines.append(f"{style.good('ok     ')}  {answer.check.title}")
        for finding in answer.findings:
            lines.append(f"{marks[finding.severity]}  {answer.check.title}: {finding.text}")
            lines += [f"{'':9}{style.bold('$')} {one}" for one in finding.commands]
    problems, warnings = (
        sum(finding.severity is severity for answer in answers for finding in answer.findings)
        for severity in (Severity.PROBLEM, Severity.WARNING)
    )
    counted = [_count(problems, "problem"), _count(warnings, "warning")]
    lines += [
        "",
        "Nothing is wrong." if not problems and not warnings else ", ".join(filter(None, counted)) + ".",
    ]
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""


def _document(answer: "Answer") -> dict[str, object]:
    return {
        "check": answer.check.name,
        "title": answer.check.title,
        "ok": not answer.failed,
        "findings": [
            {"severity": str(one.severity), "text": one.text, "commands": list(one.commands)}
            for one in answer.findings
        ],
    }
