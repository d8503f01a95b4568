"""YAML as Kubernetes reads it: the JSON types and nothing else.

Dates stay texts, `1:30` is no number, `1.10` keeps its digits where exactness matters (`Decimal`), a key that
stands twice is refused, and so are aliases that would grow without bound. JSON is YAML here, and JSON documents
go through a JSON decoder, which is stricter and much faster. It keeps the last of two equal keys, as kubectl does:
`load`, which reads what people write, refuses them in JSON too.
"""

import json
import re
import sys
from collections.abc import Hashable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import Any, Final

import msgspec
import yaml

from tessera.core.errors import InvalidInput
from tessera.core.text import escaped, printable

_MAX_DEPTH: Final = 100  # Kubernetes objects are at most about 30 deep
_ALIAS_GROWTH: Final = 10  # values per character of text: more than that is a bomb made of aliases
# only such texts can be nested deeper than that: many brackets, or a line that begins with many levels
_MAY_BE_DEEP: Final = re.compile(rf"^[ \-?:]{{{_MAX_DEPTH},}}", re.MULTILINE)

# libyaml when PyYAML was built with it, ten times faster
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InvalidYaml(InvalidInput):
    """A text that is no YAML, or YAML that is no JSON."""


def _decimal(text: str, *, exact: bool = True) -> Decimal:
    """A number with its digits; `ValueError` for one that no `Decimal` can hold or, unless `exact`, no float."""
    with suppress(InvalidOperation):
        number = Decimal(text)
        if exact or not isinf(float(number)):
            return number
    raise ValueError(f"{escaped(text)} is out of range")


_EXACT_JSON: Final = msgspec.json.Decoder(float_hook=_decimal)


class _Loader(_Base):  # type: ignore[misc] # the base is chosen at run time
    """A safe loader with the JSON types only."""

    exact = False  # whether numbers stay as they are, so that any `Decimal` will do

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                # YAML 1.1 reads on:, 1: and the like as other types; in a JSON object every key is a text
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a text", key_node.start_mark
                )
            if key in mapping:
                raise yaml.constructor.ConstructorError(
                    None, None, f'"{key}" appears twice', key_node.start_mark
                )
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


def _construct_float(loader: Any, node: yaml.ScalarNode) -> Decimal:
    text = str(loader.construct_scalar(node)).replace("_", "")
    if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        raise yaml.constructor.ConstructorError(None, None, f"{text} is not a finite number", node.start_mark)
    try:
        return _decimal(text.lstrip("+"), exact=loader.exact)
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    try:
        number: int = loader.construct_yaml_int(node)
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        problem = f"{escaped(node.value)} is not a whole number of at most {most} digits"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
    return number


# `_Loader` gets resolvers and constructors of its own: those of the base class must stay as they are
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)", "tTfFyYnNoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o?[0-7_]+)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+0123456789."),
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor(
    "tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node, deep=True)
)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", yaml.SafeLoader.construct_undefined)


def load_all(text: str | bytes, source: str = "input", *, exact: bool = False) -> list[Any]:
    """All documents of a text, empty ones left out.

    Numbers with a fraction become `float`, or `Decimal` when `exact`. `source` names the text in errors.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidYaml(f"{source}: not UTF-8 text (byte {error.start})") from error
    if text.lstrip().startswith(("{", "[")):
        try:
            return [_EXACT_JSON.decode(text) if exact else msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError, ValueError):
            pass  # flow-style YAML also begins like this, and YAML's error names the line
    try:
        _check_depth(text, source)
        documents = [document for document in _documents(text, exact=exact) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidYaml(f"{source}:{where}: {str(error.problem or error.context).strip()}") from error
    except InvalidYaml:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidYaml(f"{source}: not YAML: {str(error).splitlines()[0]}") from error
    if "&" in text:
        _check_growth(documents, source, _ALIAS_GROWTH * len(text))
    return documents if exact else [_inexact(document) for document in documents]


def load(text: str | bytes, source: str = "input", *, exact: bool = False) -> Any:
    documents = load_all(text, source, exact=exact)
    if len(documents) > 1:
        raise InvalidYaml(f"{source}: {len(documents)} documents, expected one")
    _check_keys(text, source)
    return documents[0] if documents else None


def dump(document: object) -> str:
    """One document as block YAML, keys in the order they have."""
    return yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # as for the loader
    """A safe dumper that repeats what is shared instead of writing anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _documents(text: str, *, exact: bool) -> Iterator[Any]:
    loader = _Loader(text)
    loader.exact = exact
    try:
        while loader.check_data():
            yield loader.get_data()
    finally:
        loader.dispose()


def _check_depth(text: str, source: str) -> None:
    """Refuse what is nested deeper than any object, before libyaml's composer recurses into it."""
    if text.count("[") + text.count("{") < _MAX_DEPTH and not _MAY_BE_DEEP.search(text):
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise InvalidYaml(f"{source}: nested more than {_MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_keys(text: str | bytes, source: str) -> None:
    """Refuse JSON in which a key stands twice; of YAML the loader has refused it."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise InvalidYaml(f'{source}: "{printable(key)}" appears twice')
            keys.add(key)

    with suppress(json.JSONDecodeError, RecursionError):  # no JSON, or nested deep as JSON may be
        json.loads(text, object_pairs_hook=once, parse_int=str)


def _check_growth(documents: list[Any], source: str, most: int) -> None:
    """Refuse what aliases blow up: each use of an alias counts as what it stands for."""
    stack: list[object] = list(documents)
    while stack:
        value = stack.pop()
        most -= 1
        if most < 0:
            raise InvalidYaml(f"{source}: grows too large by its aliases")
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _inexact(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: _inexact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_inexact(item) for item in value]
    return value
