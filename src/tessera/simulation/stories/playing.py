"""Playing a story: step by step, and what came of each, compared with how it was to end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Final

from tessera.core.devices.capacity import Usage
from tessera.kube.errors import ApiError
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories import scenes, story
from tessera.simulation.stories.pods import pod_wrong
from tessera.simulation.stories.scenes import Scene
from tessera.simulation.stories.stage import Stage, offered
from tessera.simulation.stories.story import Counts, Ending, Refused


async def play(told: story.Story, stage: Stage) -> AsyncGenerator[tuple[story.Step, Scene]]:
    """Play a story; what came of each step, with what is wrong about it."""
    try:
        for step in told.steps:
            yield step, await _PLAYERS[type(step)](step, stage)
    finally:
        await stage.clear()


async def _nodes(step: story.Nodes, stage: Stage) -> Scene:
    await stage.clear()
    await stage.backstage.have(step.offers)
    resources = {resource for counts in step.offers.values() for resource in counts}

    def wrong(found: Mapping[str, Counts]) -> tuple[str, ...]:
        return tuple(
            each
            for node, counts in step.offers.items()
            for each in _counts_wrong(node, counts, found.get(node, {}))
        )

    found = await stage.until(lambda: stage.offers(step.offers, resources), lambda found: not wrong(found))
    await stage.backstage.settled()
    return scenes.NodesCame(found, wrong=wrong(found))


async def _annotate(step: story.Annotate, stage: Stage) -> Scene:
    await stage.annotate_namespace(step.key, step.value)
    await stage.backstage.settled()
    return scenes.NamespaceAnnotated(stage.namespace, step.key, step.value)


async def _submit(step: story.Submit, stage: Stage) -> scenes.PodEnded:
    try:
        warnings = await stage.create(step.pod)
    except ApiError as error:
        wrong = _refusal_wrong(step.ends, error.message)
        return scenes.PodEnded(step.pod, refusal=error.message, wrong=wrong)
    return await _settle(step.pod, step.ends, stage, warnings)


def _refusal_wrong(ends: Ending, message: str) -> tuple[str, ...]:
    if not isinstance(ends, Refused):
        return ("expected the pod to be admitted, but it was refused",)
    return tuple(f'expected the message to contain "{words}"' for words in ends.words if words not in message)


async def _settle(
    written: Document, ends: Ending, stage: Stage, warnings: tuple[str, ...] = ()
) -> scenes.PodEnded:
    """Wait until a pod has ended as it is to, or has had its time."""
    name, namespace = written["metadata"]["name"], stage.namespace

    async def look() -> tuple[Document, Mapping[str, Counts]]:
        pod = await stage.pod(name)
        return pod, await stage.claimed(pod)

    def wrong(pod: Document, claimed: Mapping[str, Counts]) -> tuple[str, ...]:
        return pod_wrong(ends, pod, claimed, kubelets=stage.kubelets)

    # a pod that should have been refused is not waited for
    pod, claimed = await stage.until(look, lambda found: isinstance(ends, Refused) or not wrong(*found))
    runs = pod["status"].get("phase") == "Running"
    return scenes.PodEnded(
        written,
        pod,
        reason=stage.backstage.reason(namespace, name),
        warnings=warnings,
        seen=await stage.backstage.seen(namespace, name) if runs else {},
        claimed=claimed,
        wrong=wrong(pod, claimed),
    )


async def _submit_many(step: story.SubmitMany, stage: Stage) -> Scene:
    ended = [await _submit(one, stage) for one in step.submits]
    return scenes.ManyEnded(tuple(ended), wrong=tuple(each for one in ended for each in one.wrong))


async def _delete(step: story.Delete, stage: Stage) -> Scene:
    await stage.delete(step.name)
    if step.then is None:
        return scenes.PodDeleted(step.name)
    name, ends = step.then
    then = await _settle(stage.made[name], ends, stage)
    return scenes.PodDeleted(step.name, then, wrong=then.wrong)


async def _relayout(step: story.Relayout, stage: Stage) -> Scene:
    before = (await stage.offers([step.node]))[step.node]
    if step.layout is not None:
        await stage.annotate(step.node, RUNAI_CONFIG, step.layout)

    async def look() -> scenes.LayoutChanged:
        inventory = await stage.inventory()
        gpus, found = inventory.gpus[step.node], offered(inventory.capacity[step.node])
        counts = {resource: found.get(resource, 0) for resource in step.offers}
        wrong = []
        if gpus.state != step.state:
            wrong.append(f"expected the layout to be {step.state}, got {gpus.state or 'nothing'}")
        if step.reason not in gpus.reason:
            wrong.append(f'expected the reason to name {step.reason}, got "{gpus.reason}"')
        wrong += _counts_wrong(step.node, step.offers, counts)
        return scenes.LayoutChanged(
            step.node, step.layout, before, counts, gpus.state, gpus.reason, wrong=tuple(wrong)
        )

    changed = await stage.until(look, lambda scene: not scene.wrong)
    await stage.backstage.settled()
    return changed


async def _measure(step: story.Measure, stage: Stage) -> Scene:
    inventory = await stage.inventory(resource for uses in step.uses.values() for resource in uses)
    found = {
        node: {resource: use for resource, use in inventory.capacity.usage(node).items() if use}
        for node in step.uses
    }
    wrong = tuple(
        f"{node}: {resource}: expected {_taken(use)}, got {_taken(has)}"
        for node, uses in step.uses.items()
        for resource, use in uses.items()
        if (has := found[node].get(resource, Usage())) != use
    )
    gpus = {name: inventory.gpus[name] for name in step.uses if name in inventory.gpus}
    return scenes.Measured(found, gpus, frozenset().union(*inventory.held.values()), wrong=wrong)


def _taken(use: Usage) -> str:
    return f"{use.allocated} of {use.allocatable} taken"


def _counts_wrong(node: str, wanted: Counts, found: Counts) -> Iterable[str]:
    """Resources of which a node has another number; what it does not name counts as none."""
    for name in dict.fromkeys((*wanted, *found)):
        if wanted.get(name, 0) != found.get(name, 0):
            yield f"{node}: expected {name} {wanted.get(name, 0)}, got {found.get(name, 0)}"


_PLAYERS: Final[Mapping[type, Callable[..., Awaitable[Scene]]]] = {
    story.Nodes: _nodes,
    story.Annotate: _annotate,
    story.Submit: _submit,
    story.SubmitMany: _submit_many,
    story.Delete: _delete,
    story.Relayout: _relayout,
    story.Measure: _measure,
}
