"""The log's lines: whole, one per event, whatever they are about."""

import asyncio
import json
import logging
import os
import threading
from unittest.mock import ANY

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tessera.serving.logs import Format, Log, Record, choose, forwarding

HOSTILE = [
    "../../etc/passwd",
    'a\nb\r\n{"level":"error"}',
    "\x1b[2J\x1b]0;owned\x07",
    "\x85\x9b31m",
    "\u2028\u2029",
    "abc\u202edcba",
    "\x7f\ufeff",
    "\ud800",
    "x" * 256 * 1024,
]


class Pipe:
    """A log's other end."""

    def __init__(self, form: Format = "json", least: str = "info") -> None:
        self.read_end, self.write_end = os.pipe()
        self.log = Log(form, least, self.write_end)

    def lines(self) -> list[str]:
        self.log.close()
        os.close(self.write_end)
        with os.fdopen(self.read_end, "rb") as reader:
            return reader.read().decode().split("\n")[:-1]


def admission(log: Log, pod: str, reason: str | None = None) -> None:
    log.admission("info", "u-1", "team", pod, 42, Record(decision="patched", reason=reason))


def test_json():
    """An admission is one JSON object with the fields that people search for."""
    pipe = Pipe()
    admission(pipe.log, "train-0")
    (line,) = pipe.lines()
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "info",
        "message": "admission",
        "uid": "u-1",
        "namespace": "team",
        "pod": "train-0",
        "decision": "patched",
        "microseconds": 42,
    }


def test_text():
    """On a terminal the same is a line for people."""
    pipe = Pipe("text")
    admission(pipe.log, "train-0", "no node offers 2g.20gb")
    (line,) = pipe.lines()
    assert line[13:] == (
        "INFO    admission uid=u-1 namespace=team pod=train-0 decision=patched"
        ' reason="no node offers 2g.20gb" microseconds=42'
    )


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_fault_10_hostile_values(form, value):
    """A value from a pod is shortened and escaped: it breaks no line and moves no cursor."""
    pipe = Pipe(form)
    admission(pipe.log, value, value)
    (line,) = pipe.lines()
    assert line.isprintable()
    assert len(line) < 2500
    if form == "json":
        shown = json.loads(line)["pod"]
        assert shown.rstrip("…") == value[:1000].replace("\ud800", "?")


@given(st.text(), st.sampled_from(["json", "text"]))
def test_any_value_is_one_line(value, form):
    """Whatever a value is, there is one line and JSON gives it back."""
    pipe = Pipe(form)
    pipe.log.warning("said", said=value)
    (line,) = pipe.lines()
    assert len(line.splitlines()) == 1
    if form == "json":
        assert json.loads(line)["said"] == value


def test_trouble():
    """What should be impossible is reported with its traceback, in one line."""
    pipe = Pipe()
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    pipe.log.unexpected("decision failed", caught.value)
    (line,) = pipe.lines()
    record = json.loads(line)
    assert record["error"] == "ZeroDivisionError('division by zero')"
    assert "test_logs.py" in record["traceback"]


def test_forward():
    """What libraries say through the standard library's logging is reported, too."""
    pipe = Pipe()
    logger = logging.getLogger("tessera.test")
    with forwarding(pipe.log):
        logger.warning("%d nodes\nlost", 3)
        logger.debug("not this")
        logging.getLogger("library").warning("careful")
        logging.getLogger("library").info("nor this")
    logger.warning("nor after it")
    assert [json.loads(line) for line in pipe.lines()] == [
        {"time": ANY, "level": "warning", "message": "3 nodes\nlost", "logger": "tessera.test"},
        {"time": ANY, "level": "warning", "message": "careful", "logger": "library"},
    ]


def test_debug_lines_are_forwarded_when_asked_for():
    """The level that the log was given is the level of Tessera's own modules."""
    pipe = Pipe("text", least="debug")
    with forwarding(pipe.log):
        logging.getLogger("tessera.test").debug("details")
    (line,) = pipe.lines()
    assert line[13:] == "DEBUG   details logger=tessera.test"


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_is_forwarded_with_its_traceback(form):
    """A bug is one line, and the line says where it is."""
    pipe = Pipe(form)
    with forwarding(pipe.log):
        try:
            int("nought")
        except ValueError:
            logging.getLogger("tessera.test").exception("cannot answer")
    (line,) = pipe.lines()
    assert "ValueError(" in line
    assert "test_an_exception_is_forwarded" in line


def test_least_level():
    """Lines below the level that was asked for are not written."""
    pipe = Pipe(least="warning")
    pipe.log.info("quiet")
    pipe.log.error("loud")
    assert [json.loads(line)["message"] for line in pipe.lines()] == ["loud"]


def test_order_and_completeness():
    """Lines written through the thread come out all, and in their order."""
    pipe = Pipe()

    async def talk() -> None:
        pipe.log.attach(asyncio.get_running_loop())
        for n in range(300):
            pipe.log.info("n", n=n)
            if n % 100 == 0:
                await asyncio.sleep(0.11)

    asyncio.run(talk())
    assert [json.loads(line)["n"] for line in pipe.lines()] == list(range(300))


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_last_words_of_a_loop_that_ends(runner, caplog):
    """Lines that come after the loop's threads have gone are written all the same, in their order."""
    pipe = Pipe()

    async def talk() -> None:
        loop = asyncio.get_running_loop()
        pipe.log.attach(loop)
        pipe.log.info("n", n=0)
        await loop.run_in_executor(None, int)
        await loop.shutdown_default_executor()
        await asyncio.sleep(0.15)  # past the moment at which lines are written
        for n in (1, 2):
            pipe.log.info("n", n=n)

    runner(talk())
    assert [json.loads(line)["n"] for line in pipe.lines()] == [0, 1, 2]
    assert not caplog.records


def test_reader_that_stopped():
    """Without a reader, the loop goes on and lines are dropped and counted."""
    pipe = Pipe()

    async def talk() -> None:
        pipe.log.attach(asyncio.get_running_loop())
        for n in range(12_000):
            pipe.log.info("x" * 1000, n=n)
            if n % 1000 == 0:
                await asyncio.sleep(0.01)
        assert pipe.log.dropped > 1000
        threading.Thread(target=drain, daemon=True).start()
        while pipe.log._pending:
            await asyncio.sleep(0.01)

    def drain() -> None:
        while os.read(pipe.read_end, 1 << 20):
            pass

    asyncio.run(talk())
    pipe.log.close()
    os.close(pipe.write_end)


def test_choose():
    """Without a terminal `auto` is JSON."""
    reader, writer = os.pipe()
    assert [choose(form, writer) for form in ("auto", "json", "text")] == ["json", "json", "text"]
    os.close(reader)
    os.close(writer)
