"""`tessera doctor`: what is wrong, and what to type."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.options import Duration
from tessera.cli.common.output import Output, output_option
from tessera.cli.common.terminal import Style
from tessera.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tessera.doctor.evidence import Evidence, Names
    from tessera.doctor.findings import Result
    from tessera.kube.clock import Clock
    from tessera.kube.rest.client import Client

_WELL, _PROBLEMS, _COULD_NOT_RUN = 0, 1, 3  # exit codes; 2 is bad input, as for every command
_AGAIN: Final = 2.0  # seconds between two polls with --wait


def _check_names() -> list[str]:
    from tessera.doctor.examination import CHECKS

    return [check.name for check in CHECKS]


@click.command()
@cluster_options
@click.option("-n", "--namespace", default="gpu-webhook", show_default=True, shell_complete=completing.namespaces,
              help="Where Tessera is installed.")  # fmt: skip
@click.option(
    "--name", default="gpu-webhook", show_default=True, help="The webhook's Deployment and Service."
)
@click.option("--configuration", default="gpu-allocation-webhook", show_default=True,
              help="The MutatingWebhookConfiguration.")  # fmt: skip
@click.option("--try-namespace", default="default", show_default=True,
              help="Where a GPU pod is tried, with a dry run.")  # fmt: skip
@click.option("--cdi-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="On a node: also check the CDI specs there, such as /var/run/cdi.")  # fmt: skip
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", default=Path("/var/lib/tessera"),
              show_default=True, help="On a node: where its device plugin keeps its state.")  # fmt: skip
@click.option("--check", "only", multiple=True, metavar="NAME", shell_complete=completing.names(_check_names),
              help="Make only this check, by its name in -o json. Repeatable.")  # fmt: skip
@click.option("--wait", type=Duration(), metavar="TIME",
              help="Check again until all is well, for so long at most, such as 2m.")  # fmt: skip
@output_option("text")
def command(
    cluster: ClusterChoice,
    namespace: str,
    name: str,
    configuration: str,
    try_namespace: str,
    cdi_dir: Path | None,
    state_dir: Path,
    only: tuple[str, ...],
    wait: float | None,
    output: Output,
) -> int:
    """Check a cluster and say what is wrong and what to type, in the order that matters.

    Nothing is changed: the one pod that is tried is created with a dry run. Exit code 0 when all is well, 1 when
    something does not work, 3 when nothing is known to be wrong and not every check could run.

    \b
    tessera doctor -n gpu-webhook
    tessera doctor --wait 2m    # after an install, until all is well
    tessera doctor -o jsonpath='{range ..findings[?(@.severity=="problem")]}{.text}{"\\n"}{end}'
    """  # fmt: skip
    from tessera.doctor.evidence import Evidence, Names
    from tessera.doctor.examination import CHECKS, examine
    from tessera.kube.errors import KubeError

    if unknown := set(only) - {check.name for check in CHECKS}:
        known = ", ".join(check.name for check in CHECKS)
        raise click.UsageError(f"no check {', '.join(sorted(unknown))}; there are {known}")
    names = Names(namespace, name, configuration, try_namespace)

    def judge(seen: Evidence) -> "list[Result]":
        return list(examine(_with_cdi(seen, cdi_dir, state_dir), only))

    if set(only) == {"cdi"}:  # a node's files need no cluster
        results = judge(Evidence(names))
    else:
        try:
            results = cluster.run(lambda client: _poll(client, names, judge, wait))
        except KubeError as error:
            click.echo(f"tessera: {error}", err=True)
            return _COULD_NOT_RUN
    _show(results, output)
    return exit_code(results)


def exit_code(results: "Sequence[Result]") -> int:
    """0 where all is well, 1 where something does not work, 3 where nothing is known to be wrong, and not all is known."""
    from tessera.doctor.findings import State

    if any(result.failed for result in results):
        return _PROBLEMS
    return _COULD_NOT_RUN if any(result.state is State.UNSEEN for result in results) else _WELL


async def _poll(
    client: "Client",
    names: "Names",
    judge: "Callable[[Evidence], list[Result]]",
    wait: float | None,
    clock: "Clock | None" = None,
) -> "list[Result]":
    """Poll once; or, where there is time to wait, until all is well."""
    from tessera.doctor.gather import Gatherer
    from tessera.kube.clock import SYSTEM_CLOCK
    from tessera.kube.errors import Unreachable

    clock = clock or SYSTEM_CLOCK
    end = clock.now() + (wait or 0.0)
    while True:
        late = clock.now() + _AGAIN > end
        try:
            results = judge(await Gatherer(client, names, clock).gather())
        except Unreachable:
            if late:
                raise
        else:
            if late or exit_code(results) == _WELL:
                return results
        await clock.sleep(_AGAIN)


def _with_cdi(seen: "Evidence", cdi_dir: Path | None, state_dir: Path) -> "Evidence":
    """What only a node can tell."""
    from tessera.doctor.gather import read_cdi

    if cdi_dir is None:
        return seen
    try:
        files, devices = read_cdi(cdi_dir, state_dir)
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {(error.strerror or str(error)).lower()}") from error
    return replace(seen, cdi=files, devices=devices)


def _show(results: "Sequence[Result]", output: Output) -> None:
    if output.is_document:
        output.print([_document(result) for result in results])
        return
    for line in _lines(results, Style.of(sys.stdout)):
        click.echo(line)


def _lines(results: "Sequence[Result]", style: Style) -> list[str]:
    from tessera.doctor.findings import Severity, State

    marks = {
        Severity.PROBLEM: style.bad("PROBLEM"),
        Severity.WARNING: style.note("warning"),
        Severity.NOTE: style.dim("note   "),
        Severity.UNSEEN: style.note("unseen "),
        Severity.NOT_APPLICABLE: style.dim("n/a    "),
    }
    lines = []
    for result in results:
        if not result.findings:
            lines.append(f"{style.good('ok     ')}  {result.check.title}")
        for finding in result.findings:
            lines.append(f"{marks[finding.severity]}  {result.check.title}: {finding.text}")
            lines += [f"{'':9}{style.bold('$')} {one}" for one in finding.commands]
    problems, warnings = (
        sum(finding.severity is severity for result in results for finding in result.findings)
        for severity in (Severity.PROBLEM, Severity.WARNING)
    )
    blind = sum(result.state is State.UNSEEN for result in results)
    counted = [_count(problems, "problem"), _count(warnings, "warning")]
    if blind:
        counted.append(f"{blind} of {_count(len(results), 'check')} could not run")
    return [*lines, "", ", ".join(filter(None, counted)) + "." if any(counted) else "Nothing is wrong."]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""


def _document(result: "Result") -> dict[str, object]:
    from tessera.doctor.findings import State

    return {
        "check": result.check.name,
        "title": result.check.title,
        "state": str(result.state),
        "ok": result.state is State.SEEN and not result.failed,
        "findings": [
            {"severity": str(one.severity), "text": one.text, "commands": list(one.commands)}
            for one in result.findings
        ],
    }
