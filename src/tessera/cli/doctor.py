"""`tessera doctor`: what is wrong, and what to type."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import (
    ClusterChoice,
    Duration,
    cluster_options,
    gathered,
    option,
    tessera_namespace_option,
    webhook_configuration_option,
    webhook_name_option,
)
from tessera.cli.common.output import Output, Style, output_option
from tessera.core.errors import InvalidInput, of_system
from tessera.core.text import number_of
from tessera.doctor.examination import BEFORE_UNINSTALL, CHECKS, examine
from tessera.doctor.findings import CheckResult, Severity, State
from tessera.doctor.gather import Observer, read_cdi
from tessera.doctor.observations import Names, Observations
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import Unreachable
from tessera.kube.rest.client import Client

_AGAIN: Final = 2.0  # seconds between two polls with --wait
_CHECKS: Final = [check.name for check in CHECKS]
_BEFORE_UNINSTALL: Final = [check.name for check in BEFORE_UNINSTALL]
_FOLDER: Final = click.Path(path_type=Path)
_MARKS: Final = {
    Severity.PROBLEM: (Style.bad, "PROBLEM"),
    Severity.WARNING: (Style.note, "warning"),
    Severity.NOTE: (Style.dim, "note   "),
    Severity.UNSEEN: (Style.note, "unseen "),
    Severity.NOT_APPLICABLE: (Style.dim, "n/a    "),
}
_NOT_CHECKED: Final = (Severity.UNSEEN, Severity.NOT_APPLICABLE)

_name_options: Final = gathered(
    "names",
    Names,
    tessera_namespace_option(name="namespace", default="gpu-webhook"),
    webhook_name_option("The webhook's Deployment and Service.", "webhook"),
    webhook_configuration_option(name="configuration"),
    option(
        "--try-namespace NAME",
        "Where a GPU pod is tried, with a dry run.",
        default="default",
        shell_complete=completing.namespaces,
        group="Checks",
    ),
)


@click.command(cls=Command)
@cluster_options
@_name_options
@option(
    "--cdi-dir DIR",
    "On a node: also check the CDI specs there, such as /var/run/cdi.",
    type=_FOLDER,
    group="Node",
)
@option(
    "--state-dir DIR",
    "On a node: where its device plugin keeps its state.",
    type=_FOLDER,
    default=Path("/var/lib/tessera"),
    group="Node",
)
@option(
    "--check NAME",
    "Make only this check, by the name that its findings begin with. Repeatable.",
    "only",
    multiple=True,
    shell_complete=completing.names(lambda: [*_CHECKS, *_BEFORE_UNINSTALL]),
    group="Checks",
)
@option(
    "--before-uninstall",
    "Check instead what an uninstall would hang on, and what it would leave.",
    group="Checks",
)
@option("--wait", "Check again every two seconds until all is well.", group="Checks")
@option("--timeout", "With --wait: for how long at most.", type=Duration(), default="5m", group="Checks")
@output_option("text")
def command(
    cluster: ClusterChoice,
    names: Names,
    cdi_dir: Path | None,
    state_dir: Path,
    only: tuple[str, ...],
    before_uninstall: bool,
    wait: bool,
    timeout: float,
    output: Output,
) -> ExitCode:
    """Check a cluster and say what is wrong and what to type, in the order that matters.

    The command changes nothing: it tries one pod, with a dry run.

    Exit code 3: something does not work. Exit code 1: nothing is known to be wrong, and not every check could run.

    \b
    Examples:
      tessera doctor --tessera-namespace gpu-webhook
      tessera doctor --wait    # after an install, until all is well
      tessera doctor --before-uninstall --wait    # until no pod holds a claim
      tessera doctor \\
        -o jsonpath='{range ..[?(@.severity=="problem")]}{.text}{"\\n"}{end}'
    """  # fmt: skip
    known = _BEFORE_UNINSTALL if before_uninstall else _CHECKS
    if unknown := set(only) - set(known):
        raise click.UsageError(f"no check {', '.join(sorted(unknown))}; there are {', '.join(known)}")

    def judge(seen: Observations) -> list[CheckResult]:
        seen = _with_cdi(seen, cdi_dir, state_dir)
        return list(examine(seen, only, before_uninstall=before_uninstall))

    if set(only) == {"cdi"}:  # a node's files need no cluster
        results = judge(Observations(names))
    else:
        results = cluster.run(lambda client: _poll(client, names, judge, timeout if wait else 0.0))
    output.show(lambda: [_document(result) for result in results], lambda style: _lines(results, style))
    return exit_code(results)


def exit_code(results: Sequence[CheckResult]) -> ExitCode:
    """Judge the checks as a whole: a failed check decides, then a check that could not run."""
    if any(result.failed for result in results):
        return ExitCode.NO
    unseen = any(result.state is State.UNSEEN for result in results)
    return ExitCode.FAILED if unseen else ExitCode.DONE


async def _poll(
    client: Client,
    names: Names,
    judge: Callable[[Observations], list[CheckResult]],
    wait: float,
    clock: Clock = SYSTEM_CLOCK,
) -> list[CheckResult]:
    """Poll once; or, where there is time to wait, until all is well."""
    end = clock.now() + wait
    while True:
        late = clock.now() + _AGAIN > end
        try:
            results = judge(await Observer(client, names, clock).gather())
        except Unreachable:
            if late:
                raise
        else:
            if late or exit_code(results) is ExitCode.DONE:
                return results
        await clock.sleep(_AGAIN)


def _with_cdi(seen: Observations, cdi_dir: Path | None, state_dir: Path) -> Observations:
    """What was seen, and the node's files where the command runs on a node."""
    if cdi_dir is None:
        return seen
    try:
        files, devices = read_cdi(cdi_dir, state_dir)
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {of_system(error)}") from error
    return replace(seen, cdi=files, devices=devices)


def _lines(results: Sequence[CheckResult], style: Style) -> Iterator[str]:
    for result in results:
        if not result.findings:
            yield f"{style.good('ok     ')}  {result.check.title}"
        for finding in result.findings:
            paint, mark = _MARKS[finding.severity]
            # a title is what should be so: what is found stands under the check's name
            checked = result.check.title if finding.severity in _NOT_CHECKED else result.check.name
            yield f"{paint(style, mark)}  {checked}: {finding.text}"
            yield from (f"{'':9}{style.bold('$')} {one}" for one in finding.commands)
    severities = [finding.severity for result in results for finding in result.findings]
    problems, warnings = severities.count(Severity.PROBLEM), severities.count(Severity.WARNING)
    blind = sum(result.state is State.UNSEEN for result in results)
    counted = [
        number_of(problems, "problem") if problems else "",
        number_of(warnings, "warning") if warnings else "",
        f"{blind} of {number_of(len(results), 'check')} could not run" if blind else "",
    ]
    yield ""
    yield ", ".join(filter(None, counted)) + "." if any(counted) else "Nothing is wrong."


def _document(result: CheckResult) -> dict[str, object]:
    return {
        "check": result.check.name,
        "title": result.check.title,
        "state": result.state,
        "ok": result.state is State.SEEN and not result.failed,
        "findings": [
            {"severity": one.severity, "text": one.text, "commands": one.commands} for one in result.findings
        ],
    }
