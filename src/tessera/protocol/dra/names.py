"""Which attributes and capacities of a device an expression can look at, read from its syntax tree.

`device.attributes['gpu.example.com'].model` looks at `model`, whatever the domain. An expression that goes over the
attributes, or computes their names, looks at all of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tessera.protocol.dra.syntax_pb2 import Expr


@dataclass(frozen=True, slots=True)
class Names:
    """Names of attributes and capacities, without their domains."""

    some: frozenset[str] = frozenset()
    every: bool = False
    domains: frozenset[str] = frozenset()  # that are named
    counted: bool = False  # which domains a device has shows: the expression goes over them, or looks for one

    def include(self, qualified: str) -> bool:
        return self.every or qualified.rpartition("/")[2] in self.some

    def __or__(self, other: "Names") -> "Names":
        return Names(
            self.some | other.some,
            self.every or other.every,
            self.domains | other.domains,
            self.counted or other.counted,
        )

    def touch(self, names: frozenset[str]) -> bool:
        return bool(names) and (self.every or not names.isdisjoint(self.some))

    def covers(self, other: "Names") -> bool:
        return self.every or (not other.every and other.some <= self.some)


EVERY_NAME: Final = Names(every=True)


class _Level(Enum):
    """What a part of an expression stands for."""

    OTHER = 0
    DEVICE = 1  # device
    SECTION = 2  # device.attributes
    DOMAIN = 3  # device.attributes['gpu.example.com']


_SECTIONS: Final = ("attributes", "capacity")
# x[k], x[?k] and x.?k
_INDEX: Final = "_[_]"
_LOOK_UPS: Final = (_INDEX, "_[?_]", "_?._")
_Scope = Mapping[str, _Level]


class Ambiguous(Exception):
    """The expression both goes over the domains of a device and asks whether there is one."""


def names_read_by(tree: "Expr") -> Names:
    walk = _Walk()
    walk.plainly((tree,), {"device": _Level.DEVICE})
    if walk.counted and walk.asked:
        raise Ambiguous("it asks for a domain in two ways, which Kubernetes answers differently")
    return Names(frozenset(walk.names), walk.every, frozenset(walk.domains), walk.counted)


class _Walk:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.domains: set[str] = set()
        self.every = False
        self.counted = False
        self.asked = False

    def plainly(self, parts: "Iterable[Expr]", scope: _Scope) -> None:
        """Parts that are used as they are: with a map of attributes, all that is in it is looked at."""
        for part in parts:
            self._whole(self._level(part, scope))

    def _whole(self, level: _Level) -> None:
        if level is not _Level.OTHER:
            self.every = True
            self.counted |= level is not _Level.DOMAIN

    def _level(self, one: "Expr", scope: _Scope) -> _Level:
        match one.WhichOneof("expr_kind"):
            case "ident_expr":
                return scope.get(one.ident_expr.name, _Level.OTHER)
            case "select_expr":
                select = one.select_expr
                level = self._level(select.operand, scope)
                if not select.test_only:
                    return self._member(level, select.field)
                self._asks(level)
                self._member(level, select.field)
            case "call_expr":
                return self._call(one, scope)
            case "list_expr":
                self.plainly(one.list_expr.elements, scope)
            case "struct_expr":
                entries = one.struct_expr.entries
                self.plainly((part for each in entries for part in (each.map_key, each.value)), scope)
            case "comprehension_expr":
                return self._comprehension(one, scope)
        return _Level.OTHER

    def _asks(self, level: _Level) -> None:
        """Whether a member is there: for Kubernetes every domain is, though none is counted that has nothing in it."""
        self.asked |= level in (_Level.SECTION, _Level.OTHER)  # what stands for a section may be any other

    def _member(self, level: _Level, name: str) -> _Level:
        match level:
            case _Level.DEVICE:
                return _Level.SECTION if name in _SECTIONS else _Level.OTHER
            case _Level.SECTION:
                self.domains.add(name)
                return _Level.DOMAIN
            case _Level.DOMAIN:
                self.names.add(name)
        return _Level.OTHER

    def _call(self, one: "Expr", scope: _Scope) -> _Level:
        call = one.call_expr
        if call.function in _LOOK_UPS and len(call.args) == 2:
            of, key = call.args
            level = self._level(of, scope)
            if call.function != _INDEX:
                self._asks(level)
            if (name := _text(key)) is not None:
                return self._member(level, name)
            self.plainly((key,), scope)
            if level is _Level.SECTION:
                self.counted |= call.function != _INDEX
                return _Level.DOMAIN
            self._whole(level)
            return _Level.OTHER
        if call.function == "@in" and len(call.args) == 2:
            item, of = call.args
            level, name = self._level(of, scope), _text(item)
            if level is _Level.DOMAIN and name is not None:
                self.names.add(name)
                return _Level.OTHER
            self._whole(level)
            self.plainly((item,), scope)
            return _Level.OTHER
        self.plainly((call.target, *call.args), scope)
        return _Level.OTHER

    def _comprehension(self, one: "Expr", scope: _Scope) -> _Level:
        loop = one.comprehension_expr
        if not loop.iter_range.list_expr.elements and _is_false(loop.loop_condition):  # cel.bind(a, x, …)
            return self._level(loop.result, {**scope, loop.accu_var: self._level(loop.accu_init, scope)})
        self.plainly((loop.iter_range, loop.accu_init), scope)
        variables = (loop.iter_var, loop.iter_var2, loop.accu_var)
        inner = {**scope, **dict.fromkeys(variables, _Level.OTHER)}
        self.plainly((loop.loop_condition, loop.loop_step, loop.result), inner)
        return _Level.OTHER


def _text(one: "Expr") -> str | None:
    constant = one.const_expr
    return constant.string_value if constant.WhichOneof("constant_kind") == "string_value" else None


def _is_false(one: "Expr") -> bool:
    constant = one.const_expr
    return constant.WhichOneof("constant_kind") == "bool_value" and not constant.bool_value
