"""The one tree of errors that Tessera raises on purpose.

An error is one sentence: where, what was wrong, what would be right. A caller that catches a `TesseraError` may show
`str(error)` to a person as it is; anything else that escapes is a bug.
"""

from collections.abc import Iterable


class TesseraError(Exception):
    """Something went wrong that a person can understand and repair."""


class InvalidInput(TesseraError, ValueError):
    """A document, an option or a value is not what it must be (exit code 2, HTTP 400)."""

    @property
    def errors(self) -> tuple[str, ...]:
        """All that is wrong: one sentence, or several that were found in one pass."""
        return tuple(str(self).split("\n"))


class InvalidInputs(InvalidInput):
    """Several errors in one document, found in one pass."""

    def __init__(self, errors: Iterable[str]) -> None:
        super().__init__("\n".join(errors))


def of_system(error: OSError) -> str:
    """What the operating system says, as the end of a sentence: `no such file or directory`."""
    return (error.strerror or str(error)).lower()
