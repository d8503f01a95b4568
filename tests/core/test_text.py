"""Texts from outside in messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.text import escaped, first_of, number_of, printable, quoted, shortened


@pytest.mark.parametrize(
    ("text", "bare", "in_quotes"),
    [
        ("1g.10gb", "1g.10gb", '"1g.10gb"'),
        ("", "", '""'),
        ('a"b', 'a"b', r'"a\"b"'),
        ("a\n\x1b[31m", r"a\n\x1b[31m", r'"a\n\x1b[31m"'),
        ("卡", r"\u5361", r'"\u5361"'),
        ("x" * 61, "x" * 60 + "…", '"' + "x" * 60 + '"…'),
    ],
)
def test_a_text_is_shown_short_and_without_control_characters(text, bare, in_quotes):
    """A message stays one line of printable characters, whatever the value was."""
    assert (escaped(text), quoted(text)) == (bare, in_quotes)


@given(st.text(), st.integers(1, 100))
def test_whatever_the_text_its_message_is_printable(text, most):
    """No text breaks a line or moves a cursor, and the length is bounded."""
    for shown in (escaped(text, most), quoted(text, most)):
        assert shown.isprintable()
        assert len(shown) <= 10 * most + 3  # \U0001f600 has ten characters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1g.18gb ×7 → 卡", "1g.18gb ×7 → 卡"),
        ("NVML:\n  no\tmemory\r\n", "NVML: no memory"),
        ("a\x1b[2J\x07", r"a\x1b[2J\x07"),
        ("a\x9b31m\x7f", r"a\x9b31m\x7f"),
        ("a\u202eb\u200b", r"a\u202eb\u200b"),
    ],
)
def test_a_text_that_a_terminal_may_have(text, shown):
    """Letters of every language stay; lines become one; what moves a cursor or turns the writing is written out."""
    assert printable(text) == shown


@given(st.text())
def test_no_text_is_obeyed_by_a_terminal(text):
    """Whatever was in it, and a second time changes nothing."""
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c"], "a, b and 1 more"), (list("abcdef"), "a, b and 4 more")],
)  # fmt: skip
def test_the_first_of_many_names(names, shown):
    """As many as a sentence takes, and how many more there are."""
    assert first_of(names, 2) == shown


def test_numbers_of_things():
    """One of something is not several."""
    assert [number_of(count, "pod") for count in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


@pytest.mark.parametrize(
    ("most", "shown"),
    [
        (80, "the pod waits (its fallback-policy is `never again`)"),
        (51, "the pod waits (its fallback-policy is …"),
        (48, "the pod waits (its fallback-policy is …"),
        (40, "the pod waits (its fallback-policy is …"),
        (38, "the pod waits (its fallback-policy …"),
        (10, "the pod …"),
        (3, "th…"),
    ],
)
def test_a_text_is_cut_between_words(most, shown):
    """Neither a word nor a code span is cut: half of a value reads like another value."""
    assert shortened("the pod waits (its fallback-policy is `never again`)", most) == shown


@given(st.text(alphabet="ab `", max_size=40), st.integers(2, 40))
def test_a_cut_text_keeps_its_bound(text, most):
    """However the words lie, the text is no longer than it may be, and whole where it fits."""
    assert len(shortened(text, most)) <= most
    assert len(text) > most or shortened(text, most) == text
