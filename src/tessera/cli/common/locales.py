"""Streams that cannot write every character, or that are closed. The root command needs this at each start, so it imports little."""

import codecs
import os
import sys
from typing import Final, TextIO

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


def open_what_is_closed() -> None:
    """Give the null device to a process whose caller has closed a stream (`>&-`), as programs in Go, such as kubectl, have it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 # it stays open


def write_what_the_locale_can(*streams: TextIO) -> None:
    """Let streams that do not write UTF-8 replace the characters that they lack by ASCII that looks alike."""
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
    return codecs.CodecInfo(*codec, codec.incrementalencoder, codec.incrementaldecoder, _ASCII)
