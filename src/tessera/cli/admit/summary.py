"""`-o summary`: how many pods would change, by namespace and by what becomes of them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tessera.cli.common.output import Style, table
from tessera.core.admission.explanation import asked
from tessera.core.admission.outcome import Decision, Denied, Patched
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.pod import ENDED, Pod
from tessera.core.kubernetes.resources import short
from tessera.core.requests.asking import asked_profiles
from tessera.core.text import first_of, number_of
from tessera.webhook.offline import Admitted, admit, admit_again
from tessera.webhook.reviewed import KnownReviews

_MOST_NAMES: Final = 3
_MOST_REJECTED: Final = 10  # listed one by one


class Summary:
    """What was decided about many pods."""

    def __init__(self, offers: Offers, policy: Policy, namespace: str) -> None:
        self._offers, self._policy, self._namespace = offers, policy, namespace
        self._known = KnownReviews()
        self._pods = 0  # of whatever kind
        self._with_gpus: Counter[str] = Counter()  # by namespace, as all that follow
        self._changed: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._replacements: dict[tuple[str, str], Counter[str]] = {}  # from, to
        self._messages: list[str] = []  # of rejections
        self.claims = False  # whether any request becomes a claim

    def add(self, document: dict[str, Any]) -> None:
        """Count what would be decided about an object's pods if it were created now."""
        status, metadata = document.get("status"), document.get("metadata")
        is_pod = document.get("kind") == "Pod"
        if (
            is_pod and isinstance(status, dict) and status.get("phase") in ENDED
        ):  # clusters keep thousands of them
            return
        if is_pod and isinstance(metadata, dict) and metadata.get("uid"):
            self._count(admit_again(document, self._offers, self._policy, self._known))
        else:
            self._count(admit(document, self._offers, self._policy, self._namespace, self._known))

    def _count(self, one: Admitted) -> None:
        self.claims |= one.claims
        for place, reviewed in one.reviewed.items():
            self._pods += 1
            space, would = reviewed.pod.namespace, reviewed.would
            if asked(reviewed.pod):
                self._with_gpus[space] += 1
            if isinstance(would, Denied):
                self._rejected[space] += 1
                self._messages.append(f"{one.title_at(place)}: {would.message}")
            elif isinstance(would, Patched):
                self._changed[space] += 1
            for pair in _replacements(reviewed.pod, would):
                self._replacements.setdefault(pair, Counter())[space] += 1

    def draw(self, style: Style) -> list[str]:
        """The summary for a person."""
        counters = (self._with_gpus, self._changed, self._rejected)
        gpus, changed, rejected = (each.total() for each in counters)
        asking = f"{gpus} of them {'asks' if gpus == 1 else 'ask'} for GPUs"
        would = f"{changed} would be changed, {rejected} would be rejected"
        lines = [style.bold(f"{number_of(self._pods, 'pod')}, {asking}: {would}")]
        if spaces := sorted(set().union(*counters)):
            rows = [(space, *(str(each[space]) for each in counters)) for space in spaces]
            lines += ["", *table([("NAMESPACE", "ASK FOR GPUS", "CHANGED", "REJECTED"), *rows])]
        if self._replacements:
            replacements = sorted(self._replacements.items(), key=lambda pair: (-pair[1].total(), pair[0]))
            rows = [(*pair, str(by.total()), first_of(sorted(by), _MOST_NAMES)) for pair, by in replacements]
            lines += ["", *table([("FROM", "TO", "PODS", "NAMESPACES"), *rows])]
        if self._messages:
            lines += ["", *self._messages[:_MOST_REJECTED]]
            if (more := len(self._messages) - _MOST_REJECTED) > 0:
                lines.append(f"… and {more} more that would be rejected")
        return lines


def _replacements(pod: Pod, would: Decision) -> Iterator[tuple[str, str]]:
    """What becomes of what, in a few words."""
    if isinstance(would, Denied):
        yield ", ".join(map(short, asked_profiles(pod))) or "no profile", f"rejected ({would.code})"
        return
    if not isinstance(would, Patched):
        return
    yield from dict.fromkeys(would.replaced)
    if would.gpu_type is not None:
        yield f"GPU type {would.gpu_type}", "with injected resources"
    if not would.replaced and would.gpu_type is None:
        yield "a request alone", "with its limit"
