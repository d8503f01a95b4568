"""One event, one line."""

import json
import logging

import pytest

from tessera.node.logs import Format, _OneLine


def line(form: Format, message: str) -> str:
    return _OneLine(form).format(logging.LogRecord("tessera.x", logging.WARNING, "", 0, message, (), None))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("plain – text", "plain – text"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("red \x1b[31m \u2028 \u202e", "red \\x1b[31m \\u2028 \\u202e"),
    ],
)
def test_fault_10_nothing_raw_in_a_line(message: str, shown: str) -> None:
    """Whatever stands in an annotation, the log has one line and nothing that a terminal acts on."""
    assert line("text", message).endswith(f"Z WARNING {shown}")
    assert json.loads(line("json", message))["message"] == message
    assert line("json", message).isprintable()


def test_long_messages_are_cut() -> None:
    """An annotation of 256 KiB does not fill the log."""
    assert len(line("text", "x" * 300_000)) < 2100
