"""Label and field selectors, as they stand in a query."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.simulation.control_plane.store import Document, StatusError

Selector = Callable[[Document], bool]


def selector_of(query: Mapping[str, str]) -> Selector | None:
    """The selector in a query; None when it asks for everything."""
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    if not labels and not fields:
        return None
    tests = [label_selector(labels), field_selector(fields)]
    return lambda document: all(test(document) for test in tests)


def label_selector(text: str) -> Selector:
    """`app=x,tier!=y,env in (a,b),gpu,!old`."""
    try:
        selector = LabelSelector.parse(text)
    except InvalidInput as error:
        raise StatusError(400, "BadRequest", f"unable to parse the label selector: {error}") from error
    return lambda document: selector.matches(document["metadata"].get("labels") or {})


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
