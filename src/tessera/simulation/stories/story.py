"""What a story is: steps, each with how it is played and what must come of it. `table` has the stories."""

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tessera.core.devices.capacity import Usage, Usages
from tessera.kube.errors import ApiError
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.protocol.mig.miglayout import DRY_RUN
from tessera.protocol.mig.rollouts import Result
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories import scenes
from tessera.simulation.stories.pods import Counts, Ending, Rejected, pod_wrong, refusal_wrong
from tessera.simulation.stories.scenes import PodEnded, Scene
from tessera.simulation.stories.stage import Stage, offered


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster has exactly these nodes, which offer this."""

    offers: Mapping[str, Counts]  # node (a name of `nodes.yaml`) → devices

    async def play(self, stage: Stage) -> Scene:
        await stage.clear()
        await stage.backstage.have(self.offers)
        resources = {resource for counts in self.offers.values() for resource in counts}

        async def observe() -> scenes.NodesCame:
            found = await stage.offers(self.offers, resources)
            return scenes.NodesCame(found, wrong=tuple(_offers_wrong(self.offers, found)))

        came = await stage.until(observe, _is_right)
        await stage.backstage.settled()
        return came


@dataclass(frozen=True, slots=True)
class Annotate:
    """The operator annotates the namespace, until the story is over."""

    key: str
    value: str

    async def play(self, stage: Stage) -> Scene:
        await stage.annotate_namespace(self.key, self.value)
        await stage.backstage.settled()
        return scenes.NamespaceAnnotated(stage.namespace, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Submit:
    """A user creates a pod."""

    pod: Document
    ends: Ending

    async def play(self, stage: Stage) -> PodEnded:
        try:
            warnings = await stage.create(self.pod)
        except ApiError as error:
            wrong = refusal_wrong(self.ends, error.message)
            return PodEnded(self.pod, refusal=error.message, wrong=wrong)
        return await _ended(self.pod, self.ends, stage, warnings)


@dataclass(frozen=True, slots=True)
class SubmitMany:
    """A user creates pods that are all alike, one after the other."""

    submits: tuple[Submit, ...]

    async def play(self, stage: Stage) -> Scene:
        ended = [await one.play(stage) for one in self.submits]
        return scenes.ManyEnded(tuple(ended), wrong=tuple(each for one in ended for each in one.wrong))


@dataclass(frozen=True, slots=True)
class Delete:
    """A pod ends, and what that does to another one."""

    name: str
    then: tuple[str, Ending] | None = None

    async def play(self, stage: Stage) -> Scene:
        await stage.delete(self.name)
        if self.then is None:
            return scenes.PodDeleted(self.name)
        name, ends = self.then
        then = await _ended(stage.made[name], ends, stage)
        return scenes.PodDeleted(self.name, then, wrong=then.wrong)


@dataclass(frozen=True, slots=True)
class Relayout:
    """The operator changes a node's layout (or a pod ends that kept one from changing), and what becomes of it."""

    node: str
    layout: str | None  # None: the operator changes nothing, and the layout that was pending goes on
    state: str
    offers: Counts
    reason: str = ""  # words in the reason that the node gives

    async def play(self, stage: Stage) -> Scene:
        before = (await stage.offers([self.node]))[self.node]
        if self.layout is not None:
            await stage.annotate(self.node, RUNAI_CONFIG, self.layout)

        async def observe() -> scenes.LayoutChanged:
            inventory = await stage.inventory()
            gpus, found = inventory.gpus[self.node], offered(inventory.capacity[self.node])
            counts = {resource: found.get(resource, 0) for resource in self.offers}
            wrong = list(_offers_wrong({self.node: self.offers}, {self.node: counts}))
            if gpus.state != self.state:
                wrong.append(f"expected the layout to be {self.state}, got {gpus.state or 'nothing'}")
            if self.reason not in gpus.reason:
                wrong.append(f'expected the reason to name {self.reason}, got "{gpus.reason}"')
            return scenes.LayoutChanged(
                self.node, self.layout, before, counts, gpus.state, gpus.reason, wrong=tuple(wrong)
            )

        changed = await stage.until(observe, _is_right)
        await stage.backstage.settled()
        return changed


@dataclass(frozen=True, slots=True)
class DryRun:
    """The operator creates a MigLayout whose layouts follow demand; its autopilot says what it would do, and changes nothing."""

    layout: Document
    serves: Counts  # profile → devices that the plan makes room for
    offers: Mapping[str, Counts]  # what the nodes have, still

    async def play(self, stage: Stage) -> Scene:
        await stage.keep(self.layout)

        async def observe() -> scenes.RecutsPlanned:
            status = (await stage.layout(self.layout["metadata"]["name"])).autopilot
            served = _summed(one.serves for one in status.recuts)
            wrong = [] if served == self.serves else [f"expected a plan for {self.serves}, got {served}"]
            if not status.dry_run:
                wrong.append("expected a dry run")
            wrong += _offers_wrong(self.offers, await stage.offers(self.offers))
            return scenes.RecutsPlanned(self.layout, status.summary, tuple(status.recuts), wrong=tuple(wrong))

        return await stage.until(observe, _is_right)


@dataclass(frozen=True, slots=True)
class Act:
    """The operator lets the autopilot act, and what that does to pods that wait."""

    name: str
    node: str
    makes: Counts  # devices that the node has then, at least: what else a card is cut into, the autopilot decides
    then: tuple[tuple[str, Ending], ...]

    async def play(self, stage: Stage) -> Scene:
        before = (await stage.offers([self.node]))[self.node]
        await stage.change_layout(self.name, {"autopilot": {"dryRun": False}})

        async def observe() -> scenes.RecutsDone:
            status, after = (
                (await stage.layout(self.name)).autopilot,
                (await stage.offers([self.node]))[self.node],
            )
            done = tuple(one for one in status.history if one.result != DRY_RUN)
            wrong = [
                f"{self.node}: expected {number} × {name} at least, got {after.get(name, 0)}"
                for name, number in self.makes.items()
                if after.get(name, 0) < number
            ]
            wrong += [
                f"{one.node}, card {one.card}: {one.result}" for one in done if one.result != Result.DONE
            ]
            return scenes.RecutsDone(self.name, done, before, after, (), wrong=tuple(wrong))

        acted = await stage.until(observe, lambda scene: bool(scene.done) and _is_right(scene))
        await stage.backstage.settled()
        then = [await _ended(stage.made[name], ends, stage) for name, ends in self.then]
        wrong = tuple(each for one in then for each in one.wrong)
        return replace(acted, then=tuple(then), wrong=acted.wrong + wrong)


@dataclass(frozen=True, slots=True)
class Measure:
    """What the nodes have, and how much of it is taken."""

    uses: Mapping[str, Usages]

    async def play(self, stage: Stage) -> Scene:
        inventory = await stage.inventory(resource for uses in self.uses.values() for resource in uses)
        found = {
            node: {resource: use for resource, use in inventory.capacity.usage(node).items() if use}
            for node in self.uses
        }
        wrong = tuple(
            f"{node}: {resource}: expected {_taken(use)}, got {_taken(has)}"
            for node, uses in self.uses.items()
            for resource, use in uses.items()
            if (has := found[node].get(resource, Usage())) != use
        )
        gpus = {name: inventory.gpus[name] for name in self.uses if name in inventory.gpus}
        return scenes.Measured(found, gpus, frozenset().union(*inventory.held.values()), wrong=wrong)


Step = Nodes | Annotate | Submit | SubmitMany | Delete | Relayout | DryRun | Act | Measure


@dataclass(frozen=True, slots=True)
class Story:
    """Steps, one after the other, and what they are about."""

    name: str
    title: str
    text: str
    steps: tuple[Step, ...]

    async def play(self, stage: Stage) -> AsyncGenerator[tuple[Step, Scene]]:
        """Play the steps; what came of each, with what is wrong about it."""
        try:
            for step in self.steps:
                yield step, await step.play(stage)
        finally:
            await stage.clear()


async def _ended(written: Document, ends: Ending, stage: Stage, warnings: tuple[str, ...] = ()) -> PodEnded:
    """Wait until a pod has ended as expected, or the timeout is over; not for a pod that should have been refused."""
    name, namespace = written["metadata"]["name"], stage.namespace

    async def observe() -> PodEnded:
        pod = await stage.pod(name)
        claimed = await stage.claimed(pod)
        wrong = pod_wrong(ends, pod, claimed, kubelets=stage.kubelets)
        return PodEnded(written, pod, warnings=warnings, claimed=claimed, wrong=wrong)

    ended = await stage.until(observe, lambda one: isinstance(ends, Rejected) or not one.wrong)
    seen = await stage.backstage.seen(namespace, name) if ended.phase == "Running" else {}
    return replace(ended, reason=stage.backstage.reason(namespace, name), seen=seen)


def _is_right(scene: Scene) -> bool:
    return not scene.wrong


def _summed(some: Iterable[Counts]) -> dict[str, int]:
    found = Counter[str]()
    for one in some:
        found.update(one)
    return dict(found)


def _taken(use: Usage) -> str:
    return f"{use.allocated} of {use.allocatable} taken"


def _offers_wrong(wanted: Mapping[str, Counts], found: Mapping[str, Counts]) -> Iterator[str]:
    """Resources of which nodes have another number; what a node does not name counts as none."""
    for node, counts in wanted.items():
        has = found.get(node, {})
        for name in dict.fromkeys((*counts, *has)):
            if counts.get(name, 0) != has.get(name, 0):
                yield f"{node}: expected {name} {counts.get(name, 0)}, got {has.get(name, 0)}"
