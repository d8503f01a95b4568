"""What a check finds: one sentence, how bad it is, and what to type."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tessera.doctor.evidence import Evidence


class Severity(StrEnum):
    """How bad it is."""

    PROBLEM = "problem"  # something does not work
    WARNING = "warning"  # something works less well than it should, or will stop working
    NOTE = "note"  # worth knowing
    UNSEEN = "unseen"  # could not be looked at


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to tell."""

    severity: Severity
    text: str
    commands: tuple[str, ...] = ()  # what to type


def problem(text: str, *commands: str) -> Finding:
    """Something that does not work."""
    return Finding(Severity.PROBLEM, text, commands)


def warning(text: str, *commands: str) -> Finding:
    """Something that should be better."""
    return Finding(Severity.WARNING, text, commands)


def note(text: str, *commands: str) -> Finding:
    """Something worth knowing."""
    return Finding(Severity.NOTE, text, commands)


@dataclass(frozen=True, slots=True)
class Check:
    """A question, what must have been seen to answer it, and who answers it."""

    name: str
    title: str
    needs: tuple[str, ...]
    find: Callable[[Evidence], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A check and what it found; nothing is good news."""

    check: Check
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Whether something does not work."""
        return any(finding.severity is Severity.PROBLEM for finding in self.findings)
