"""Label selectors as people type them: `pool=a,gpu,!old,zone in (x,y),tier notin (z),cards>4`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import Requirement
from tessera.core.text import quoted

_KEY: Final = r"[A-Za-z0-9](?:[\w./-]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)?"
_REQUIREMENT: Final = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s+(?P<set>in|notin)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)"
    rf"|\s*(?P<sign>==|=|!=|>|<)\s*(?P<value>{_VALUE}))?)\s*(?P<end>,|$)",
    re.ASCII,
)
_OPERATORS: Final = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements, all of which must hold; the text is what an API server is asked with."""

    text: str
    requirements: tuple[Requirement, ...]

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        requirements: list[Requirement] = []
        position, more = 0, bool(text.strip())
        while more:
            match = _REQUIREMENT.match(text, position)
            if match is None:
                rest = quoted(text[position:].strip(), 20)
                raise InvalidInput(
                    f"selector {quoted(text)}: cannot read {rest}; expected such as pool=a, pool!=a, pool, !pool, "
                    "pool in (a,b) or pool notin (a,b)"
                )
            requirements.append(_requirement(match))
            position, more = match.end(), bool(match["end"])
        return cls(text.strip(), tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(one.matches(labels.get(one.key)) for one in self.requirements)


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(match["absent"], "DoesNotExist")
    if match["set"]:
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], _OPERATORS[match["set"]], values)
    if match["sign"]:
        return Requirement(match["key"], _OPERATORS[match["sign"]], (match["value"],))
    return Requirement(match["key"], "Exists")


EVERYTHING: Final = LabelSelector("", ())
