"""Texts on a terminal or in a file whose encoding lacks some of our characters: ASCII that looks alike, in place of a traceback."""

import codecs
from typing import Final, TextIO

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
}
_HANDLER: Final = "tessera-alike"


def alike(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks; a handler for `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in missing), error.end


def write_what_the_locale_can(*streams: TextIO) -> None:
    """Let streams of another encoding than UTF-8 write what looks alike where they cannot write what is meant."""
    codecs.register_error(_HANDLER, alike)
    for stream in streams:
        if stream.encoding and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors=_HANDLER)  # type: ignore[attr-defined] # the text streams of a process have it
