"""What a configuration value may be, in one place: read it, report errors in it, describe it.

A `ValueType` reads a value that YAML or JSON gave, and collects errors with their paths instead of stopping at the
first; it also has the JSON Schema for editors and the text of the reference. Documents are then tables of
fields, and nothing about them is written twice.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.text import quoted

# before or after the point: more is no amount of anything, and exact arithmetic on it has no bound
_DIGITS: Final = 18
_OFF: Final = "off"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_T = TypeVar("_T")


class Errors:
    """What is wrong with a document, in the order of the document."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, path: str, what: str) -> None:
        self.texts.append(f"{path}: {what}" if path else what)

    def raise_if_any(self) -> None:
        if self.texts:
            raise InvalidInputs(self.texts)


Rows = Iterator[tuple[str, "Field"]]


@dataclass(frozen=True, slots=True)
class ValueType(Generic[_T]):
    """A kind of value: its description for a person, how it is read, and as JSON Schema.

    What `read` returns is of the right type even when it reports an error.
    """

    description: str
    read: Callable[[Any, str, Errors], _T]
    schema: dict[str, Any]
    rows: Callable[[str], Rows] = lambda _: iter(())  # the fields below a path, for the reference


@dataclass(frozen=True, slots=True)
class Field:
    """A named part of a record; without a default it must be there."""

    name: str
    kind: ValueType[Any]
    doc: str
    default: Any = field(default=...)

    @property
    def required(self) -> bool:
        return self.default is ...


def _read_boolean(value: Any, path: str, errors: Errors) -> bool:
    """Take a boolean and nothing that merely looks like one."""
    if not isinstance(value, bool):
        errors.add(path, f"{shown(value)} is neither true nor false")
    return value is True


BOOLEAN: Final = ValueType("`true` or `false`", _read_boolean, {"type": "boolean"})


def choice(*choices: str) -> ValueType[str]:
    """One of some texts; `off` without quotes is false in YAML."""

    def read(value: Any, path: str, errors: Errors) -> str:
        if value is False and _OFF in choices:
            return _OFF
        if value not in choices:
            what = f"{shown(value)} is not one of {', '.join(choices)}{meant(value, choices)}"
            errors.add(path, what)
            return choices[0]
        return str(value)

    description = ", ".join(f"`{one}`" for one in choices)
    return ValueType(description, read, {"enum": [*choices, *([False] if _OFF in choices else [])]})


def parsed(description: str, parse: Callable[[str], _T], otherwise: _T) -> ValueType[_T]:
    """A text with a meaning: `parse` raises `InvalidInput` for what has none."""

    def read(value: Any, path: str, errors: Errors) -> _T:
        if not isinstance(value, str):
            errors.add(path, f"{shown(value)} is not a text; expected {description}")
            return otherwise
        try:
            return parse(value)
        except InvalidInput as error:
            errors.add(path, str(error))
            return otherwise

    return ValueType(description, read, {"type": "string"})


def text_that(description: str, holds: Callable[[str], object], otherwise: str) -> ValueType[str]:
    """A text as it is, if that holds of it; `otherwise` says behind the text what is wrong with it."""

    def parse(given: str) -> str:
        if not holds(given):
            raise InvalidInput(shown(given) + otherwise)
        return given

    return parsed(description, parse, "")


TEXT: Final = parsed("text", str, "")


def _number(description: str, example: str, pattern: str, **most: int) -> ValueType[Decimal]:
    """A number, exact, not negative; also as a text of that pattern, since `helm --set` makes a text of every decimal."""

    def read(value: Any, path: str, errors: Errors) -> Decimal:
        found = Decimal(value) if isinstance(value, str) and re.fullmatch(pattern, value) else value
        if isinstance(found, bool) or not isinstance(found, (int, Decimal)):
            errors.add(path, f"{shown(value)} is not {description}, such as {example}")
        elif found < 0:
            errors.add(path, f"{shown(value)} is negative")
        elif found > most.get("maximum", found):
            errors.add(path, f"{shown(value)} is not {description}")
        elif found and not -_DIGITS <= Decimal(found).adjusted() <= _DIGITS:
            errors.add(path, f"{shown(value)} is out of range")
        else:
            return Decimal(found)
        return Decimal(0)

    schema = {"type": ["number", "string"], "minimum": 0, **most, "pattern": pattern}
    return ValueType(description, read, schema)


NUMBER: Final = _number("a number, 0 or more", "4000 or 1.5", r"^[0-9]*\.?[0-9]+$")
FRACTION: Final = _number("a number from 0 to 1", "0.5", r"^(0?\.[0-9]+|[01](\.0+)?)$", maximum=1)


def count(least: int, most: int) -> ValueType[int]:
    description = f"a whole number from {least} to {most}"

    def read(value: Any, path: str, errors: Errors) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            errors.add(path, f"{shown(value)} is not {description}")
            return least
        return value

    return ValueType(description, read, {"type": "integer", "minimum": least, "maximum": most})


def list_of(kind: ValueType[_T]) -> ValueType[tuple[_T, ...]]:
    """Values of one kind, in an order that counts."""

    def read(value: Any, path: str, errors: Errors) -> tuple[_T, ...]:
        if not isinstance(value, list):
            errors.add(path, f"{shown(value)} is not a list")
            return ()
        return tuple(kind.read(one, f"{path}[{index}]", errors) for index, one in enumerate(value))

    schema = {"type": "array", "items": kind.schema}
    return ValueType(f"list of {kind.description}", read, schema, lambda path: kind.rows(f"{path}[]"))


def map_of(key: ValueType[str], kind: ValueType[_T]) -> ValueType[dict[str, _T]]:
    """Values of one kind under names of their own; `key` says what a name must be."""

    def read(value: Any, path: str, errors: Errors) -> dict[str, _T]:
        if not isinstance(value, dict):
            errors.add(path, f"{shown(value)} is not a map")
            return {}
        named = [(name, one, join(path, str(name))) for name, one in value.items()]
        # a bad name stays as it is, so that what is wrong below it is reported with its path
        return {
            key.read(name, at, errors) or str(name): kind.read(one, at, errors) for name, one, at in named
        }

    description = f"map from {key.description} to {kind.description}"
    schema = {"type": "object", "additionalProperties": kind.schema}
    return ValueType(description, read, schema, lambda path: kind.rows(join(path, f"<{key.description}>")))


def record(*fields: Field, hints: Mapping[str, str] = _NOTHING) -> ValueType[dict[str, Any]]:
    """A map with known fields; an unknown one is a mistake, and the likely meaning is named.

    `hints` say of an unknown key where it belongs.
    """
    known = {one.name: one for one in fields}

    def read(value: Any, path: str, errors: Errors) -> dict[str, Any]:
        if value is None:
            value = {}  # `fallback:` with nothing under it is an empty section
        if not isinstance(value, dict):
            errors.add(path, f"{shown(value)} is not a map")
            value = {}
        for name in value:
            if name not in known:
                hint = hints.get(name) or f"unknown field{meant(name, known)}"
                errors.add(join(path, str(name)), hint)
        found = {}
        for one in fields:
            if one.name in value:
                found[one.name] = one.kind.read(value[one.name], join(path, one.name), errors)
            elif one.required:
                errors.add(join(path, one.name), f"missing; expected {one.kind.description}")
                found[one.name] = one.kind.read(None, "", Errors())
            else:
                found[one.name] = one.default
        return found

    def rows(path: str) -> Rows:
        for one in fields:
            here = join(path, one.name)
            yield here, one
            yield from one.kind.rows(here)

    needed = [one.name for one in fields if one.required]
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {one.name: {"description": one.doc, **one.kind.schema} for one in fields},
        **({"required": needed} if needed else {}),
    }
    return ValueType("map", read, schema, rows)


def reference(rows: Iterable[tuple[str, Field]], empty: str) -> str:
    """The fields as a Markdown table; `empty` is the word for a default of nothing."""
    lines = ["| field | value | default | what it does |", "|---|---|---|---|"]
    for path, one in rows:
        given = one.default if isinstance(one.default, str | int) else ""
        text = str(given).lower() if isinstance(given, bool) else str(given)
        default = "required" if one.required else f"`{text}`" if text else empty
        lines.append(f"| `{path}` | {one.kind.description} | {default} | {one.doc} |")
    return "\n".join(lines) + "\n"


def join(path: str, name: str) -> str:
    safe = name if name.isprintable() and len(name) <= 200 else quoted(name)
    return f"{path}.{safe}" if path else safe


def shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)[:60]


def meant(given: Any, known: Any) -> str:
    """`; did you mean "x"?`, when one of the known words is near."""
    import difflib  # only for who mistypes

    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""
