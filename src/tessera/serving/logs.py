"""The log: one line for one event, whatever a pod's author wrote into a name.

A line is built where the event happens (about two microseconds). In the webhook it is written by a thread, many at a
time, so that a slow reader of the log never holds up an admission; if the reader stops altogether, lines are dropped and
counted. What modules log through the standard library's logging goes the same way (`forwarding`).
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import format_exception
from typing import Final, Literal, TypeVar

import msgspec

Format = Literal["json", "text"]
LEVELS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3}

_FLUSH_SECONDS: Final = 0.1
_MOST_PENDING: Final = 4 * 1024 * 1024  # bytes that wait for a reader before lines are dropped
_LONGEST_VALUE: Final = 1000  # characters; an annotation may have 256 KiB
_LONGEST_TRACEBACK: Final = 8000  # from its end
# What a terminal or a log viewer may act on, and JSON does not escape: delete and C1 controls, line and paragraph
# separators, marks that reverse the direction of text, byte order mark.
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_PLAIN: Final = re.compile(r"[\w./:@%+,<>=~()-]+", re.ASCII)

_encode: Final = msgspec.json.Encoder().encode

Value = str | int | float | bool | None
T = TypeVar("T", bound=Value)


class Record:
    """Fields that the lines about many pods have in common, encoded once. Those that are None are left out."""

    __slots__ = ("fields", "json")

    def __init__(self, **fields: Value) -> None:
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.json = _pairs(self.fields)


class _About(msgspec.Struct, gc=False):
    """How a line about a pod begins."""

    time: str
    level: str
    message: str
    uid: str
    namespace: str
    pod: str


class Log:
    """Where events are logged. Before `attach` and after `close` lines are written at once."""

    def __init__(self, form: Format = "json", least: str = "info", fd: int = 2) -> None:
        self.dropped = 0
        self.least = least
        self._least = LEVELS[least]
        self._form = form
        self._fd = fd
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self._millisecond = 0
        self._now = ""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on lines are collected and written by a thread."""
        self._loop = loop

    def close(self) -> None:
        """Write what is pending, now."""
        self._loop = None
        self._write(self._take())

    def admission(
        self, level: str, uid: str, namespace: str, pod: str, microseconds: int, record: Record
    ) -> None:
        """What was decided about one pod: in JSON, put together from what is encoded already."""
        if LEVELS[level] < self._least:
            return
        if self._form == "text":
            about = {"uid": uid, "namespace": namespace, "pod": pod}
            fields = {**about, **record.fields, "microseconds": microseconds}
            self._add(_text_line(self._time(), level, "admission", fields))
            return
        begin = _pairs(_About(self._time(), level, "admission", uid, namespace, pod))
        self._add(b'{%b,%b,"microseconds":%d}\n' % (begin, record.json, microseconds))

    def info(self, message: str, **fields: Value) -> None:
        """Something happened as it should."""
        self.event("info", message, fields)

    def warning(self, message: str, **fields: Value) -> None:
        """Something happened that a person may want to look at."""
        self.event("warning", message, fields)

    def error(self, message: str, **fields: Value) -> None:
        """Something went wrong that a person has to repair."""
        self.event("error", message, fields)

    def unexpected(self, message: str, error: BaseException) -> None:
        """Something happened that should be impossible: here, and only here, with a traceback."""
        self.event("error", message, _fields_of(error))

    def event(self, level: str, message: str, fields: dict[str, Value]) -> None:
        """One line. Fields that are None are left out."""
        if LEVELS[level] < self._least:
            return
        line = _json_line if self._form == "json" else _text_line
        given = {name: value for name, value in fields.items() if value is not None}
        self._add(line(self._time(), level, message, given))

    def _add(self, line: bytes) -> None:
        if self._loop is None:
            self._write(line)
            return
        if self._size > _MOST_PENDING:
            self.dropped += 1
            return
        self._pending.append(line)
        self._size += len(line)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(_FLUSH_SECONDS, self._flush)

    def _time(self) -> str:
        millisecond = time.time_ns() // 1_000_000
        if millisecond != self._millisecond:  # a busy webhook logs many pods in one
            self._millisecond = millisecond
            second, rest = divmod(millisecond, 1000)
            self._now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{rest:03d}Z"
        return self._now

    def _take(self) -> bytes:
        lines = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        return lines

    def _flush(self) -> None:
        if self._loop is None:
            return
        lines = self._take()
        try:
            self._loop.run_in_executor(None, self._write, lines).add_done_callback(self._flushed)
        except RuntimeError:  # the loop is ending, and its threads are gone
            self._loop = None
            self._write(lines)

    def _flushed(self, _: object) -> None:
        self._scheduled = False
        if self._pending and self._loop is not None:
            self._scheduled = True
            self._loop.call_later(_FLUSH_SECONDS, self._flush)

    def _write(self, lines: bytes) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:  # the log has no reader any more: that is no reason to stop admitting pods
            self.dropped += bytes(rest).count(b"\n")


class Forward(logging.Handler):
    """Takes what is logged through the standard library's logging."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else record.levelname.lower()
        fields: dict[str, Value] = {"logger": record.name}
        if record.exc_info and record.exc_info[1]:
            fields |= _fields_of(record.exc_info[1])
        self._log.event(level if level in LEVELS else "info", record.getMessage(), fields)


@contextmanager
def forwarding(log: Log) -> Iterator[None]:
    """Take what Tessera's modules log through the standard library's logging, and warnings of libraries."""
    root, own, forward = logging.getLogger(), logging.getLogger("tessera"), Forward(log)
    level = own.level
    root.addHandler(forward)
    own.setLevel(log.least.upper())
    try:
        yield
    finally:
        root.removeHandler(forward)
        own.setLevel(level)


def _fields_of(error: BaseException) -> dict[str, Value]:
    return {"error": repr(error), "traceback": "".join(format_exception(error))[-_LONGEST_TRACEBACK:]}


def choose(form: str, fd: int = 2) -> Format:
    """`auto` is text for a person at a terminal and JSON for everything else."""
    return "text" if form == "text" or (form == "auto" and os.isatty(fd)) else "json"


def _json_line(when: str, level: str, message: str, fields: Mapping[str, Value]) -> bytes:
    return b"{%b}\n" % _pairs({"time": when, "level": level, "message": message, **fields})


def _pairs(fields: Mapping[str, Value] | _About) -> bytes:
    """The inside of a JSON object: at once if nothing in it needs care, else value by value."""
    try:
        line = _encode(fields)
        if len(line) <= _LONGEST_VALUE and line.isascii() and b"\x7f" not in line:
            return line[1:-1]
    except UnicodeEncodeError:
        pass
    if isinstance(fields, _About):
        fields = msgspec.structs.asdict(fields)
    return b",".join(
        b'"%b":%b' % (name.encode(), _json(_short(value) if name != "traceback" else value))
        for name, value in fields.items()
    )


def _json(value: Value) -> bytes:
    """A value as JSON that is safe to look at."""
    try:
        line = _encode(value)
    except UnicodeEncodeError:  # half a surrogate pair: file names may have that
        line = _encode(str(value).encode(errors="replace").decode())
    if line.isascii() and b"\x7f" not in line:
        return line
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line.decode()).encode()


def _text_line(when: str, level: str, message: str, fields: Mapping[str, Value]) -> bytes:
    words = [when[11:-1], f"{level.upper():7}", _quoted(message, spaces=True)]
    words += [f"{name}={_quoted(str(value))}" for name, value in fields.items()]
    return (" ".join(words) + "\n").encode(errors="backslashreplace")


def _short(value: T) -> T | str:
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return value[:_LONGEST_VALUE] + "…"
    return value


def _quoted(value: str, spaces: bool = False) -> str:
    """As it is when it is plain, else with everything escaped that could move the cursor or break the line."""
    if _PLAIN.fullmatch(value.replace(" ", "") if spaces else value):
        return _short(value)
    text = _json(_short(value)).decode()
    return text[1:-1] if spaces else text
