"""What the controller counts, and shows at a scrape."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tessera import __version__
from tessera.core.autopilot.values import Why
from tessera.core.mig.geometry import is_known
from tessera.serving.metrics import Counts, Family, gauge, labelled, process_metrics

_PREFIX: Final = "tessera_controller"


class ControllerMetrics:
    """Counters of the controller's work."""

    def __init__(self) -> None:
        self.leads: Callable[[], bool] = lambda: False
        self.runs: Callable[[], Mapping[str, bool]] = dict  # by reconciler
        self.bridged: Callable[[], int] = lambda: 0
        self.refused: Callable[[], int] = lambda: 0
        self.templates: Callable[[], int] = lambda: 0
        self.events: Callable[[], Mapping[tuple[str, ...], int]] = dict  # by what became of them
        self.webhook_seen: Callable[[], bool] | None = None  # where patience is configured
        self.patience_states: Mapping[str, int] = {}
        self.doubted_namespaces: Callable[[], int] = lambda: 0
        results = [("evicted",), ("changed",), ("refused",), ("failed",)]
        self.evictions = Counts("result", known=results)
        self.writes = Counts("what", known=[("make",), ("mark",), ("remove",), ("record",)])
        self._fallbacks = Counts("from", "to")
        self.failures = Counts("what")
        self.layout_nodes: Callable[[], Mapping[tuple[str, ...], int]] = dict  # by state
        self.foreign_records: Callable[[], int] = lambda: 0  # nodes
        self.rollouts = Counts("result")
        self.blocked_pods: Callable[[], Mapping[tuple[str], int]] = dict  # by why
        self.recuts = Counts("result", known=[("done",), ("failed",), ("dryrun",)])
        self.wanted: Callable[[], Mapping[tuple[str, str], int]] = dict  # devices by kind and profile
        self.refused_devices: Callable[[], Mapping[tuple[str], int]] = dict  # by why
        self.proposed: Callable[[], int] = lambda: 0  # cards
        self.unused_recuts: Callable[[], Mapping[tuple[str], int]] = dict  # cards by namespace

    def fell_back(self, asked: str, given: str) -> None:
        """A claim was allocated with another alternative than what was asked.

        Types that no card has are counted together: a pod's author can write any.
        """
        self._fallbacks.add(*(one if one == "gpu" or is_known(one) else "other" for one in (asked, given)))

    def families(self) -> Iterator[Family]:
        yield gauge(f"{_PREFIX}_leader", "1 while this process leads.", int(self.leads()))
        text, runs = "1 while this process leads and runs the reconciler.", self.runs()
        at_work = {(name,): int(does) for name, does in runs.items()}
        yield labelled(f"{_PREFIX}_reconciler", "gauge", text, ("name",), at_work)
        yield gauge(f"{_PREFIX}_bridged_pods", "Pods whose request is a claim of ours.", self.bridged())
        text = "Pods that the controller makes no template for: their annotations or their ticket are not the webhook's."
        yield gauge(f"{_PREFIX}_refused_pods", text, self.refused())
        yield gauge(f"{_PREFIX}_templates", "ResourceClaimTemplates that there are.", self.templates())
        yield self.writes.family(f"{_PREFIX}_writes_total", "What was written, by what it was for.")
        text = "Claims served with another type than what was asked."
        yield self._fallbacks.family(f"{_PREFIX}_fallbacks_total", text)
        if self.webhook_seen is not None:
            yield from self._of_patience(self.webhook_seen())
        yield self.failures.family(f"{_PREFIX}_failures_total", "What went wrong and is tried again.")
        text = "Nodes of MigLayouts, by how they stand to their layout."
        yield labelled(f"{_PREFIX}_layout_nodes", "gauge", text, ("state",), self.layout_nodes())
        text = "Nodes with the record of a rollout that has no slot of a MigLayout."
        yield gauge(f"{_PREFIX}_foreign_records", text, self.foreign_records())
        text = "Rollouts of layouts to nodes that ended, by how."
        yield self.rollouts.family(f"{_PREFIX}_layout_rollouts_total", text)
        yield from self._of_autopilot()
        text = "Events by what became of them."
        yield labelled(f"{_PREFIX}_events_total", "counter", text, ("result",), self.events())
        text, version = "The version that runs.", {(__version__,): 1}
        yield labelled(f"{_PREFIX}_build_info", "gauge", text, ("version",), version)
        yield from process_metrics()

    def _of_autopilot(self) -> Iterator[Family]:
        text = "Cards that the autopilot re-cut, or would have, by what became of it."
        yield self.recuts.family(f"{_PREFIX}_recuts_total", text)
        text = "Pods that wait for something else than a device, by why: they hold nothing, and nothing is cut for them."
        yield labelled(f"{_PREFIX}_autopilot_blocked_pods", "gauge", text, ("reason",), self.blocked_pods())
        text = "Devices that pods of MigLayouts in mode Auto want and do not have: they wait, fell back, or were rejected."
        wanted: Counter[tuple[str, str]] = Counter()
        for (kind, profile), number in self.wanted().items():
            wanted[kind, profile if is_known(profile) else "other"] += number
        yield labelled(f"{_PREFIX}_autopilot_wanted", "gauge", text, ("kind", "profile"), wanted)
        text = "Of these, devices that the autopilot makes no room for, by why."
        yield labelled(
            f"{_PREFIX}_autopilot_refused",
            "gauge",
            text,
            ("why",),
            {(one,): 0 for one in Why} | {**self.refused_devices()},
        )
        text = "Cards that the autopilot would re-cut now."
        yield gauge(f"{_PREFIX}_autopilot_proposed", text, self.proposed())
        text = "Cards that the autopilot re-cut within the last hour for pods of a namespace, and none of its pods took, by namespace."
        name = f"{_PREFIX}_autopilot_unused_recuts"
        yield labelled(name, "gauge", text, ("namespace",), self.unused_recuts())

    def _of_patience(self, webhook_seen: bool) -> Iterator[Family]:
        text = "Evictions of pods that waited, by what became of them."
        yield self.evictions.family(f"{_PREFIX}_patience_evictions_total", text)
        text = "Pods that wait for longer than their patience, by why they are not evicted now."
        every = {"later": 0, "nothing_free": 0, **self.patience_states}  # these are there from the start
        states = {(state,): count for state, count in sorted(every.items())}
        yield labelled(f"{_PREFIX}_patience_pods", "gauge", text, ("state",), states)
        text = "1 while the webhook has ready endpoints: else nothing is evicted."
        yield gauge(f"{_PREFIX}_patience_webhook_seen", text, int(webhook_seen))
        text = "Namespaces in which a pod came in the place of an evicted one without the webhook's decision."
        yield gauge(f"{_PREFIX}_patience_doubted_namespaces", text, self.doubted_namespaces())
