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
    "≤": "<=",
}
_HANDLER: Final = "tessera-alike"
_ASCII: Final = "tessera-ascii"


def alike(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks; a handler for `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in missing), error.end


def _ascii(name: str) -> codecs.CodecInfo | None:
    """ASCII by a name that click does not know: streams of plain ASCII it writes in UTF-8, whatever the locale says."""
    if name.replace("_", "-") != _ASCII:
        return None
    codec = codecs.lookup("ascii")
    return codecs.CodecInfo(
        codec.encode, codec.decode, codec.streamreader, codec.streamwriter,
        codec.incrementalencoder, codec.incrementaldecoder, _ASCII,
    )  # fmt: skip


def write_what_the_locale_can(*streams: TextIO) -> None:
    """Let streams of another encoding than UTF-8 write what looks alike where they cannot write what is meant."""
    codecs.register_error(_HANDLER, alike)
    codecs.register(_ascii)
    for stream in streams:
        if stream.encoding and "utf" not in stream.encoding.lower():
            encoding = _ASCII if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
            stream.reconfigure(encoding=encoding, errors=_HANDLER)  # type: ignore[attr-defined] # the text streams of a process have it
