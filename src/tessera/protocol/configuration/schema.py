"""What a configuration value may be, in one place: read it, report errors in it, describe it.

A `ValueType` reads a value that YAML or JSON gave, and collects errors with their paths instead of stopping at the
first; it also yields the JSON Schema for editors and the words for the reference. Documents are then tables of
fields, and nothing about them is written twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Generic, Protocol, TypeVar

from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.text import quoted

# before or after the point: more is no amount of anything, and exact arithmetic on it has no bound
_DIGITS: Final = 18

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Errors:
    """What is wrong with a document, in the order of the document."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, path: str, what: str) -> None:
        self.texts.append(f"{path}: {what}" if path else what)

    def raise_if_any(self) -> None:
        if self.texts:
            raise InvalidInputs(self.texts)


class ValueType(Protocol[_T_co]):
    """A kind of value. `read` returns something of the right type even when it reports an error."""

    @property
    def words(self) -> str:
        """The kind, in a few words for a person."""

    def read(self, value: Any, path: str, errors: Errors) -> _T_co:
        """The value; an error is added to the list."""

    def schema(self) -> dict[str, Any]:
        """The kind as JSON Schema."""


@dataclass(frozen=True, slots=True)
class Boolean:
    words: str = "`true` or `false`"

    def read(self, value: Any, path: str, errors: Errors) -> bool:
        """Take a boolean and nothing that merely looks like one."""
        if not isinstance(value, bool):
            errors.add(path, f"{shown(value)} is neither true nor false")
        return value is True

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


_OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Choice:
    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return ", ".join(f"`{choice}`" for choice in self.choices)

    def read(self, value: Any, path: str, errors: Errors) -> str:
        """Take one of the words; `off` without quotes is false in YAML."""
        if value is False and _OFF in self.choices:
            return _OFF
        if value not in self.choices:
            errors.add(
                path, f"{shown(value)} is not one of {', '.join(self.choices)}{meant(value, self.choices)}"
            )
            return self.choices[0]
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"enum": [*self.choices, *([False] if _OFF in self.choices else [])]}


@dataclass(frozen=True, slots=True)
class Text(Generic[_T]):
    """A text with a meaning: `parse` raises `InvalidInput` for what has none."""

    words: str
    parse: Callable[[str], _T]
    otherwise: _T

    def read(self, value: Any, path: str, errors: Errors) -> _T:
        if not isinstance(value, str):
            errors.add(path, f"{shown(value)} is not a text; expected {self.words}")
            return self.otherwise
        try:
            return self.parse(value)
        except InvalidInput as error:
            errors.add(path, str(error))
            return self.otherwise

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


def text_that(words: str, holds: Callable[[str], object], otherwise: str) -> Text[str]:
    """A text as it is, if that holds of it; `otherwise` says behind the text what is wrong with it."""

    def parse(text: str) -> str:
        if not holds(text):
            raise InvalidInput(shown(text) + otherwise)
        return text

    return Text(words, parse, "")


TEXT: Final = Text("text", str, "")


@dataclass(frozen=True, slots=True)
class Number:
    most: int | None = None

    @property
    def words(self) -> str:
        return "a number, 0 or more" if self.most is None else f"a number from 0 to {self.most}"

    def read(self, value: Any, path: str, errors: Errors) -> Decimal:
        """Take a number; a text that looks like one is refused with the way to write it."""
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            errors.add(path, f"{shown(value)} is not a number; write it without quotes, such as 4000 or 1.5")
        elif value < 0:
            errors.add(path, f"{shown(value)} is negative")
        elif self.most is not None and value > self.most:
            errors.add(path, f"{shown(value)} is not {self.words}")
        elif value and not -_DIGITS <= Decimal(value).adjusted() <= _DIGITS:
            errors.add(path, f"{shown(value)} is out of range")
        else:
            return Decimal(value)
        return Decimal(0)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": 0, **({} if self.most is None else {"maximum": self.most})}


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number within bounds."""

    least: int
    most: int

    @property
    def words(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def read(self, value: Any, path: str, errors: Errors) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value <= self.most:
            errors.add(path, f"{shown(value)} is not {self.words}")
            return self.least
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class ListOf(Generic[_T]):
    """Values of one kind, in an order that counts."""

    kind: ValueType[_T]

    @property
    def words(self) -> str:
        return f"list of {self.kind.words}"

    def read(self, value: Any, path: str, errors: Errors) -> tuple[_T, ...]:
        if not isinstance(value, list):
            errors.add(path, f"{shown(value)} is not a list")
            return ()
        return tuple(self.kind.read(one, f"{path}[{index}]", errors) for index, one in enumerate(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.kind.schema()}


@dataclass(frozen=True, slots=True)
class MapOf(Generic[_T]):
    """Values of one kind under names of their own; `key` says what a name must be."""

    key: Text[str]
    kind: ValueType[_T]

    @property
    def words(self) -> str:
        return f"map from {self.key.words} to {self.kind.words}"

    def read(self, value: Any, path: str, errors: Errors) -> dict[str, _T]:
        if not isinstance(value, dict):
            errors.add(path, f"{shown(value)} is not a map")
            return {}
        return {
            self.key.read(name, join(path, str(name)), errors): self.kind.read(
                one, join(path, str(name)), errors
            )
            for name, one in value.items()
        }

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.kind.schema()}


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


@dataclass(frozen=True, slots=True)
class Record:
    """A map with known fields; an unknown one is a mistake, and the likely meaning is named."""

    fields: tuple[Field, ...]
    words: str = "map"
    hints: Mapping[str, str] = field(default_factory=dict)  # unknown key → where it belongs

    def read(self, value: Any, path: str, errors: Errors) -> dict[str, Any]:
        """Take every field, or its default."""
        if value is None:
            value = {}  # `fallback:` with nothing under it is an empty section
        if not isinstance(value, dict):
            errors.add(path, f"{shown(value)} is not a map")
            value = {}
        known = {one.name: one for one in self.fields}
        for name in value:
            if name not in known:
                hint = self.hints.get(name) or f"unknown field{meant(name, known)}"
                errors.add(join(path, str(name)), hint)
        found = {}
        for one in self.fields:
            if one.name in value:
                found[one.name] = one.kind.read(value[one.name], join(path, one.name), errors)
            elif one.required:
                errors.add(join(path, one.name), f"missing; expected {one.kind.words}")
                found[one.name] = one.kind.read(None, "", Errors())
            else:
                found[one.name] = one.default
        return found

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {one.name: {"description": one.doc, **one.kind.schema()} for one in self.fields},
            **({"required": needed} if (needed := [one.name for one in self.fields if one.required]) else {}),
        }

    def rows(self, path: str = "") -> Iterator[tuple[str, Field]]:
        """Every field below, with its path, for the reference."""
        for one in self.fields:
            here = join(path, one.name)
            yield here, one
            yield from _rows_below(one.kind, here)


def _rows_below(kind: Any, path: str) -> Iterator[tuple[str, Field]]:
    if isinstance(kind, Record):
        yield from kind.rows(path)
    elif isinstance(kind, MapOf):
        yield from _rows_below(kind.kind, join(path, f"<{kind.key.words}>"))
    elif isinstance(kind, ListOf):
        yield from _rows_below(kind.kind, f"{path}[]")


def reference(rows: Iterable[tuple[str, Field]], empty: str) -> str:
    """The fields as a Markdown table; `empty` is the word for a default of nothing."""
    lines = ["| field | value | default | what it does |", "|---|---|---|---|"]
    for path, one in rows:
        given = one.default if isinstance(one.default, str | int) else ""
        text = str(given).lower() if isinstance(given, bool) else str(given)
        default = "required" if one.required else f"`{text}`" if text else empty
        lines.append(f"| `{path}` | {one.kind.words} | {default} | {one.doc} |")
    return "\n".join(lines) + "\n"


def join(path: str, name: str) -> str:
    safe = name if name.isprintable() and len(name) <= 200 else quoted(name)
    return f"{path}.{safe}" if path else safe


def shown(value: Any) -> str:
    """A value as an error message shows it."""
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
