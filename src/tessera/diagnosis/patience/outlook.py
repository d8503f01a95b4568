"""What patience will do about one pod that waits: evict it, about when, or leave it alone, and why. By the controller's own rules."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tessera.core.admission.moves import Move, move_of
from tessera.core.admission.policy import PATIENCE_ANNOTATION, patience_of
from tessera.core.errors import InvalidInput
from tessera.core.text import duration
from tessera.diagnosis.patience.history import Doubt
from tessera.diagnosis.patience.objects import PendingPod
from tessera.diagnosis.patience.rules import (
    WORDS,
    doubting,
    left_by_autoscaler,
    left_by_doubt,
    left_by_job,
    left_by_namespace,
    left_by_owner,
)

if TYPE_CHECKING:
    from tessera.diagnosis.evidence import Evidence, SeenPod


def outlook(seen: "Evidence", one: "SeenPod") -> Iterator[str]:
    """What becomes of a pod without a node by its patience; nothing where nobody speaks of patience."""
    configured, namespace = seen.policy.fallback, seen.offers.namespaces.get(one.pod.namespace)
    pod = PendingPod.read(one.raw, one.state)
    if pod.pod is None:
        return
    try:
        patience = patience_of(one.pod, namespace, configured)
    except InvalidInput as error:
        yield f"not evicted: {error}"
        return
    said_by = "fallback.patience"
    if PATIENCE_ANNOTATION in one.pod.annotations:
        said_by = "the pod's annotation patience"
    elif namespace is not None and PATIENCE_ANNOTATION in namespace.annotations:
        said_by = f"the annotation patience of namespace {namespace.name}"
    elif configured.patience is None:
        return
    if patience is None:
        yield f"not evicted: {said_by} is off"
        return
    doubts = seen.history.doubts if seen.history else {}
    move = move_of(pod.pod, "/".join(pod.key), seen.offers.without(pod.pod), seen.policy)
    left = (
        pod.left_alone
        or left_by_owner(pod)
        or left_by_namespace(pod, seen.offers, seen.policy)
        or left_by_doubt(pod, doubts, seen.now)
        or left_by_job(pod, one.job)
        or left_by_autoscaler(one.events, seen.now)
    )
    if left:
        yield f"left alone: {WORDS[left]}"
        yield from _doubts(pod, left, doubts, seen.now)
        if left == "bare" and move is not None:
            yield f"{move.words}: delete it, and create it again as you first wrote it"
        return
    wait = seen.history.wait(pod.owner.uid, patience) if seen.history and pod.owner else patience
    said = f"{said_by}: {duration(patience)}"
    if wait > patience:
        said += f", {duration(wait)} by now: evictions did not help"
    yield _due(seen, pod, wait, said, move)


def _doubts(pod: PendingPod, left: str, doubts: Mapping[str, Doubt], now: float) -> Iterator[str]:
    """Which pods cast doubt on the webhook, and how long that counts, if a pod is left alone for it."""
    if left == "webhook":
        doubt = doubts[pod.key.namespace]
        ends = f"until one of them has the webhook's mark, or for {duration(doubt.until - now)}"
        yield f"pod {doubt.pod} came back without it; no pod of the namespace is evicted {ends}"
    elif left == "elsewhere":
        spaces = doubting(doubts, now)
        pods = ", ".join(f"{namespace}/{doubts[namespace].pod}" for namespace in sorted(spaces)[:2])
        longest = duration(sorted(doubts[namespace].counts_until for namespace in spaces)[-2] - now)
        ends = f"until one has the webhook's mark, or for {longest}"
        yield f"pods {pods} came back without it; no pod is evicted {ends}"


def _due(seen: "Evidence", pod: PendingPod, wait: float, said: str, move: Move | None) -> str:
    away = seen.presences.patience
    if away is not None and not away.at_work:
        return f"nobody evicts it: {away.words(seen.now)}"
    if pod.since is None:
        return f"not evicted: the scheduler has not called it unschedulable ({said})"
    due = pod.since + wait - seen.now
    when = f"in about {duration(due)}" if due >= 1 else "soon: 10 a minute at most, one of an owner at a time"
    if move is not None:
        return f"evicted and decided about again {when} ({said}): {move.words} now"
    known = "nothing else is free for it now" if seen.offers.free else "what is free could not be read"
    return f"evicted and decided about again {when}, if something else is free for it then ({said}); {known}"
