"""What a check finds: one sentence, how bad it is, and what to type."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from tessera.core.text import first_of, number_of, one_line
from tessera.doctor.observations import Observations

short = one_line
MOST_ALIKE = 3  # findings of one kind that are listed one by one


class Severity(StrEnum):
    PROBLEM = "problem"  # something does not work
    WARNING = "warning"  # something works less well than it should, or will stop working
    NOTE = "note"  # worth knowing
    UNSEEN = "unseen"  # could not be read
    NOT_APPLICABLE = "n/a"  # there is nothing to check


class State(StrEnum):
    SEEN = "seen"
    UNSEEN = "not seen"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    text: str
    commands: tuple[str, ...] = ()  # what to type
    kind: str = ""  # findings of one check and one kind are alike, and differ in what they are about
    about: str = ""  # node gpu-1

    def of(self, kind: str, about: str) -> "Finding":
        """The same, as one of many that are alike."""
        return replace(self, kind=kind, about=about)


def _finding(severity: Severity, text: str, *commands: str) -> Finding:
    return Finding(severity, text, commands)


problem = partial(_finding, Severity.PROBLEM)
warning = partial(_finding, Severity.WARNING)
note = partial(_finding, Severity.NOTE)
unseen = partial(_finding, Severity.UNSEEN)
not_applicable = partial(_finding, Severity.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Check:
    """A question, what must have been seen to answer it, and who answers it."""

    name: str
    title: str
    needs: tuple[str, ...]
    find: Callable[[Observations], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check and what it found; nothing is good news."""

    check: Check
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        return self._has(Severity.PROBLEM)

    @property
    def state(self) -> State:
        """Whether the check could run, and had something to check."""
        if self._has(Severity.UNSEEN):
            return State.UNSEEN
        return State.NOT_APPLICABLE if self._has(Severity.NOT_APPLICABLE) else State.SEEN

    def _has(self, severity: Severity) -> bool:
        return any(finding.severity is severity for finding in self.findings)


def grouped(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, with those that are alike beyond a few counted: the first few as they are, the others in one."""
    alike: dict[tuple[Severity, str], list[Finding]] = {}
    for one in findings:
        if not one.kind:
            yield one
            continue
        some = alike.setdefault((one.severity, one.kind), [])
        some.append(one)
        if len(some) <= MOST_ALIKE:
            yield one
    for (severity, kind), some in alike.items():
        if more := some[MOST_ALIKE:]:
            noun = more[0].about.partition(" ")[0]
            names = first_of([one.about.partition(" ")[2] for one in more], MOST_ALIKE)
            yield Finding(severity, f"{kind}: the same of {number_of(len(more), f'more {noun}')} ({names})")


def shown(labels: Mapping[str, str]) -> str:
    """Labels as kubectl takes them."""
    return ",".join(f"{name}={value}" for name, value in labels.items()) or "nothing"
