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
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tessera.core.dra.slices import Attribute, DeviceClass, Kind
from tessera.core.errors import InvalidInput
from tessera.core.text import escaped
from tessera.protocol.dra.names import Ambiguous, Names, names_read_by
from tessera.protocol.dra.values import FUNCTIONS, Value, quantity_value, version_value

if TYPE_CHECKING:
    from cel_expr_python import cel

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
