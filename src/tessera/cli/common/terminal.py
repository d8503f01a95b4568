"""What a terminal gets: colour only where a person sees it, errors in one sentence, files read politely."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.protocol import yaml

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


def read_file(path: str) -> bytes:
    """A file's bytes; `-` is standard input."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}") from error


def called(path: str) -> str:
    """A path as messages name it."""
    return "standard input" if path == "-" else path


def read_parsed(path: str, parse: Callable[[bytes, str], T]) -> T:
    """What a file says, read by `parse` under its name; all complaints at once, each with that name in front."""
    try:
        return parse(read_file(path), called(path))
    except InvalidInputs as error:
        raise InvalidInputs(f"{called(path)}: {complaint}" for complaint in error.complaints) from error


def read_documents(path: str) -> list[Any]:
    """All YAML or JSON documents of a file."""
    return yaml.load_all(read_file(path), called(path))


def table(rows: list[tuple[str, ...]], indent: str = "") -> list[str]:
    """Rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
