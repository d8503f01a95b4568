"""One admission, from request bytes to response bytes.

    bytes → Request → decide → operations, tried on the object → bytes

A cluster's pods come from templates, so the same question comes again and again: answers are kept by everything
they depend on (`Request.key`) for as long as the cluster's offers and the configuration stay the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.core.admission.decision import Admit, Decision, Policy, Reject, Rewrite, decide
from tessera.core.admission.offers import Offers
from tessera.core.kubernetes.pod import Pod
from tessera.protocol.admission import patch, review
from tessera.protocol.admission.patch import Operation
from tessera.protocol.admission.review import Request
from tessera.protocol.kubernetes.pod import PodIn
from tessera.webhook.account import Account

_MOST_ANSWERS: Final = 4096  # kept at a time; about 1 KiB each
_LONGEST_KEY: Final = 16 * 1024  # bytes of annotations and resources; larger pods are decided anew each time


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision and what carries it out."""

    pod: Pod
    decision: Decision
    operations: tuple[Operation, ...] = ()


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What is sent back, and what it was."""

    body: bytes
    request: Request
    decision: Decision
    account: Account


class _Known(msgspec.Struct, frozen=True, gc=False):
    """An answer to all pods that ask the same."""

    tail: bytes
    decision: Decision
    account: Account

    @classmethod
    def of(cls, decision: Decision, operations: Sequence[Operation] = ()) -> "_Known":
        return cls(review.tail(decision, operations), decision, Account.of(decision))

    def to(self, request: Request) -> Answer:
        return Answer(review.wrap(request.uid, self.tail), request, self.decision, self.account)


def judge(
    request: Request, offers: Offers, policy: Policy, document: Callable[[], object], root: str = ""
) -> Judgement:
    """Decide about a request's pod, and prove that the patch applies to the document it came in.

    `root` is where the pod stands in that document: a workload's template is admitted as its pod.
    """
    pod = request.read()
    decision = decide(pod, offers, policy)
    if not isinstance(decision, Rewrite):
        return Judgement(pod, decision)
    operations = patch.build(decision.edits, request.pod or PodIn(), root)
    patch.apply(document(), operations)
    return Judgement(pod, decision, tuple(operations))


class Admission:
    """The handler behind `POST /mutate`: pure but for its memory of answers."""

    def __init__(self, offers: Offers, policy: Policy) -> None:
        self.offers = offers
        self._policy = policy
        self._answers: dict[tuple[object, ...], _Known] = {}
        self._answers_for = offers.version

    @property
    def policy(self) -> Policy:
        """The configuration that decisions follow."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._answers.clear()

    def answer(self, body: bytes) -> Answer:
        """Answer a review; raises `InvalidReview` (HTTP 400) for what is none."""
        request = review.decode(body)
        if request.pod is None:
            return _ALLOWED.to(request)
        if self._answers_for != self.offers.version:
            self._answers.clear()
            self._answers_for = self.offers.version
        key = request.key(self._policy.annotations)
        known = self._answers.get(key)
        if known is None:
            judgement = judge(request, self.offers, self._policy, lambda: review.patchable_of(request))
            known = _Known.of(judgement.decision, judgement.operations)
            if _size(key) <= _LONGEST_KEY:
                if len(self._answers) >= _MOST_ANSWERS:
                    del self._answers[next(iter(self._answers))]
                self._answers[key] = known
        return known.to(request)


_ALLOWED: Final = _Known.of(review.ALLOWED)


def _size(key: tuple[object, ...]) -> int:
    return sum(len(part) for part in key if isinstance(part, (bytes, str)))


__all__ = ["Admission", "Admit", "Answer", "Judgement", "Reject", "Rewrite", "judge"]
