"""Why a pod without a node waits: what it comes down to, in one word and one line.

What nodes lack is worked out once for all pods that ask for the same: a cluster in which thousands wait has a few kinds of them.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Patched
from tessera.core.kubernetes.blocked import BLOCKED, Block, find_block
from tessera.core.kubernetes.pod import DEFAULT_SCHEDULERS
from tessera.core.mig.geometry import PRODUCTS
from tessera.core.requests.alternatives import CLAIM
from tessera.core.requests.asking import alternatives_of
from tessera.core.resources import WHOLE_GPU, is_any_gpu, is_extended
from tessera.diagnosis.admission import who_observes, why_never
from tessera.diagnosis.devices import Obstacle, obstacle, standing_for
from tessera.diagnosis.evidence import Evidence, SeenPod
from tessera.diagnosis.nodes import Lack, NodeGroup, PodRequest, counted, gpus_of, request_of
from tessera.diagnosis.remedy import Remedy, repaired
from tessera.inventory.presence import Presence
from tessera.protocol.kubernetes.objects import seconds

_MOST_NAMED: Final = 3
_ALIKE: Final = 0.9  # of difflib's ratio: one or two letters of a resource's name are wrong
_NVIDIA: Final = "nvidia.com/"
_SILENT: Final = "the scheduler has not said anything yet"
_ELSE: Final = "it waits for something else: look at its volumes, claims and affinity"
_IN_REACH: Final = f"the scheduler refused it more than 30 s ago and has not placed it, so {_ELSE}"
_SENTENCES: Final[Mapping[Lack, str]] = {
    Lack.PLUGIN_UNAVAILABLE: "the device plugin of {where} is unavailable ({reason})",
    Lack.UNHEALTHY: "devices of {where} are unhealthy ({reason})",
    Lack.LAYOUT_PENDING: "{wanted} comes with a layout that {where} has not taken yet ({reason})",
    Lack.LAYOUT_FAILED: "no node offers {wanted}, and the layout of {where} failed ({reason})",
    Lack.OTHER: "{wanted} is free on {where}, but not all else that it asks for ({reason})",
    Lack.TAKEN: "{wanted} is taken on {where} ({reason})",
    Lack.CLOSED: "{wanted} is only on {where}, not for this pod ({reason})",
    Lack.UNKNOWN: "who holds {wanted} could not be read; {said}",
    Lack.TOO_FEW: "no node has {wanted} together ({reason} on {where})",
}


class Cause(StrEnum):
    """What it comes down to, in one word for programs; of a pod that waits for a node it is what nodes lack (`Lack`)."""

    RUNS = "runs"
    OVER = "over"
    ENDING = "ending"
    STARTS = "starts"
    REJECTED = "rejected"
    QUOTA = "quota"
    NOT_CREATED = "not-created"
    GATED = "gated"
    SILENT = "silent"
    POLICY = "policy"
    OBSERVED = "observed"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a pod waits."""

    cause: str
    answer: str  # one line, what follows "the pod waits: "
    request: PodRequest
    nearest: tuple[NodeGroup, ...] = ()  # the nodes that come nearest to what it needs
    obstacle: Obstacle | None = None  # why no scheduler can find devices for its claims
    repairs: tuple[Remedy, ...] = ()  # of parts of Tessera that are unavailable

    @property
    def wanted(self) -> str:
        return ", else ".join(filter(None, (counted(gpus_of(one)) for one in self.request.choices)))


class WaitingPods:
    """Says of the pods of one cluster why they wait."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._nearest: dict[object, tuple[NodeGroup, ...]] = {}
        self._enforced: dict[object, bool] = {}
        self._meant: dict[str, str | None] = {}
        # the first DRA driver that is unavailable
        self._away = next((one for one in seen.presences.drivers.values() if not one.at_work), None)

    def why(self, one: SeenPod) -> WaitReason:
        request, said = (
            request_of(one.pod),
            f"the scheduler says: {one.unscheduled}" if one.unscheduled else "",
        )
        if gates := one.gates:
            text = f"a controller must remove its scheduling gate {', '.join(gates)}"
            return WaitReason(Cause.GATED, text, request)
        if (blocked := self._obstacle(one, request)) is not None:
            return WaitReason(blocked.cause, blocked.answer, request, obstacle=blocked)
        if block := self._block_of(one, reached=False):
            return WaitReason(Cause.SILENT, f"{BLOCKED[block]}; {_ELSE}", request)
        if "nodes" in self._seen.unseen:
            return WaitReason(Cause.UNSEEN, said or "the nodes could not be read", request)
        if (key := request.key) not in self._nearest:
            self._nearest[key] = self._seen.nodes.nearest(request)
        nearest = self._nearest[key]
        lack = nearest[0].lack if nearest else Lack.MISSING
        found = WaitReason(lack, "", request, nearest)
        found = replace(found, answer=self._sentence(found, said or _SILENT))
        if lack is Lack.NOTHING and self._block_of(one, reached=True):
            return replace(found, answer=f"{found.answer}; {_IN_REACH}")
        return self._not_offered(found, one) if lack in (Lack.MISSING, Lack.TOO_FEW) else found

    def _block_of(self, one: SeenPod, *, reached: bool) -> Block | None:
        """Why a pod waits for something else, by its times; `reached`: a device is in reach now. None: it does not, or its times are not known."""
        metadata, scheduled = one.state.metadata, one.state.status.condition("PodScheduled")
        judged = (scheduled.since or metadata.created) if scheduled.is_refused else None
        latest = seconds(self._seen.inventory.judged_until)
        if metadata.created is None or one.pod.scheduler not in DEFAULT_SCHEDULERS:
            return None
        return find_block(
            self._seen.now,
            asked=metadata.created,
            judged=judged,
            reached=judged if reached else None,
            later_judged=latest is not None and metadata.created < latest,
        )

    def _obstacle(self, one: SeenPod, request: PodRequest) -> Obstacle | None:
        """Why no node can ever serve it: its claims cannot be, or no node has a resource that was meant to be a GPU."""
        blocked = obstacle(self._seen.devices, one.pod.namespace, one.state.claims)
        if blocked is None and "nodes" not in self._seen.unseen:
            return next(filter(None, map(self._misspelt, request.choices[0])), None)
        return blocked and self._by_parts(one, blocked)

    def _by_parts(self, one: SeenPod, blocked: Obstacle) -> Obstacle:
        """The same; where a part of Tessera is behind it, with that part."""
        presences, now = self._seen.presences, self._seen.now
        controller = presences.controller
        unmade = alternatives_of(one.pod) is not None and one.state.claims.get(CLAIM, "") is None
        if blocked.cause == "claim-missing" and unmade and controller:
            if controller.at_work:
                answer = f"{blocked.answer}; tessera controller is at work, and makes its template, or writes an Event GPUClaimTemplate that says why not"
                command = f"kubectl get events -n {one.pod.namespace} --field-selector involvedObject.name={one.pod.name}"
                return replace(blocked, answer=answer, command=command)
            answer = f"{blocked.answer}: {controller.words(now)}; it makes the claim's template"
            return Obstacle("controller-away", answer, controller.remedy, controller.command)
        if (away := self._driver_away(blocked.classes)) is not None:
            return Obstacle("driver-away", f"{blocked.answer}; {away.words(now)}", away.remedy, away.command)
        return blocked

    def _driver_away(self, classes: Collection[str]) -> Presence | None:
        """A DRA driver that is unavailable, where devices of one of these classes are its own."""
        return None if self._seen.devices.own.isdisjoint(classes) else self._away

    def _not_offered(self, found: WaitReason, one: SeenPod) -> WaitReason:
        """No node has what is asked for: who else has a part in that."""
        seen, answer = self._seen, found.answer
        by_dra = [text for name in found.request.gpus if (text := standing_for(seen.devices, name))]
        if by_dra:
            found = replace(found, answer=f"{answer}; {by_dra[0]}")
            classes = {
                seen.devices.serving[name] for name in found.request.gpus & seen.devices.serving.keys()
            }
            if (away := self._driver_away(classes)) is None:
                return found
            return replace(found, answer=f"{found.answer}; {away.words(seen.now)}", repairs=(repaired(away),))
        if never := why_never(seen, one.pod):
            text = f"{answer}; {never}, so it gets exactly this or waits"
            return replace(found, cause=Cause.POLICY, answer=text)
        if (observes := who_observes(seen, one.pod)) and self._would_change(one):
            text = f"{answer}, and the webhook only observes here ({observes})"
            return replace(found, cause=Cause.OBSERVED, answer=text)
        return found

    def _would_change(self, one: SeenPod) -> bool:
        """Whether the webhook would give the pod something else, if it did more than observe."""
        pod = one.pod
        key = (pod.namespace, tuple(sorted(pod.annotations.items())), request_of(pod).key)
        if key not in self._enforced:
            would = decide(one.created, self._seen.offers.without(pod), self._seen.policy)
            self._enforced[key] = isinstance(would, Patched) and bool(would.replaced)
        return self._enforced[key]

    def _sentence(self, found: WaitReason, said: str) -> str:
        """Why no node takes it, by the nodes that are nearest to it; `said`: the scheduler's words."""
        wanted = found.wanted or "what it asks for"
        if not self._seen.nodes:
            return "there are no nodes"
        if not found.nearest:
            return f"no node offers {wanted}"
        lack, reason = found.nearest[0].lack, found.nearest[0].reason
        number = sum(
            len(group.nodes) for group in found.nearest
        )  # may be thousands, for each of thousands of pods
        names = ", ".join(islice((name for group in found.nearest for name in group.nodes), _MOST_NAMED))
        more = f" and {number - _MOST_NAMED} more" if number > _MOST_NAMED else ""
        where = f"node{'s' if number > 1 else ''} {names}{more}"
        if lack is Lack.NOTHING:
            return f"{where} {'has' if number == 1 else 'have'} room for it, and {said}"
        sentence = _SENTENCES.get(lack, "no node offers {wanted}")
        return sentence.format(where=where, wanted=wanted, reason=reason, said=said)

    def _misspelt(self, resource: str) -> Obstacle | None:
        """A resource that no node has and that was probably meant to be a GPU."""
        if is_any_gpu(resource) or not is_extended(resource) or resource in self._seen.nodes.resources:
            return None
        if resource not in self._meant:
            self._meant[resource] = _meant_by(resource, self._seen.nodes.resources)
        meant = self._meant[resource]
        if meant is None and not resource.startswith(_NVIDIA):
            return None
        hint = f"; did you mean {meant}?" if meant else f", nor is it a GPU such as {WHOLE_GPU}"
        remedy = f"the pod asks for {meant or 'a GPU that nodes have'}"
        return Obstacle(Lack.MISSING, f"no node has {resource}{hint}", remedy, "tessera capacity")


def _meant_by(resource: str, offered: Collection[str]) -> str | None:
    """The GPU resource that was probably meant: one that nodes offer, else one that some card can have."""
    cards = {profile.resource for product in PRODUCTS for profile in product.profiles}
    choices = sorted(filter(is_any_gpu, offered)), sorted({WHOLE_GPU} | cards)
    for names in choices:
        for name in names:
            if _letters(name) == _letters(resource):
                return name
    for names in choices:
        if close := difflib.get_close_matches(resource, names, 1, _ALIKE):
            return close[0]
    return None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
