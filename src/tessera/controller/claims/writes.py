"""What is written: templates, their marks, and the records and events of pods. Every write may be repeated."""

import logging
from collections.abc import Iterable
from typing import Any, Final

from tessera.controller.claims.objects import MANAGED_LABEL, MANAGER, UNUSED_ANNOTATION, FollowedPod, Template
from tessera.controller.claims.plan import Action, Make, Mark, Remove
from tessera.controller.claims.state import Record
from tessera.controller.metrics import ControllerMetrics
from tessera.core.dra.slices import API_VERSION
from tessera.core.kubernetes.resources import short
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, Alternatives
from tessera.core.requests.record import RECORD_ANNOTATION, recorded
from tessera.kube.clock import Clock
from tessera.kube.errors import ApiError
from tessera.kube.events.correlator import About, Event
from tessera.kube.events.recorder import Recorder
from tessera.kube.failures import Once
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import Key
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
