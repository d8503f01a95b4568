"""Quantities and semantic versions in CEL expressions: Kubernetes' own types, and the functions that go with them.

CEL gets each as bytes, which no attribute has, and which are the same for equal ones: so `==` means what it means in Kubernetes.
Not as a map: an optional value, alone or in a map or list, ends the process when it comes to a function of Python
(cel-expr-python 0.1.3). So no function here takes maps, lists, or just anything.
The functions are those of k8s.io/apiserver/pkg/cel/library, quantity.go and semverlib.go.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.text import quoted

Value = str | int | float | bool | bytes | Mapping[str, Any] | list[Any]
_QUANTITY: Final = b"quantity "
_VERSION: Final = b"version "
# semver.org, as blang/semver reads it
_SEMVER: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
)
_INT64: Final = 2**63


def quantity_value(number: Number) -> Value:
    return _QUANTITY + str(Fraction(number)).encode()


def version_value(text: str) -> Value:
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{quoted(text)} is no semantic version")
    return _VERSION + (f"{match[1]}.{match[2]}.{match[3]}" + (f"-{match[4]}" if match[4] else "")).encode()


def _quantity(text: str) -> Value:
    return quantity_value(Quantity.parse(text).number)


def _semver(text: str, normalize: bool = False) -> Value:  # CEL passes arguments by place
    if normalize:  # v1.02 is 1.2.0
        text, mark, more = text.removeprefix("v").partition("-")
        numbers = [part.lstrip("0") or part[:1] for part in text.split(".")]
        if len(numbers) < 3 and (more or "+" in text):
            # as blang/semver says it
            raise InvalidInput("short version cannot contain PreRelease/Build meta data")
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


def _number(value: bytes) -> Fraction:
    if not value.startswith(_QUANTITY):
        raise InvalidInput("no such overload: not a quantity")
    return Fraction(value.removeprefix(_QUANTITY).decode())


def _parts(value: bytes) -> tuple[int, int, int, str]:
    match = _SEMVER.fullmatch(value.removeprefix(_VERSION).decode()) if value.startswith(_VERSION) else None
    if match is None:
        raise InvalidInput("no such overload: not a version")
    return int(match[1]), int(match[2]), int(match[3]), match[4] or ""


def _precedence(value: bytes) -> tuple[object, ...]:
    """Versions in order: one before its release is less than the release, its numbers less than its words."""
    *numbers, before = _parts(value)
    words = [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in before.split(".") if before]
    return (*numbers, not before, words)


def _compared(one: bytes, other: bytes) -> int:
    reads: Callable[[bytes], Any] = _number if one.startswith(_QUANTITY) else _precedence
    left, right = reads(one), reads(other)
    return int(left > right) - int(left < right)


def _sum(one: bytes, other: bytes | int) -> Value:
    return quantity_value(_number(one) + (other if isinstance(other, int) else _number(other)))


def _difference(one: bytes, other: bytes | int) -> Value:
    return quantity_value(_number(one) - (other if isinstance(other, int) else _number(other)))


def _is_integer(one: bytes) -> bool:
    number = _number(one)
    return number.denominator == 1 and -_INT64 <= number < _INT64


def _as_integer(one: bytes) -> int:
    if not _is_integer(one):
        raise InvalidInput("cannot convert value to integer")
    return int(_number(one))


def _sign(one: bytes) -> int:
    number = _number(one)
    return int(number > 0) - int(number < 0)


def _includes(one: Any, other: Any) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


class Overload(NamedTuple):
    takes: tuple[str, ...]
    returns: str
    does: Callable[..., Value]
    member: bool = True


_OWN: Final = "bytes"  # a quantity or a version
_PLAIN: Final = ("bool", "int", "uint", "double", "string", _OWN)
FUNCTIONS: Final[Mapping[str, tuple[Overload, ...]]] = {
    "quantity": (Overload(("string",), _OWN, _quantity, member=False),),
    "isQuantity": (Overload(("string",), "bool", _is(_quantity), member=False),),
    "semver": (
        Overload(("string",), _OWN, _semver, member=False),
        Overload(("string", "bool"), _OWN, _semver, member=False),
    ),
    "isSemver": (
        Overload(("string",), "bool", _is(_semver), member=False),
        Overload(("string", "bool"), "bool", _is(_semver), member=False),
    ),
    "compareTo": (Overload((_OWN, _OWN), "int", _compared),),
    "isGreaterThan": (Overload((_OWN, _OWN), "bool", lambda one, other: _compared(one, other) > 0),),
    "isLessThan": (Overload((_OWN, _OWN), "bool", lambda one, other: _compared(one, other) < 0),),
    "add": (Overload((_OWN, _OWN), _OWN, _sum), Overload((_OWN, "int"), _OWN, _sum)),
    "sub": (Overload((_OWN, _OWN), _OWN, _difference), Overload((_OWN, "int"), _OWN, _difference)),
    "sign": (Overload((_OWN,), "int", _sign, member=False),),
    "isInteger": (Overload((_OWN,), "bool", _is_integer),),
    "asInteger": (Overload((_OWN,), "int", _as_integer),),
    "asApproximateFloat": (Overload((_OWN,), "double", lambda one: float(_number(one))),),
    # of k8s.io/dynamic-resource-allocation/cel; not for lists, in which an optional value may be
    "includes": tuple(Overload((one, other), "bool", _includes) for one in _PLAIN for other in _PLAIN),
    "major": (Overload((_OWN,), "int", lambda one: _parts(one)[0]),),
    "minor": (Overload((_OWN,), "int", lambda one: _parts(one)[1]),),
    "patch": (Overload((_OWN,), "int", lambda one: _parts(one)[2]),),
}
