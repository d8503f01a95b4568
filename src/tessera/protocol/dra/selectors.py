"""A DeviceClass's CEL expressions, evaluated as the scheduler does.

`cel-expr-python` is Google's own C++ implementation behind a thin binding. Of three packages that were tried it alone reads all
expressions that Kubernetes' documentation and drivers use (optional fields, `cel.bind` and the string functions included). It
gives its syntax tree, ends a loop after 10,000 rounds by itself, and evaluates an expression in 25 to 95 µs.
It costs 50 MB of disk, and 10 MB of memory, where a class is there: until then it is not imported.

Kubernetes' own functions for quantities and versions are in `values`. Whatever else cannot be evaluated (a newer function, an
attribute that a device lacks) is unknown, and an unknown counts as selected: no pod is rejected for it. Compared with
the scheduler's own code (k8s.io/dynamic-resource-allocation 0.36.3): 230 written expressions on 4 devices and 24,000 random ones on 6. None
that it can evaluate came out another way, but for three that rest on the order of a map or compare maps with versions in them.
Not here are `find`, `findAll`, `sum`, `min`, `max`, `isSorted`, lists' `indexOf` and `includes`, and addresses, URLs and formats.

Quantities and semantic versions in CEL expressions: Kubernetes' own types, and the functions that go with them.

CEL gets each as bytes, which no attribute has, and which are the same for equal ones: so `==` means what it means in Kubernetes.
Not as a map: an optional value, alone or in a map or list, ends the process when it comes to a function of Python
(cel-expr-python 0.1.3). So no function here takes maps, lists, or just anything.
The functions are those of k8s.io/apiserver/pkg/cel/library, quantity.go and semverlib.go.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tessera.core.dra.slices import Attribute, DeviceClass, Kind
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.text import escaped, quoted
from tessera.protocol.dra.names import Ambiguous, Names, names_read_by

if TYPE_CHECKING:
    from cel_expr_python import cel


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


_LONGEST: Final = 10 * 1024  # characters: what the API server accepts (CELSelectorExpressionMaxLength)
# CEL's own, of those that Kubernetes has (k8s.io/apiserver/pkg/cel/environment, base.go)
_LIBRARIES: Final = ("bindings", "lists", "optional", "sets", "strings", "two-var-comprehensions")
_LONGEST_ERROR: Final = 200  # characters of an error


# what the binding raises: for CEL's own errors, for values that Python has not, and for what C++ throws
_ERRORS: Final = (RuntimeError, TypeError, ValueError, ArithmeticError, MemoryError, InvalidInput)


@dataclass(frozen=True, slots=True)
class _Compiled:
    program: "cel.Expression"
    names: Names


class Selectors:
    """The expressions of all classes; each is compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, _Compiled | str] = {}  # or why not
        self.class_errors: dict[DeviceClass, str] = {}  # the first thing that could not be evaluated, and why

    def use(self, classes: Collection[DeviceClass]) -> Names:
        """Compile the expressions of these classes, forget all others, and return what they look at."""
        wanted = {text: None for one in classes for text in one.selectors}
        self._compiled = {text: self._compiled.get(text) or _compiled(text) for text in wanted}
        names = Names()
        for one in self._compiled.values():
            if isinstance(one, _Compiled):
                names |= one.names
        self.class_errors = {one: why for one, why in self.class_errors.items() if one in classes}
        return names

    def selects(self, one: DeviceClass, kind: Kind) -> bool | None:
        """Whether a class selects a kind of devices: all of its expressions hold; None when that cannot be said."""
        verdict: bool | None = True
        for text in one.selectors:
            why = self._compiled.get(text, "not compiled")
            holds = _evaluated(why, kind) if isinstance(why, _Compiled) else why
            if holds is False:
                return False
            if isinstance(holds, str):
                self.class_errors.setdefault(one, f"devices of {kind.driver}: {holds}")
                verdict = None
        return verdict


def _compiled(text: str) -> "_Compiled | str":
    if not text or len(text) > _LONGEST:
        return "no CEL expression that this release can read"
    from google.protobuf.any_pb2 import Any as AnyMessage
    from google.protobuf.message import DecodeError

    from tessera.protocol.dra.syntax_pb2 import ParsedExpr

    try:
        # not checked: a function that is not known here is an error where it is reached, and not for other drivers' devices
        program = _environment().compile(text, disable_check=True)
        tree = ParsedExpr.FromString(AnyMessage.FromString(program.serialize()).value).expr
        return _Compiled(program, names_read_by(tree))
    except (*_ERRORS, DecodeError, Ambiguous) as error:
        return _error_text(error)


def _evaluated(one: _Compiled, kind: Kind) -> bool | str:
    """Whether an expression holds for a kind; why not, where that cannot be said."""
    if not kind.known or one.names.touch(kind.lacks):
        return "the devices are of too many kinds to distinguish"
    try:
        value = one.program.eval(data={"device": _device(kind, one.names)}).value()
    except _ERRORS as error:
        return _error_text(error)
    return value if isinstance(value, bool) else _error_text(value)


def _device(kind: Kind, names: Names) -> dict[str, Value]:
    return {
        "driver": kind.driver,
        "allowMultipleAllocations": kind.multiple,
        "attributes": _by_domain(kind, kind.attributes, names),
        "capacity": _by_domain(kind, kind.capacity, names),
    }


def _by_domain(kind: Kind, attributes: Iterable[Attribute], names: Names) -> dict[str, Value]:
    """Domain → name → value. In Kubernetes a domain that a device has nothing of is empty, not missing.

    Where it shows which domains there are, none may be there that the device has not.
    """
    domains: dict[str, dict[str, Value]] = {}
    if not names.counted:
        domains = {domain: {} for domain in (*names.domains, kind.driver)}
    for one in attributes:
        domains.setdefault(one.domain, {})[one.name] = _value(one)
    return {domain: dict(found) for domain, found in domains.items()}


def _value(one: Attribute) -> Value:
    value: Any = one.value
    match one.type:
        case "int" | "bool" | "string":
            return value  # type: ignore[no-any-return]
        case "version":
            return version_value(value)
        case "quantity":
            return quantity_value(value)
        case "ints" | "bools" | "strings":
            return list(value)
        case "versions":
            return [version_value(text) for text in value]
    raise InvalidInput("an attribute of a type that this release does not know")


@cache
def _environment() -> "cel.Env":
    """What expressions may use: imported only when the first one comes."""
    from cel_expr_python import cel

    functions = [
        cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"{name}_{number}",
                    getattr(cel.Type, one.returns.upper()),
                    [getattr(cel.Type, each.upper()) for each in one.takes],
                    one.member,
                    one.does,
                )
                for number, one in enumerate(overloads)
            ],
        )
        for name, overloads in FUNCTIONS.items()
    ]
    libraries = "\n".join(f"- name: {name}" for name in _LIBRARIES)
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(f"extensions:\n{libraries}\n"),
        variables={"device": cel.Type.DYN},
        extensions=[cel.CelExtension("kubernetes", functions)],
    )


def _error_text(error: object) -> str:
    return escaped(" ".join(str(error).split()), _LONGEST_ERROR)
