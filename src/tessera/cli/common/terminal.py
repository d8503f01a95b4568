"""What a terminal gets: colour only where a person sees it, columns, and complaints with a file's name in front."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

from tessera.core.errors import InvalidInputs
from tessera.kube.object_files import called, read_file

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Style:
    """Colours, or none of them."""

    enabled: bool

    @classmethod
    def of(cls, stream: IO[str]) -> "Style":
        """Colour only on a terminal that can, and where `NO_COLOR` does not forbid it."""
        forbidden = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(stream.isatty() and not forbidden)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled else text

    def bold(self, text: str) -> str:
        """For headings."""
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        """For what matters less."""
        return self._paint("2", text)

    def good(self, text: str) -> str:
        """For what was added, chosen, admitted."""
        return self._paint("32", text)

    def bad(self, text: str) -> str:
        """For what was removed, refused, missing."""
        return self._paint("31", text)

    def note(self, text: str) -> str:
        """For what a person should notice."""
        return self._paint("33", text)


def read_parsed(path: str, parse: Callable[[bytes, str], T]) -> T:
    """What a file says, read by `parse` under its name; all complaints at once, each with that name in front."""
    try:
        return parse(read_file(path), called(path))
    except InvalidInputs as error:
        raise InvalidInputs(f"{called(path)}: {one}" for one in error.errors) from error


def table(rows: Sequence[tuple[str, ...]], indent: str = "") -> list[str]:
    """Rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
