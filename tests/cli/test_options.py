"""Options that several commands have."""

import click
import pytest

from tessera.cli.common.options import Duration, Seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1d", 86400),
        ("2", 2),
        ("5m30", 330),
        ("0.5m", 30),
        ("0.0005h", 1.8),
    ],
)
def test_a_time(text, seconds):
    """A time is parts with units; what has none is seconds."""
    assert Duration().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, f'"{text}" is not a time such as 90s, 5m or 1h30m')
            for text in ("", "soon", "-5m", "0s", "5 m", "1.s", "0.1.2s")
        ),
        ("99999999h", '"99999999h" is more than 3650d'),
        ("9" * 400 + "s", f'"{"9" * 60}"… is more than 3650d'),
    ],
)
def test_no_time(text, message):
    """What is none, or longer than anybody waits, is refused in one sentence."""
    with pytest.raises(click.BadParameter) as refused:
        Duration().convert(text, None, None)
    assert refused.value.message == message


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("2.5", 2.5), ("315360000", 315360000)])
def test_seconds(text, seconds):
    """A number of seconds may be none."""
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e300", "soon", ""])
def test_no_seconds(text):
    """Nobody waits for ever, or for what is no number."""
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)
