"""What a terminal gets: colour only where a person sees it, columns, and only characters that it can show."""

import codecs
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import IO, Final, TextIO

import click

# what looks alike in ASCII, for a terminal or file whose encoding lacks the character
_ALIKE: Final = {
    **dict.fromkeys("┌┬┐└┴┘", "+"),
    "─": "-",
    "│": "|",
    "→": "->",
    "←": "<-",
    "×": "x",
    "…": "...",
    "✓": "+",
    "✗": "x",
    "≤": "<=",
}
_HANDLER: Final = "tessera-alike"
_ASCII: Final = "tessera-ascii"


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

    bold = partialmethod(_paint, "1")  # headings
    dim = partialmethod(_paint, "2")  # what matters less
    good = partialmethod(_paint, "32")  # what was added, chosen, admitted
    bad = partialmethod(_paint, "31")  # what was removed, refused, missing
    note = partialmethod(_paint, "33")  # what a person should notice


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def headed(rows: Sequence[tuple[str, ...]], style: Style, *, headers: bool = True) -> list[str]:
    """The same; the first row is the heading, and is left out where none is wanted."""
    heading, *lines = table(rows)
    return [style.bold(heading), *lines] if headers else lines


def block(label: str, texts: Iterable[str]) -> list[str]:
    """Lines beside a label, which stands before the first."""
    return [f"  {(label if at == 0 else ''):<12}{text}".rstrip() for at, text in enumerate(texts)]


def echo(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, each as soon as there is one; click leaves colours out where nobody sees them."""
    for line in lines:
        click.echo(line, err=err)


def write_what_the_locale_can(*streams: TextIO) -> None:
    """Let streams of another encoding than UTF-8 write what looks alike where they cannot write what is meant."""
    codecs.register_error(_HANDLER, _alike)
    codecs.register(_ascii)
    for stream in streams:
        if stream.encoding and "utf" not in stream.encoding.lower():
            encoding = _ASCII if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
            stream.reconfigure(encoding=encoding, errors=_HANDLER)  # type: ignore[attr-defined] # the text streams of a process have it


def _alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in missing), error.end


def _ascii(name: str) -> codecs.CodecInfo | None:
    """ASCII by a name that click does not know: click writes to a stream of plain ASCII in UTF-8, whatever the locale says."""
    if name.replace("_", "-") != _ASCII:
        return None
    codec = codecs.lookup("ascii")
    return codecs.CodecInfo(
        codec.encode, codec.decode, codec.streamreader, codec.streamwriter,
        codec.incrementalencoder, codec.incrementaldecoder, _ASCII,
    )  # fmt: skip
