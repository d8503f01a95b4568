"""Follows pods, templates and claims, and does what the plan says: level-triggered, so a restart loses nothing."""

import logging
from collections.abc import Callable, Iterable
from itertools import chain, islice
from operator import attrgetter
from typing import Final, TypeVar

from msgspec.structs import replace

from tessera.controller.claims.objects import TEMPLATES, FollowedPod, PodsClaim, Template
from tessera.controller.claims.plan import Action, plan
from tessera.controller.claims.state import ClaimState, Record
from tessera.controller.claims.writes import RefusalLog, Writes
from tessera.controller.reconciler import Reconciler, ReconcilerParts
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.kube.clock import first_of
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.failures import Once, Retries
from tessera.kube.view.lease import CLAIMS
from tessera.kube.watch.resource import RESOURCE_CLAIMS, UNFINISHED_PODS, Key
from tessera.kube.watch.table import TableEntry, entry_by_key

log = logging.getLogger(__name__)


T = TypeVar("T", FollowedPod, Template, PodsClaim)

_AT_ONCE: Final = 100  # writes of each kind before the next plan: what is new since then does not wait longer
_FIRST_RETRY: Final = 1.0  # seconds
# seconds: thousands of pods in a namespace that is being deleted, or with a quota on templates, make some ten requests a second
_LONGEST_RETRY: Final = 300.0
_RECENT: Final = 300.0  # seconds: a pod that was made before is not reported any more


class ClaimReconciler(Reconciler):
    """Makes and removes the templates of pods whose requests were converted to claims, and records what the claims got."""

    name = CLAIMS

    def __init__(self, parts: ReconcilerParts, keeper: TicketKeeper) -> None:
        super().__init__(
            parts,
            "the controller makes no claims, so the webhook converts no requests to claims (they need Kubernetes 1.34 with "
            "resource.k8s.io/v1, and the chart's ClusterRole): %s",
        )
        self.state = state = ClaimState()
        self._keeper = keeper
        self._refused = Once()  # by refused pod: its UID, once it has an Event
        self._refusals = RefusalLog(self._clock)
        self._writes = Writes(parts.client, parts.recorder, parts.metrics)
        self._retries = Retries(self._clock.now, _FIRST_RETRY, _LONGEST_RETRY)
        self.table = {
            UNFINISHED_PODS: self._entry(FollowedPod.read, state.known_pods, self._put_pod, state.remove_pod),
            TEMPLATES: self._entry(
                Template.read, lambda: state.templates, state.put_template, state.remove_template
            ),
            RESOURCE_CLAIMS: self._entry(
                PodsClaim.read, lambda: state.claims, state.put_claim, state.remove_claim
            ),
        }
        parts.follower.add(self.table)
        parts.metrics.bridged = lambda: len(state.pods)
        parts.metrics.refused = lambda: (
            sum(one.text is None for one in state.pods.values()) + sum(1 for _ in state.without_template())
        )
        parts.metrics.templates = lambda: len(state.templates)

    def lacks(self) -> str:
        """The webhook converts requests while this runs, so it must be able to serve them: templates and claims can be read."""
        return self.follower.absent(*self.table)

    async def reconcile(self) -> bool:
        """Report and refuse pods, learn the keys, and carry out some of each kind of what is planned."""
        self._report()
        await self._keeper.poll(self._fence)
        if self._keeper.keys is not None:
            self.state.use_keys(self._keeper.keys)
        return await self.carry_out()

    async def carry_out(self) -> bool:
        """Make a plan and carry out some of each kind; whether there is more. Raises when the API server is unavailable."""
        self._fence()
        self._refuse()
        groups = plan(self.state, self._clock.wall())
        due = [
            list(islice((one for one in group if self._retries.is_due(_subject(one))), _AT_ONCE))
            for group in groups
        ]
        failures: dict[str, list[str]] = {}
        for action in chain(*due):
            self._fence()
            what = type(action).__name__.lower()
            try:
                self._retries.let_be(_subject(action), await self._writes.carry_out(action))
            except Exception as error:
                # others go first, also when the API server is slow for this one only
                self._retries.put_off(_subject(action))
                if not isinstance(error, KubeError):
                    raise
                if isinstance(error, ApiError) and (error.is_conflict or error.is_not_found):
                    continue  # the object has changed or gone, or its namespace has: the watch brings that
                self._metrics.failures.add(what)
                if not isinstance(error, ApiError) or error.is_unavailable:
                    raise
                failures.setdefault(what, []).append(f"{action.key.namespace}/{action.key.name}: {error}")
                self._writes.refused(action, error)
            else:
                self._note(action)
        for what, some in failures.items():  # one line, however many there are
            more = f", and {len(some) - 1} more" if len(some) > 1 else ""
            log.warning("%s failed, will try again: %s%s", what, some[0], more)
        return any(len(some) == _AT_ONCE for some in due)

    def _report(self) -> None:
        """Report the pods whose requests the webhook has replaced, each once: a process that leads now reports the last minutes'."""
        since = self._clock.wall() - _RECENT
        for pod in self.state.unreported.values():
            if pod.created >= since:
                self._writes.report(pod)
        self.state.unreported.clear()

    def _refuse(self) -> None:
        """Tell the pods that wait with no right ticket, each once."""
        self._refused.keep(self.state.refused)
        for pod, why in self.state.without_template():
            if self._refused.begin(pod.uid, pod.key):
                self._writes.refuse(pod, why)
                self._refusals.add(pod.key, why)
        self._refusals.write()

    def _note(self, action: Action) -> None:
        """A record is written once, however slow the watch is; everything else is as the watch says."""
        if isinstance(action, Record):
            known = self.state.pods.get(action.key)
            if known is not None and known.uid == action.pod.uid:
                self.state.put_pod(replace(known, record=action.text))

    async def rest(self, _: float) -> None:
        """Wait until something has changed, what failed is due again, or for the keeper's next poll."""
        self._retries.forget_old()
        retry, poll = self._retries.next(), self._keeper.wait
        if retry is None:
            await first_of(self._changed.wait(), timeout=poll)
        else:
            await first_of(self._clock.sleep(min(retry, poll)), self._changed.wait())

    # what is seen

    def _entry(
        self,
        read: Callable[[bytes], T],
        known: Callable[[], Iterable[Key]],
        put: Callable[[T], bool],
        remove: Callable[[Key], bool],
    ) -> TableEntry[T]:
        """Where objects of one kind go; `put` and `remove` answer whether that changed anything."""
        entry = entry_by_key(read, put, remove, key=attrgetter("key"), known=known)
        return entry.reporting(self._changed.set)

    def _put_pod(self, pod: FollowedPod) -> bool:
        if pod.template and pod.text is None and pod.key not in self.state.pods:
            self._refusals.add(pod.key, "its template's name does not match its annotation")
        return self.state.put_pod(pod, since=self._clock.wall() - _RECENT)


def _subject(action: Action) -> tuple[type[Action], Key]:
    return type(action), action.key
