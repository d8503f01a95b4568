"""Kubernetes quantities: exact, and printed as Kubernetes prints them."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.kubernetes.quantity import SUFFIXES, Format, InvalidQuantity, Quantity

ROWS = json.loads((Path(__file__).parents[2] / "data/quantities.json").read_text())["rows"]


def test_like_apimachinery():
    """Hundreds of texts are read, refused and printed exactly as apimachinery does."""
    for text, printed in ROWS:
        try:
            ours = str(Quantity.parse(text))
        except InvalidQuantity:
            ours = "error"
        assert (text, ours) == (text, printed)


@pytest.mark.parametrize("text", ["", "1Gb", "1 Gi", "١", "1e", "0x10", "NaN", "1\n", "9" * 200, "1Ki\u0000"])
def test_no_quantity(text):
    """What is no quantity is refused in one sentence, however long it is."""
    with pytest.raises(InvalidQuantity, match="is not a Kubernetes quantity") as caught:
        Quantity.parse(text)
    assert len(str(caught.value)) < 120
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        (Quantity.parse("1.5Gi") * 1, "1536Mi"),
        (Quantity.parse("0.29") * 100, "29"),
        (Quantity.parse("4000m") * 3 - Quantity.parse("1000m"), "11"),
        (Quantity.parse("2500m") * 3, "7500m"),
        (Quantity.parse("8Gi") * 2 - Quantity.parse("2Gi"), "14Gi"),
        (Quantity.parse("0") + Quantity.parse("1Gi"), "1Gi"),
        (Quantity.parse("1Gi") + Quantity.parse("1G"), "2073741824"),
        (Quantity.parse("1") * Fraction(1, 3), "333333334n"),
        (Quantity.parse(8), "8"),
        (Quantity.parse(0.5), "500m"),
    ],
)
def test_arithmetic(expression, printed):
    """Arithmetic is exact; a sum has the format of its first operand that is not zero."""
    assert str(expression) == printed


def test_equal_amounts():
    """Quantities are equal when the amounts are, however they are written."""
    assert Quantity.parse("8") == Quantity.parse("8000m")
    assert hash(Quantity.parse("1Ki")) == hash(Quantity.parse("1024"))
    assert Quantity.parse("1G") < Quantity.parse("1Gi")
    assert not Quantity.parse("0Ki")


def test_endless_exponent():
    """An exponent that would fill the memory is cut, not computed."""
    assert Quantity.parse("1e999999999").value == Fraction(10) ** 1000
    assert str(Quantity.parse("1e-999999999")) == "1e-9"


@given(st.fractions(min_value=-(2**60), max_value=2**60), st.sampled_from(list(Format)))
def test_printing_loses_nothing(value, form):
    """parse(str(x)) is x, for every amount down to a nano."""
    rounded = Fraction(round(value * 10**9), 10**9)
    quantity = Quantity(rounded, form)
    assert Quantity.parse(str(quantity)) == quantity
    assert str(Quantity.parse(str(quantity))) == str(quantity)


@given(st.decimals(min_value=0, max_value=7, places=6), st.sampled_from(sorted(SUFFIXES)))
def test_parsing_is_exact(number, suffix):
    """A text means its number times its suffix, rounded up at a nano only."""
    value = Fraction(number) * SUFFIXES[suffix]
    parsed = Quantity.parse(f"{number}{suffix}").value
    assert value <= parsed < value + Fraction(1, 10**9)
