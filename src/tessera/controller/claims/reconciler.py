"""Follows pods, templates and claims, and does what the plan says: level-triggered, so a restart loses nothing.

What is written: templates, their marks, and the records and events of pods. Every write may be repeated.
"""

import logging
from collections.abc import Callable, Iterable
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from tessera.controller.claims.plan import Action, Make, Mark, Remove, plan
from tessera.controller.claims.state import (
    MANAGED_LABEL,
    MANAGER,
    TEMPLATES,
    UNUSED_ANNOTATION,
    ClaimState,
    FollowedPod,
    PodsClaim,
    Record,
    Template,
)
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import Reconciler, ReconcilerParts
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.core.dra.slices import API_VERSION
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, Alternatives
from tessera.core.requests.record import RECORD_ANNOTATION, recorded
from tessera.core.resources import short
from tessera.kube.clock import Clock, Once, Retries, first_of
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.event_recorder import About, Event, Recorder
from tessera.kube.rest.client import Client, path_of
from tessera.kube.view.lease import CLAIMS
from tessera.kube.watch.table import RESOURCE_CLAIMS, UNFINISHED_PODS, Key, TableEntry, entry_by_key
from tessera.protocol.dra.objects import template_spec
from tessera.protocol.kubernetes.objects import decoder, moment

log = logging.getLogger(__name__)

# seconds until the same may be written again: the watch brings what was written, and what others wrote since
_SEEN_AFTER: Final = 1.0
# seconds until the controller looks again at a template of that name that it did not make
_FOREIGN_SECONDS: Final = 120.0
# seconds until the log tells again of pods that are refused in the same namespace for the same reason
_QUIET_SECONDS: Final = 600.0
_TERMINATING: Final = "NamespaceTerminating"  # corev1.NamespaceTerminatingCause

_decode: Final = decoder(dict[str, Any])


class Writes:
    """Carries out what is planned."""

    def __init__(self, client: Client, recorder: Recorder, metrics: ControllerMetrics) -> None:
        self._client = client
        self._recorder = recorder
        self._metrics = metrics

    async def carry_out(self, action: Action) -> float:
        """Do it; for how many seconds nothing more is to be done about it."""
        match action:
            case Make():
                return await self._make(action)
            case Mark():
                await self._mark(action)
            case Remove():
                await self._remove(action.template)
            case Record():
                await self._record(action)
        return _SEEN_AFTER

    def refused(self, action: Action, error: ApiError) -> None:
        """Tell a pod's owner why its template is not there, such as a quota; not in a namespace that is being deleted."""
        if isinstance(action, Make) and _TERMINATING not in error.causes:
            self._warn(action.pod, f"ResourceClaimTemplate {action.key.name} cannot be made: {error.message}")

    def refuse(self, pod: FollowedPod, why: str) -> None:
        """Say on a pod that the controller makes no template for it."""
        self._warn(
            pod,
            f"the controller makes no ResourceClaimTemplate for this pod: {why}. Delete the pod: its workload creates it again, "
            "and the webhook decides again. Create a pod without a workload again yourself, as you first wrote it.",
        )

    def report(self, pod: FollowedPod) -> None:
        """Say on a pod what the webhook gave it in place of its request."""
        gets = _gets((short(asked), short(given)) for asked, given in recorded(pod.record))
        self._recorder.record(Event(_about(pod), "GPUFallback", f"the webhook gave it {gets}"))

    async def _make(self, make: Make) -> float:
        namespace, name = make.key
        alternatives = make.pod.alternatives
        if alternatives is None:
            return _SEEN_AFTER
        document = {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {MANAGED_LABEL: MANAGER},
                "annotations": {ALTERNATIVES_ANNOTATION: str(alternatives)},
            },
            "spec": template_spec(alternatives),
        }
        try:
            await self._client.create(_templates(namespace), document)
        except ApiError as error:
            if not error.is_conflict:
                raise
            await self._compare(make, alternatives)
            return _FOREIGN_SECONDS
        self._metrics.writes.add("make")
        log.info("template %s/%s made: %s", namespace, name, alternatives)
        return _SEEN_AFTER

    async def _compare(self, make: Make, alternatives: Alternatives) -> None:
        """There is a template of that name without the controller's label: where it says something else, its maker must remove it."""
        namespace, name = make.key
        there = _decode(await self._client.get(_templates(namespace, name))).get("spec")
        if not isinstance(there, dict) or there.get("spec") != template_spec(alternatives)["spec"]:
            log.warning(
                "template %s/%s was not made by the controller and asks for something else", *make.key
            )
            text = (
                f"ResourceClaimTemplate {name} was not made by Tessera and asks for something else: remove it"
            )
            self._warn(make.pod, text)

    async def _mark(self, mark: Mark) -> None:
        since = mark.since and moment(mark.since)
        metadata = {**_version(mark.template), "annotations": {UNUSED_ANNOTATION: since}}
        await self._client.patch(_templates(*mark.key), {"metadata": metadata})
        self._metrics.writes.add("mark")

    async def _remove(self, template: Template) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": _version(template)}
        await self._client.delete(_templates(*template.key), body=options)
        self._metrics.writes.add("remove")
        log.info("template %s/%s removed", *template.key)

    async def _record(self, record: Record) -> None:
        pod = record.pod
        body = {"metadata": {"uid": pod.uid, "annotations": {RECORD_ANNOTATION: record.text}}}
        await self._client.patch(path_of("v1", "pods", namespace=pod.key.namespace, name=pod.key.name), body)
        self._metrics.writes.add("record")
        gets = _gets(record.taken)
        message = f"the scheduler gave {gets}: the first that was free"
        self._recorder.record(Event(_about(pod), "GPUFallback", message))
        for asked, given in record.taken:
            self._metrics.fell_back(asked, given)
        log.info("pod %s/%s gets %s", *pod.key, gets)

    def _warn(self, pod: FollowedPod, message: str) -> None:
        self._recorder.record(Event(_about(pod), "GPUClaimTemplate", message, "Warning"))


def _about(pod: FollowedPod) -> About:
    return About("v1", "Pod", pod.key.name, pod.key.namespace, pod.uid)


def _gets(taken: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{given} in place of {asked}" for asked, given in taken)


def _version(template: Template) -> dict[str, str]:
    """What a write asks for, so that it changes no other template of that name, nor a later version."""
    return {"uid": template.uid, "resourceVersion": template.version}


def _templates(namespace: str, name: str | None = None) -> str:
    return path_of(API_VERSION, "resourceclaimtemplates", namespace=namespace, name=name)


class RefusalLog:
    """Logs the pods that the controller makes no template for.

    One line tells of all that have the same namespace and reason, once in ten minutes: any tenant can make thousands of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._waiting: dict[tuple[str, str], tuple[str, int]] = {}  # the name of the first, and how many more
        self._once = Once(clock.now, _QUIET_SECONDS)

    def add(self, pod: Key, why: str) -> None:
        first, more = self._waiting.get((pod.namespace, why), (pod.name, -1))
        self._waiting[pod.namespace, why] = first, more + 1

    def write(self) -> None:
        """Log those whose namespace and reason were not logged lately."""
        self._once.forget_old()
        for group in [group for group in self._waiting if self._once.begin("", group)]:
            (namespace, why), (first, more) = group, self._waiting.pop(group)
            rest = f" (nor for {more} more of this namespace)" if more else ""
            text = "pod %s/%s: %s, so the controller makes no template for it%s"
            log.warning(text, namespace, first, why, rest)


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
        read: Callable[[bytes], T | None],
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
