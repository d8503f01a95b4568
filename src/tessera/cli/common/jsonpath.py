"""`-o jsonpath=…`: kubectl's templates, `{range .nodes[*]}{.name}{"\\n"}{end}`.

The template prints its text as it is; braces hold paths, quoted texts, `range` and `end`. A path has names (`.a`, `['a']`; a dot in a name is
written `\\.`), numbers (`[0]`, `[-1]`, `[1:3]`), `*`, `..` for all that is below, and filters (`[?(@.state=="ready")]`). A path that
leads nowhere prints nothing, as with kubectl.
"""

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tessera.core.errors import InvalidInput

_QUOTED: Final = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
_PIECE: Final = re.compile(rf"(?P<text>[^{{}}]+)|\{{(?P<action>(?:{_QUOTED}|[^{{}}\"'])*)\}}", re.DOTALL)
_STEP: Final = re.compile(
    rf"""(?P<deep>\.\.(?=[^.]))?
    (?: \.?\[\s*(?P<quoted>{_QUOTED})\s*\]
      | \.?\[\?\((?P<filter>(?:{_QUOTED}|[^"'])*?)\)\]
      | \.?\[\s*(?P<places>-?\d+(?:\s*,\s*-?\d+)*)\s*\]
      | \.?\[\s*(?P<begin>-?\d*)\s*:\s*(?P<end>-?\d*)\s*(?::\s*(?P<step>[1-9]\d*))?\s*\]
      | (?P<all>\.?\[\s*\*\s*\]|(?(deep)|\.)\*)
      | (?(deep)|\.)(?P<name>(?:\\.|[^\s.\[\]\\*])+)
    )""",
    re.VERBOSE,
)
_FILTER: Final = re.compile(
    rf"\s*(?P<left>@(?:{_QUOTED}|[^=!<>\"'])*?)\s*(?:(?P<operator>[=!]=|[<>]=?)\s*(?P<right>.+?)\s*)?"
)
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_Step = Callable[[Any], Iterator[Any]]  # from a value to those that it leads to
_Path = Callable[[Any, Any], list[Any]]  # what the whole document and the value at hand lead to
_Part = Callable[[Any, Any], str]  # what they print


class JsonPathTemplate:
    """A template that could be read."""

    def __init__(self, text: str) -> None:
        # one path without braces can only be meant as one
        self._parts = _parse(text if "{" in text else f"{{{text}}}")

    def render(self, document: Any) -> str:
        """The text for a document."""
        return "".join(part(document, document) for part in self._parts)


def _constantly(text: str) -> _Part:
    return lambda _root, _here: text


def _printed(path: _Path) -> _Part:
    return lambda root, here: " ".join(map(_text, path(root, here)))


def _repeated(over: _Path, body: list[_Part]) -> _Part:
    return lambda root, here: "".join(part(root, each) for each in over(root, here) for part in body)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse(text: str) -> list[_Part]:
    open_parts: list[list[_Part]] = [[]]  # the template, and each range that is open
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise _invalid(f"a brace is not closed, or not opened, at {text[position : position + 20]}")
        position = piece.end()
        if (action := piece["action"]) is None:
            open_parts[-1].append(_constantly(piece["text"]))
        elif re.fullmatch(_QUOTED, action := action.strip()):
            open_parts[-1].append(_constantly(_literal(action)))
        elif action == "end":
            if len(open_parts) == 1:
                raise _invalid("an {end} without its {range …}")
            open_parts.pop()
        elif action == "range" or action.startswith("range "):
            body: list[_Part] = []
            open_parts[-1].append(_repeated(_path(action.removeprefix("range")), body))
            open_parts.append(body)
        else:
            open_parts[-1].append(_printed(_path(action)))
    if len(open_parts) > 1:
        raise _invalid("a {range …} without its {end}")
    return open_parts[0]


def _path(text: str) -> _Path:
    rest = text.strip()
    if not rest:
        raise _invalid("a path is missing")
    from_root = rest.startswith("$")
    rest = rest[1:] if rest[:1] in ("$", "@") else rest
    rest = "" if rest == "." else rest if rest[:1] in (".", "[", "") else f".{rest}"
    steps: list[_Step] = []
    position = 0
    while position < len(rest):
        match = _STEP.match(rest, position)
        if match is None:
            raise _invalid(f"{text.strip()}: not a path from {rest[position:]} on")
        steps += [_below] if match["deep"] else []
        steps.append(_step(match))
        position = match.end()

    def values(root: Any, here: Any) -> list[Any]:
        found = [root if from_root else here]
        for step in steps:
            found = [after for before in found for after in step(before)]
        return found

    return values


def _step(match: re.Match[str]) -> _Step:
    if match["name"] is not None:
        return _named(re.sub(r"\\(.)", r"\1", match["name"]))
    if match["quoted"] is not None:
        return _named(_literal(match["quoted"]))
    if match["places"] is not None:
        places = [int(place) for place in match["places"].split(",")]
        return lambda value: (value[at] for at in places if isinstance(value, list) and -len(value) <= at < len(value))  # fmt: skip
    if match["filter"] is not None:
        holds = _condition(match["filter"])
        return lambda value: (one for one in _children(value) if holds(one))
    if match["all"] is not None:
        return _children
    chosen = slice(*(int(match[name]) if match[name] else None for name in ("begin", "end", "step")))
    return lambda value: iter(value[chosen] if isinstance(value, list) else ())


def _named(name: str) -> _Step:
    return lambda value: iter([value[name]] if isinstance(value, dict) and name in value else ())


def _children(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else value.values() if isinstance(value, dict) else ())


def _below(value: Any) -> Iterator[Any]:
    yield value
    for child in _children(value):
        yield from _below(child)


def _condition(text: str) -> Callable[[Any], bool]:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise _invalid(f'{text}: not a condition such as @.state=="ready"')
    left = _path(match["left"])
    if match["operator"] is None:
        return lambda value: bool(left(value, value))
    compare, right = _COMPARE[match["operator"]], _constant(match["right"])

    def holds(value: Any) -> bool:
        found = left(value, value)
        try:
            return bool(found) and compare(_beside(right, found[0]), right)
        except (TypeError, ValueError):
            return False  # not to be compared

    return holds


def _beside(constant: Any, value: Any) -> Any:
    """Amounts are texts in documents, as in Kubernetes: beside a number they count as numbers."""
    return float(value) if type(constant) in (int, float) and isinstance(value, str) else value


def _constant(text: str) -> Any:
    if re.fullmatch(_QUOTED, text):
        return _literal(text)
    try:
        return json.loads(text)
    except ValueError:
        raise _invalid(f"{text}: not a text in quotes, a number, true or false") from None


def _literal(quoted: str) -> str:
    try:
        return str(ast.literal_eval(quoted.replace("\n", "\\n")))
    except (SyntaxError, ValueError):
        raise _invalid(f"{quoted}: not a text in quotes") from None


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(f"jsonpath: {why}")
