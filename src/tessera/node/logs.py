"""The plugin's log: one event, one line, whatever stands in an annotation or a device's name."""

import json
import logging
import sys
import time
from typing import Final, Literal

Format = Literal["text", "json"]
_LONGEST: Final = 2000  # characters of a line: an annotation may have 256 KiB


class _OneLine(logging.Formatter):
    """`2026-01-31T12:00:00Z INFO message`, without anything that a terminal would act on."""

    def __init__(self, form: Format) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = record.getMessage()
        if record.exc_info:  # a bug: the traceback is what is wanted then
            message = f"{message}: {self.formatException(record.exc_info)}"
        if len(message) > _LONGEST and not record.exc_info:
            message = f"{message[:_LONGEST]}…"
        if self._form == "json":
            level = record.levelname.lower()
            return json.dumps({"time": moment, "level": level, "logger": record.name, "message": message})
        return f"{moment} {record.levelname:7} {_printable(message)}"


def set_up(form: Format = "text", level: str = "info") -> None:
    """Send the log of everything in Tessera to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("tessera").setLevel(level.upper())


def _printable(text: str) -> str:
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )
