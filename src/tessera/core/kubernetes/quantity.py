"""Kubernetes quantities, exact.

A `Quantity` is a rational number with the format it was written in: `1536Mi`, `7500m`, `8`, `1e3`. Parsing and
printing follow `k8s.io/apimachinery/pkg/api/resource`: values finer than a nano are rounded away from zero,
binary values beyond 2^63-1 are capped, and `str()` gives the canonical text that the API server would print.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Final, Self

from tessera.core.errors import InvalidInput
from tessera.core.text import quoted

Number = Fraction | int


class InvalidQuantity(InvalidInput):
    """A text that is no Kubernetes quantity."""


class Format(Enum):
    """How a quantity is written; a sum keeps the format of its first operand, as in Kubernetes."""

    DECIMAL_SI = "decimal"
    BINARY_SI = "binary"
    DECIMAL_EXPONENT = "exponent"


# Every suffix that Kubernetes knows, and no other. The empty one is 10^0.
DECIMAL_SUFFIXES: Final[Mapping[str, int]] = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
BINARY_SUFFIXES: Final[Mapping[str, int]] = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
SUFFIXES: Final[Mapping[str, Fraction]] = {
    **{suffix: Fraction(10) ** power for suffix, power in DECIMAL_SUFFIXES.items()},
    **{suffix: Fraction(2) ** power for suffix, power in BINARY_SUFFIXES.items()},
}

_NANO: Final = 10**9  # apimachinery keeps nothing finer than a nano
_MAX: Final = Fraction(2**63 - 1)  # and, of binary quantities, nothing beyond an int64
_MAX_TEXT: Final = 128  # longer texts are meant as no quantity, and exact arithmetic on them is not free
_MAX_EXPONENT: Final = 1000  # no amount of anything is larger; 1e999999999 must not be computed
_TEXT: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>\d*(?:\.\d*)?)(?:[eE](?P<exponent>[+-]?\d+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]?))",
    re.ASCII,
)
_DECIMAL_BY_POWER: Final = {power: suffix for suffix, power in DECIMAL_SUFFIXES.items()}
_BINARY_BY_POWER: Final = {power: suffix for suffix, power in BINARY_SUFFIXES.items()}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Quantity:
    """An exact amount; equal when the amounts are, however they are written."""

    number: Number  # an integer where it is one, since arithmetic on those is ten times cheaper
    format: Format = Format.DECIMAL_SI

    def __init__(self, number: Number, format: Format = Format.DECIMAL_SI) -> None:  # noqa: A002 # as the field
        object.__setattr__(self, "number", number.numerator if number.denominator == 1 else number)
        object.__setattr__(self, "format", format)

    @property
    def value(self) -> Fraction:
        return Fraction(self.number)

    @classmethod
    def parse(cls, text: str | float) -> "Quantity":
        """Read a quantity as Kubernetes does; numbers that YAML already read are welcome."""
        return _parse(text if isinstance(text, str) else repr(text))

    def __str__(self) -> str:
        number = self.number
        if isinstance(number, int) and number % 1000 and self.format is Format.DECIMAL_SI:
            return str(number)  # nearly all that is ever written
        return _canonical(self.value, self.format)

    def __eq__(self, other: object) -> bool:
        return self.number == other.number if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.number < other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __bool__(self) -> bool:
        return self.number != 0

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.number + other.number, self.format if self.number else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.number - other.number, self.format if self.number else other.format)

    def __mul__(self, factor: Fraction | int) -> "Quantity":
        return Quantity(self.number * factor, self.format)

    def with_value(self, value: Fraction | int) -> Self:
        return type(self)(value, self.format)

    @property
    def is_whole(self) -> bool:
        """Whether the amount is an integer, as extended resources must be."""
        return isinstance(self.number, int)


ZERO: Final = Quantity(0)


def format_of_suffix(suffix: str) -> Format:
    return Format.BINARY_SI if suffix in BINARY_SUFFIXES else Format.DECIMAL_SI


@lru_cache(maxsize=4096)  # pods say the same few amounts over and over
def _parse(text: str) -> Quantity:
    if len(text) > _MAX_TEXT:
        raise InvalidQuantity(f"{text[:16]!r}… ({len(text)} characters) is not a Kubernetes quantity")
    match = _TEXT.fullmatch(text)
    if match is None or not text:
        raise InvalidQuantity(f"{quoted(text)} is not a Kubernetes quantity such as 2, 500m or 8Gi")
    whole, _, fraction = match["digits"].partition(".")  # Go reads ".", "-" and "m" as zero; so do we
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction))
    if match["exponent"] is not None:
        exponent = int(match["exponent"])
        value *= Fraction(10) ** max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
        form = Format.DECIMAL_EXPONENT
    else:
        value *= SUFFIXES[match["suffix"]]
        form = format_of_suffix(match["suffix"])
    nanos = value * _NANO
    if nanos.denominator != 1:
        value = Fraction(-(-nanos.numerator // nanos.denominator), _NANO)
    if form is Format.BINARY_SI:
        value = min(value, _MAX)
    return Quantity(-value if match["sign"] == "-" else value, form)


def _canonical(value: Fraction, form: Format) -> str:
    if not value.numerator:
        return "0"
    if form is Format.BINARY_SI and (abs(value) < 1024 or value.denominator != 1):
        form = Format.DECIMAL_SI  # as apimachinery does: binary suffixes are for whole numbers from 1024 on
    if form is Format.BINARY_SI:
        number, power = value.numerator, 0
        while number % 1024 == 0 and power < 60:
            number, power = number // 1024, power + 10
        return f"{number}{_BINARY_BY_POWER.get(power, '')}"
    nanos = value * _NANO
    number = -(-nanos.numerator // nanos.denominator) if value > 0 else nanos.numerator // nanos.denominator
    power = -9
    while number % 1000 == 0 and (power < 18 or form is Format.DECIMAL_EXPONENT):
        number, power = number // 1000, power + 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{number}e{power}" if power else str(number)
    return f"{number}{_DECIMAL_BY_POWER[power]}"
