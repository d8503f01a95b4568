"""Quantities and semantic versions in CEL expressions: Kubernetes' own types, and the functions that go with them.

CEL gets each as a map with one entry, whose text is the same for equal ones: so `==` means what it means in Kubernetes.
The functions are those of k8s.io/apiserver/pkg/cel/library, quantity.go and semverlib.go.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.text import quoted

Value = str | int | float | bool | Mapping[str, Any] | list[Any]
_QUANTITY: Final = "kubernetes.Quantity"
_VERSION: Final = "kubernetes.Semver"
# semver.org, as blang/semver reads it
_SEMVER: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
)
_INT64: Final = 2**63


def quantity_value(number: Number) -> Value:
    """A quantity."""
    return {_QUANTITY: str(Fraction(number))}


def version_value(text: str) -> Value:
    """A version; builds of one version are equal."""
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{quoted(text)} is no semantic version")
    return {_VERSION: f"{match[1]}.{match[2]}.{match[3]}" + (f"-{match[4]}" if match[4] else "")}


def _quantity(text: str) -> Value:
    return quantity_value(Quantity.parse(text).number)


def _semver(text: str, normalize: bool = False) -> Value:  # CEL passes arguments by place
    if normalize:  # v1.02 is 1.2.0
        text, mark, more = text.removeprefix("v").partition("-")
        numbers = [part.lstrip("0") or part[:1] for part in text.split(".")]
        if len(numbers) < 3 and (more or "+" in text):
            raise InvalidInput(
                "short version cannot contain PreRelease/Build meta data"
            )  # as blang/semver says it
        text = ".".join(numbers + ["0"] * (3 - len(numbers))) + mark + more
    return version_value(text)


def _is(reads: Callable[..., Value]) -> Callable[..., bool]:
    def can_be_read(*given: Any) -> bool:
        try:
            reads(*given)
        except InvalidInput:
            return False
        return True

    return can_be_read


def _number(value: Any) -> Fraction:
    text = value.get(_QUANTITY) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise InvalidInput("no such overload: not a quantity")
    return Fraction(text)


def _parts(value: Any) -> tuple[int, int, int, str]:
    text = value.get(_VERSION) if isinstance(value, dict) else None
    match = _SEMVER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInput("no such overload: not a version")
    return int(match[1]), int(match[2]), int(match[3]), match[4] or ""


def _precedence(value: Any) -> tuple[object, ...]:
    """Versions in order: one before its release is less than the release, its numbers less than its words."""
    *numbers, before = _parts(value)
    words = [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in before.split(".") if before]
    return (*numbers, not before, words)


def _compared(one: Any, other: Any) -> int:
    reads: Callable[[Any], Any] = _number if isinstance(one, dict) and _QUANTITY in one else _precedence
    left, right = reads(one), reads(other)
    return int(left > right) - int(left < right)


def _sum(one: Any, other: Any) -> Value:
    return quantity_value(_number(one) + (other if isinstance(other, int) else _number(other)))


def _difference(one: Any, other: Any) -> Value:
    return quantity_value(_number(one) - (other if isinstance(other, int) else _number(other)))


def _is_integer(one: Any) -> bool:
    number = _number(one)
    return number.denominator == 1 and -_INT64 <= number < _INT64


def _as_integer(one: Any) -> int:
    if not _is_integer(one):
        raise InvalidInput("cannot convert value to integer")
    return int(_number(one))


def _sign(one: Any) -> int:
    number = _number(one)
    return int(number > 0) - int(number < 0)


def _includes(one: Any, other: Any) -> bool:
    """Whether a list has something, or a value that is no list is it."""
    of = one if isinstance(one, list) else [one]
    return any(isinstance(each, bool) is isinstance(other, bool) and each == other for each in of)


class Overload(NamedTuple):
    """A function of CEL: what it takes, what it returns, and what it does; types without a name here are dynamic."""

    takes: tuple[str, ...]
    returns: str
    does: Callable[..., Value]
    member: bool = True


_ANY: Final = "any"
FUNCTIONS: Final[Mapping[str, tuple[Overload, ...]]] = {
    "quantity": (Overload(("string",), _ANY, _quantity, member=False),),
    "isQuantity": (Overload(("string",), "bool", _is(_quantity), member=False),),
    "semver": (
        Overload(("string",), _ANY, _semver, member=False),
        Overload(("string", "bool"), _ANY, _semver, member=False),
    ),
    "isSemver": (
        Overload(("string",), "bool", _is(_semver), member=False),
        Overload(("string", "bool"), "bool", _is(_semver), member=False),
    ),
    "compareTo": (Overload((_ANY, _ANY), "int", _compared),),
    "isGreaterThan": (Overload((_ANY, _ANY), "bool", lambda one, other: _compared(one, other) > 0),),
    "isLessThan": (Overload((_ANY, _ANY), "bool", lambda one, other: _compared(one, other) < 0),),
    "add": (Overload((_ANY, _ANY), _ANY, _sum),),
    "sub": (Overload((_ANY, _ANY), _ANY, _difference),),
    "sign": (Overload((_ANY,), "int", _sign, member=False),),
    "isInteger": (Overload((_ANY,), "bool", _is_integer),),
    "asInteger": (Overload((_ANY,), "int", _as_integer),),
    "asApproximateFloat": (Overload((_ANY,), "double", lambda one: float(_number(one))),),
    "includes": (Overload((_ANY, _ANY), "bool", _includes),),  # of k8s.io/dynamic-resource-allocation/cel
    "major": (Overload((_ANY,), "int", lambda one: _parts(one)[0]),),
    "minor": (Overload((_ANY,), "int", lambda one: _parts(one)[1]),),
    "patch": (Overload((_ANY,), "int", lambda one: _parts(one)[2]),),
}
