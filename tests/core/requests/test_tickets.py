"""Tickets: made by who has the key, right for one namespace, one text and one hour."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.requests.tickets import NO_TICKETS, TicketKey, TicketKeys, TicketMaker, hour_of, kept

KEYS = TicketKeys(TicketKey(b"c" * 32), TicketKey(b"n" * 32), TicketKey(b"p" * 32))
TEXT = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
HOUR = 500_000
NOW = HOUR * 3600.0 + 1800
RIGHT = TicketMaker(KEYS.current, HOUR).ticket("a", TEXT)


def test_the_words_of_a_ticket():
    """Key id, hour, HMAC: what webhook and controller of two versions agree on. A view without a key makes none."""
    assert RIGHT == (
        "a2372b68bb529c9d.500000.fb2b3722687a4d64b3e92600eb06a3b0ba33065ea84da7c4fd90d637db57bf44"
    )
    assert kept(RIGHT) == RIGHT
    assert NO_TICKETS.ticket("a", TEXT) == ""
    assert hour_of(NOW) == HOUR


@pytest.mark.parametrize(
    ("ticket", "namespace", "text", "created", "wrong"),
    [
        (RIGHT, "a", TEXT, NOW, None),
        (RIGHT, "a", TEXT, NOW + 3600, None),
        (RIGHT, "a", TEXT, NOW - 3600, None),
        (RIGHT, "a", TEXT, NOW + 7200, "another hour"),
        (RIGHT, "a", TEXT, NOW - 7200, "another hour"),
        (RIGHT, "a", TEXT, 0.0, "another hour"),
        (RIGHT, "b", TEXT, NOW, "not for its namespace"),
        (RIGHT, "a", "1*2g.20gb=2g.20gb/tessera-any", NOW, "not for its namespace"),
        (RIGHT.replace(".500000.", ".500001."), "a", TEXT, NOW, "not for its namespace"),
        (RIGHT.replace(".500000.", ".0500000."), "a", TEXT, NOW, "not for its namespace"),
        (RIGHT.upper(), "a", TEXT, NOW, "not one of the webhook"),
        (RIGHT + " ", "a", TEXT, NOW, "not one of the webhook"),
        (RIGHT + "\n", "a", TEXT, NOW, "not one of the webhook"),
        (RIGHT.replace(".500000.", ".٥00000."), "a", TEXT, NOW, "not one of the webhook"),
        (kept(RIGHT * 1000), "a", TEXT, NOW, "not one of the webhook"),
        ("", "a", TEXT, NOW, "no ticket"),
        (TicketMaker(KEYS.previous, HOUR).ticket("a", TEXT), "a", TEXT, NOW, None),
        (TicketMaker(KEYS.following, HOUR).ticket("a", TEXT), "a", TEXT, NOW, None),
        (TicketMaker(TicketKey(b"x" * 32), HOUR).ticket("a", TEXT), "a", TEXT, NOW, "no longer accepted"),
    ],
)
def test_what_is_right(ticket, namespace, text, created, wrong):
    """The very pod that the webhook decided about, within an hour; everything else is wrong for a reason that is reported."""
    why = KEYS.why_wrong(ticket, namespace, text, created)
    assert why is None if wrong is None else wrong in str(why)


TEXTS = st.text(max_size=20)
NAMES = st.text("ab-1", min_size=1, max_size=4)
SECRETS = st.binary(min_size=32, max_size=32)


@given(SECRETS, SECRETS, NAMES, NAMES, TEXTS, TEXTS, st.integers(0, 999), st.integers(0, 999))
def test_nothing_else_verifies(key, other_key, namespace, other, text, other_text, hour, created):
    """A ticket is right for its own key, namespace and text, and a pod of its hour or the next to it; for nothing else, ever."""
    ticket = TicketMaker(TicketKey(key), hour).ticket(namespace, text)

    def right(secret, *what):
        keys = TicketKeys(TicketKey(secret), TicketKey(b"n" * 32))
        return keys.why_wrong(ticket, *what) is None

    assert right(key, namespace, text, created * 3600.0) == (abs(created - hour) <= 1)
    at = hour * 3600.0
    assert right(key, other, other_text, at) == ((other, other_text) == (namespace, text))
    assert right(other_key, namespace, text, at) == (other_key == key)


def test_keys_are_not_shown():
    """A key that gets into a log line by mistake is not readable there."""
    assert "ccc" not in repr(KEYS)
    assert "ccc" not in repr(TicketMaker(KEYS.current, 1))
