"""Where a pod may go: node selectors, required node affinity, taints and tolerations, as the scheduler reads them.

Only what a pod says for good counts. That a node is cordoned, not ready or full today does not exclude it. People select
nodes by the same requirements, which they type as label selectors.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.text import first_of, quoted
from tessera.core.values import value

# Clusters add tolerations for these later (ExtendedResourceToleration and the like): such taints exclude no pod.
GPU_VENDOR_DOMAINS: Final = ("nvidia.com", "amd.com", "intel.com", "habana.ai")
# Taints that say how a node is, not what it is: it is coming, going, or not well today. `domain/*` is any key of it.
PASSING_TAINTS: Final = (
    "node.kubernetes.io/*",  # not-ready, unschedulable, disk-pressure …
    "node.cloudprovider.kubernetes.io/*",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/*",
    "node.cilium.io/*",
)

# Numbers that Gt and Lt compare are Go's int64. A label's is read by strconv.ParseInt, and no label value begins with a
# sign; a taint's and a toleration's must be canonical besides (apimachinery, content.IsDecimalInteger). A value has 63
# characters at most.
_LONGEST_VALUE: Final = 63
_TAINT_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,62}")
_MAX_INT64: Final = 2**63 - 1
_MOST_NAMED: Final = 5  # values, or conditions: a pod has room for a hundred thousand, and each node that it excludes says them


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"

    @property
    def may_exclude(self) -> bool:
        return self.effect in ("NoSchedule", "NoExecute") and not is_transient(self.key)

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


CORDONED: Final = Taint("node.kubernetes.io/unschedulable")  # of a node with spec.unschedulable


@value
class Toleration:
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether the toleration covers the taint, as in `k8s.io/component-helpers/scheduling`."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "Exists":
                return True
            case "" | "Equal":
                return bool(self.key) and self.value == taint.value
            case "Lt" | "Gt":
                return _compares(self.operator, taint_number(taint.value), taint_number(self.value))
        return False


@value
class Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, value: str | None) -> bool:
        """Whether a label with this value (None: no such label) satisfies the expression."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return (
                    value is not None
                    and len(self.values) == 1
                    and _compares(self.operator, label_number(value), label_number(self.values[0]))
                )
        return False

    def __str__(self) -> str:
        values = first_of(self.values, _MOST_NAMED)
        match self.operator:
            case "In" | "NotIn":
                return f"{self.key} {'in' if self.operator == 'In' else 'not in'} ({values})"
            case "Gt" | "Lt":
                return f"{self.key} {'>' if self.operator == 'Gt' else '<'} {values}"
        return f"{self.key} {'exists' if self.operator == 'Exists' else 'does not exist'}"


@value
class NodeSelectorTerm:
    """Expressions over labels and over fields (`metadata.name`), all of which must hold."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node satisfies the term; an empty term is satisfied by none."""
        if not self.expressions and not self.fields:
            return False
        # `metadata.name` is the only field that Kubernetes knows
        return all(one.matches(labels.get(one.key)) for one in self.expressions) and all(
            one.key == "metadata.name" and one.matches(name) for one in self.fields
        )

    def __str__(self) -> str:
        return few_of((*self.expressions, *self.fields), " and ")


def few_of(conditions: Sequence[object], joined: str) -> str:
    """Conditions in words: the first, and how many more there are."""
    more = len(conditions) - _MOST_NAMED
    words = [*map(str, conditions[:_MOST_NAMED]), *([f"{more} more"] if more > 0 else [])]
    return joined.join(words) or "nothing"


def untolerated(
    taints: tuple[Taint, ...],
    tolerations: tuple[Toleration, ...],
    *,
    placed: bool,
    transient: tuple[str, ...] = (),
) -> Taint | None:
    """The first taint that excludes a pod; `transient` are further taints that pass, as the operator knows.

    A pod with `nodeName` has passed the scheduler by: only NoExecute, which evicts, concerns it.
    """
    for taint in taints:
        if placed and taint.effect != "NoExecute":
            continue
        if (
            taint.may_exclude
            and not (transient and is_transient(taint.key, transient))
            and not any(toleration.tolerates(taint) for toleration in tolerations)
        ):
            return taint
    return None


def label_keys(selector: Mapping[str, str], terms: tuple[NodeSelectorTerm, ...] | None) -> Iterator[str]:
    yield from selector
    for term in terms or ():
        yield from (one.key for one in term.expressions)


@lru_cache(maxsize=1024)  # a cluster has a few keys of taints, and every decision asks about them
def is_transient(key: str, further: tuple[str, ...] = ()) -> bool:
    """Whether taints of this key say nothing that is meant for good, see the tables above."""
    domain, slash, _ = key.partition("/")
    if slash and any(domain == known or domain.endswith("." + known) for known in GPU_VENDOR_DOMAINS):
        return True
    return is_passing(key, further)


@lru_cache(maxsize=1024)
def is_passing(key: str, further: tuple[str, ...] = ()) -> bool:
    """Whether taints of this key say how a node is now; those of GPU vendors say what it is."""
    domain, slash, _ = key.partition("/")
    return any(
        domain == pattern.removesuffix("/*") if slash and pattern.endswith("/*") else key == pattern
        for pattern in (*PASSING_TAINTS, *further)
    )


def label_number(text: str) -> int | None:
    """The number that Gt and Lt read in the value of a label; None where they read none."""
    if not (text.isdigit() and text.isascii() and len(text) <= _LONGEST_VALUE):  # most values are words
        return None
    number = int(text)
    return number if number <= _MAX_INT64 else None


def taint_number(text: str) -> int | None:
    """The number that Gt and Lt read in the value of a taint or a toleration; None where they read none."""
    if not _TAINT_NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if abs(number) <= _MAX_INT64 else None


def _compares(operator: str, one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return False
    return one > other if operator == "Gt" else one < other


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
