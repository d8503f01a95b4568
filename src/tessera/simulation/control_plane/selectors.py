"""Label and field selectors, as they stand in a query."""

import re
from collections.abc import Callable
from typing import Any, Final

from tessera.simulation.control_plane.store import Document, StatusError

Selector = Callable[[Document], bool]

_REQUIREMENT: Final = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<key1>[\w./-]+)"
    r"|(?P<key2>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^)]*)\)"
    r"|(?P<key3>[\w./-]+)\s*(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)"
    r"|(?P<key4>[\w./-]+))\s*(?:,|$)"
)


def everything(_: Document) -> bool:
    """The selector that selects all."""
    return True


def label_selector(text: str) -> Selector:
    """`app=x,tier!=y,env in (a,b),gpu,!old`."""
    tests: list[Callable[[dict[str, str]], bool]] = []
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise StatusError(400, "BadRequest", f'unable to parse the label selector "{text}"')
        tests.append(_label_test(match))
        position = match.end()
    if not tests:
        return everything
    return lambda document: all(test(document["metadata"].get("labels") or {}) for test in tests)


def _label_test(match: re.Match[str]) -> Callable[[dict[str, str]], bool]:
    if key := match["key1"]:
        return lambda labels: key not in labels
    if key := match["key2"]:
        values = {value.strip() for value in match["values"].split(",")}
        if match["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if key := match["key3"]:
        value = match["value"]
        if match["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    key = match["key4"]
    return lambda labels: key in labels


def field_selector(text: str) -> Selector:
    """`metadata.name=x,spec.nodeName!=`, joined by commas."""
    tests = [_field_test(part.strip()) for part in text.split(",") if part.strip()]
    return lambda document: all(test(document) for test in tests)


def _field_test(part: str) -> Selector:
    path, operator, wanted = re.match(r"([\w.]*)\s*(==|=|!=)?\s*(.*)", part).groups()  # type: ignore[union-attr] # matches anything
    if not path or operator is None:
        raise StatusError(400, "BadRequest", f'unable to parse the field selector "{part}"')

    def test(document: Document) -> bool:
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        found = "" if value is None else str(value)
        return (found == wanted) is (operator != "!=")

    return test
