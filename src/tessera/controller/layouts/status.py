"""The status of a MigLayout: counts, conditions, the reasons of some nodes; and when it is worth a write."""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from heapq import nsmallest
from math import inf
from typing import Any, Final

from msgspec import to_builtins

from tessera.controller.layouts.auto.decisions import decisions, numbers
from tessera.controller.layouts.plan import LayoutPlan, State
from tessera.core.text import number_of, shortened
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.miglayout import AutopilotStatus, MigLayout

MOST_NODES: Final = 20  # whose reasons the status has
_LONGEST: Final = 300  # characters of a reason
_ORDER: Final = (State.FAILED, State.INVALID, State.CONFLICT, State.UPDATING, State.PENDING)
_WATCHED: Final = (State.UPDATING, State.FAILED)  # nodes of which every word is written at once
_LONGEST_MESSAGE: Final = 1000
_AUTOPILOT: Final = "autopilot"
# seconds between two writes of mere numbers: a person who looks at a small cluster waits for none, and 4,000 nodes that change cause two a minute
_FIRST_WAIT: Final = 10.0
_LONGEST_WAIT: Final = 30.0
_MEMORY: Final = 300.0  # seconds between two writes where only what is remembered differs


def status_of(
    plan: LayoutPlan, controller: str, now: float, released: Collection[str] = ()
) -> dict[str, Any]:
    """What is to be written; times of conditions that did not change stay. `released`: nodes whose slots are given back."""
    layout = plan.layout
    order = {state: place for place, state in enumerate(_ORDER)}
    told = nsmallest(
        MOST_NODES,
        ((order[state], name, reason) for name, (state, reason) in plan.shown().items() if state in order),
    )
    desired = len(plan.states) - plan.count(State.CONFLICT)
    slots = [slot for slot in plan.slots if slot.name not in released]
    return {
        "observedGeneration": layout.metadata.generation,
        "controller": controller,
        "desired": desired,
        "current": plan.count(State.CURRENT),
        "failed": plan.count(State.FAILED),
        "updatingCount": len(
            {
                *(slot.name for slot in slots),
                *(name for name, (one, _) in plan.shown().items() if one is State.UPDATING),
            }
        ),
        "updating": [to_builtins(slot) for slot in slots],
        "nodes": [
            {"name": name, "state": str(_ORDER[place]), "reason": shortened(reason, _LONGEST)}
            for place, name, reason in told
        ],
        "conditions": [_condition(plan, *one, now) for one in _conditions(plan, desired)],
    }


class News(IntEnum):
    """What of a status is new: how soon it is worth a write."""

    NOTHING = 0
    MEMORY = 1  # only what the autopilot remembers
    NUMBERS = (
        2  # how many nodes are as they should be, and words: on a large cluster these change all the time
    )
    DECISION = 3  # slots, conditions, what the autopilot decided


def news(layout: MigLayout, status: Mapping[str, Any], said: AutopilotStatus | None) -> News:
    """What is new in a status; `said`: what the autopilot says, None where it has no say."""
    was, now = (
        {x: one for x, one in some.items() if x != _AUTOPILOT} for some in (layout.raw_status, status)
    )
    there, old = _AUTOPILOT in layout.raw_status, layout.autopilot
    if _of_note(was) != _of_note(now) or there != (said is not None):
        return News.DECISION
    if said is not None and decisions(old) != decisions(said):
        return News.DECISION
    if was != now or (said is not None and numbers(old) != numbers(said)):
        return News.NUMBERS
    return News.MEMORY if said is not None and old != said else News.NOTHING


def _of_note(status: Mapping[str, Any]) -> dict[str, Any]:
    rest = {field: one for field, one in status.items() if field not in ("desired", "current", "nodes")}
    some = ("type", "status", "reason", "observedGeneration")
    # people watch a node that is being changed, and there are few of these at a time
    changing = [one for one in status.get("nodes") or () if one.get("state") in _WATCHED]
    conditions = [[one.get(x) for x in some] for one in status.get("conditions") or ()]
    return {**rest, "conditions": conditions, "nodes": changing}


class Pace:
    """When a status is written: decisions at once, mere numbers at once after a quiet while and then less and less often. By a clock that never jumps."""

    def __init__(self) -> None:
        self._written: dict[str, float] = {}  # by the MigLayout's UID: when its status was written
        self._numbers: dict[
            str, tuple[float, float]
        ] = {}  # when mere numbers were, and how long the next wait

    def clear(self) -> None:
        self._written.clear()
        self._numbers.clear()

    def due(self, uid: str, what: News, now: float) -> float:
        """From when on it is worth a write."""
        if what is News.NUMBERS:
            return sum(self._numbers.get(uid, (now, 0.0)))
        if what is News.MEMORY:
            return self._written.setdefault(uid, now) + _MEMORY
        return now if what is News.DECISION else inf

    def written(self, uid: str, what: News, now: float) -> None:
        self._written[uid] = now
        if what is News.NUMBERS:
            at, wait = self._numbers.get(uid, (-inf, 0.0))
            quiet = now - at >= 2 * _LONGEST_WAIT
            self._numbers[uid] = now, _FIRST_WAIT if quiet else min(2 * wait, _LONGEST_WAIT)


def _conditions(plan: LayoutPlan, desired: int) -> Iterator[tuple[str, bool, str, str]]:
    """Type, whether it holds, reason and message."""
    current, failed = plan.count(State.CURRENT), plan.count(State.FAILED)
    invalid, conflicts = plan.count(State.INVALID), plan.count(State.CONFLICT)
    updating, pending = plan.count(State.UPDATING), plan.count(State.PENDING)
    follows_demand = plan.layout.follows_demand
    all_well = not failed if follows_demand else current == desired
    ready = all_well and not (conflicts or plan.error)
    have = "may be re-cut" if follows_demand else "have the layout"
    told = f"{current} of {number_of(desired + conflicts, 'node')} {have}"
    yield "Ready", ready, "Complete" if ready else "Incomplete", told
    moves = bool(updating or plan.leaving or plan.begin or (pending and not (plan.stopped or follows_demand)))
    reason = (
        "RollingOut"
        if moves
        else "Paused"
        if plan.layout.spec.paused
        else "DryRun"
        if follows_demand and plan.layout.spec.autopilot.dry_run
        else "Stopped"
        if plan.stopped
        else "Idle"
    )
    waiting = (State.UPDATING,) if follows_demand else (State.UPDATING, State.PENDING)
    message = plan.stopped or _first(plan.shown(), *waiting)
    yield "Progressing", moves, reason, message
    if failed:
        yield "Degraded", True, "RolloutFailed", _first(plan.states, State.FAILED)
    elif conflicts:
        yield "Degraded", True, "Conflict", _first(plan.states, State.CONFLICT)
    else:
        yield "Degraded", False, "AsExpected", ""
    if plan.error:
        yield "Invalid", True, "BadSpec", plan.error
    elif invalid:
        yield "Invalid", True, "DoesNotFit", _first(plan.states, State.INVALID)
    else:
        yield "Invalid", False, "Fits", ""


def _first(nodes: Mapping[str, tuple[State, str]], *states: State) -> str:
    """The first node in these states that has a reason, and how many more are in them."""
    some = [name for name, (state, _) in nodes.items() if state in states]
    named = min((name for name in some if nodes[name][1]), default="")
    if not named:
        return ""
    more = f" (and {number_of(len(some) - 1, 'more node')})" if len(some) > 1 else ""
    return f"{named}: {nodes[named][1]}{more}"


def _condition(
    plan: LayoutPlan, type_: str, holds: bool, reason: str, message: str, now: float
) -> dict[str, Any]:
    status, before = "True" if holds else "False", plan.layout.condition(type_)
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": shortened(message, _LONGEST_MESSAGE),
        "observedGeneration": plan.layout.metadata.generation,
        "lastTransitionTime": before.last_transition_time if before.status == status else moment(now),
    }
