"""Playing a story: step by step, and what came of each, compared with how it was to end."""

from collections.abc import AsyncGenerator, Mapping

from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.record import RECORD_ANNOTATION
from tessera.kube.errors import ApiError
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE, RUNAI_CONFIG
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.comparing import counts_wrong, pod_wrong, refusal_wrong
from tessera.simulation.stories.scenes import (
    LayoutChanged,
    ManyEnded,
    Measured,
    NamespaceAnnotated,
    NodesCame,
    PodDeleted,
    PodEnded,
    Scene,
    annotations_of,
    first_sentence,
    held_ids,
    runs,
    why_waiting,
)
from tessera.simulation.stories.stage import Stage
from tessera.simulation.stories.story import (
    Annotate,
    Capacity,
    Counts,
    Delete,
    Ending,
    Nodes,
    Refused,
    Relayout,
    Step,
    Story,
    Submit,
    SubmitMany,
)


async def play(story: Story, stage: Stage) -> AsyncGenerator[tuple[Step, Scene]]:
    """Play a story; what came of each step, with what is wrong about it."""
    try:
        for step in story.steps:
            yield step, await _play(step, stage)
    finally:
        await stage.clear()


async def _play(step: Step, stage: Stage) -> Scene:
    match step:
        case Nodes():
            return await _nodes(step, stage)
        case Annotate():
            return await _annotate(step, stage)
        case Submit():
            return await _submit(step, stage)
        case SubmitMany():
            return await _submit_many(step, stage)
        case Delete():
            return await _delete(step, stage)
        case Relayout():
            return await _relayout(step, stage)
        case Capacity():
            return await _capacity(step, stage)


async def _nodes(step: Nodes, stage: Stage) -> NodesCame:
    await stage.clear()
    await stage.backstage.have(step.offers)
    others = {resource for counts in step.offers.values() for resource in counts}

    async def look() -> dict[str, dict[str, int]]:
        return await stage.offers(step.offers, others)

    def compare(found: Mapping[str, Counts]) -> tuple[str, ...]:
        return tuple(
            wrong
            for node, counts in step.offers.items()
            for wrong in counts_wrong(node, counts, found.get(node, {}))
        )

    found = await stage.until(look, lambda found: not compare(found))
    await stage.backstage.settled()
    return NodesCame(found, compare(found))


async def _annotate(step: Annotate, stage: Stage) -> NamespaceAnnotated:
    await stage.annotate_namespace(step.key, step.value)
    await stage.backstage.settled()
    return NamespaceAnnotated(stage.namespace, step.key, step.value)


async def _submit(step: Submit, stage: Stage) -> PodEnded:
    name = step.pod["metadata"]["name"]
    try:
        warnings = await stage.create(step.pod)
    except ApiError as error:
        wrong = refusal_wrong(step.ends, error.message)
        return PodEnded(step.pod, refusal=error.message, wrong=wrong)
    if isinstance(step.ends, Refused):
        pod = await stage.pod(name)
        return PodEnded(
            step.pod, pod, warnings=warnings, wrong=("expected the pod to be refused, but it was admitted",)
        )
    return await _settle(step.pod, step.ends, stage, warnings)


async def _settle(written: Document, ends: Ending, stage: Stage, warnings: tuple[str, ...] = ()) -> PodEnded:
    """Wait until a pod has ended as it is to, or has had its time."""
    name = written["metadata"]["name"]

    async def look() -> tuple[Document, Mapping[str, Counts]]:
        pod = await stage.pod(name)
        return pod, await stage.claimed(pod)

    def wrong(pod: Document, claimed: Mapping[str, Counts]) -> tuple[str, ...]:
        return pod_wrong(ends, pod, claimed, kubelets=stage.kubelets)

    pod, claimed = await stage.until(look, lambda found: not wrong(*found))
    namespace = stage.namespace
    runs = pod["status"].get("phase") == "Running"
    seen = await stage.backstage.seen(namespace, name) if runs else {}
    reason = stage.backstage.reason(namespace, name)
    return PodEnded(written, pod, "", reason, warnings, seen, claimed, wrong(pod, claimed))


async def _submit_many(step: SubmitMany, stage: Stage) -> ManyEnded:
    warnings = [await stage.create(pod) for pod in step.pods]

    async def look() -> list[Document]:
        return [await stage.pod(pod["metadata"]["name"]) for pod in step.pods]

    def compare(pods: list[Document]) -> tuple[str, ...]:
        running = sum(runs(pod, kubelets=stage.kubelets) for pod in pods)
        reasons = {why_waiting(pod) for pod in pods if not runs(pod, kubelets=stage.kubelets)}
        records = {annotations_of(pod).get(RECORD_ANNOTATION, "") for pod in pods}
        wrong = []
        if running != step.running:
            wrong.append(f"expected {step.running} to run, but {running} do")
        if {first_sentence(reason) for reason in reasons} != {step.because}:
            wrong.append(
                f'expected the others to wait because "{step.because}", but they wait because {sorted(reasons)}'
            )
        if records != {step.fallback}:
            wrong.append(f"expected fallback {step.fallback}, got {sorted(records)}")
        return tuple(wrong)

    pods = await stage.until(look, lambda pods: not compare(pods))
    ended = tuple(
        PodEnded(written, pod, "", stage.backstage.reason(stage.namespace, pod["metadata"]["name"]), said)
        for written, pod, said in zip(step.pods, pods, warnings, strict=True)
    )
    return ManyEnded(step.pods[0], ended, compare(pods))


async def _delete(step: Delete, stage: Stage) -> PodDeleted:
    await stage.delete(step.name)
    if step.then is None:
        return PodDeleted(step.name)
    name, ends = step.then
    then = await _settle(stage.made[name], ends, stage)
    return PodDeleted(step.name, then, then.wrong)


async def _relayout(step: Relayout, stage: Stage) -> LayoutChanged:
    before = (await stage.offers([step.node]))[step.node]
    if step.layout is not None:
        await stage.annotate(step.node, RUNAI_CONFIG, step.layout)

    def observed(node: Document) -> tuple[str, str, dict[str, int]]:
        metadata, allocatable = node["metadata"], node["status"].get("allocatable", {})
        state = str((metadata.get("labels") or {}).get(CONFIG_STATE, ""))
        counts = {
            resource: int(Quantity.parse(allocatable.get(resource, "0")).value) for resource in step.offers
        }
        return state, str(annotations_of(node).get(CONFIG_REASON, "")), counts

    def compare(node: Document) -> tuple[str, ...]:
        state, reason, counts = observed(node)
        wrong = (
            []
            if state == step.state
            else [f"expected the layout to be {step.state}, got {state or 'nothing'}"]
        )
        if step.reason not in reason:
            wrong.append(f'expected the reason to name {step.reason}, got "{reason}"')
        return (*wrong, *counts_wrong(step.node, step.offers, counts))

    node = await stage.until(lambda: stage.node(step.node), lambda node: not compare(node))
    await stage.backstage.settled()
    state, reason, counts = observed(node)
    return LayoutChanged(step.node, step.layout, before, counts, state, reason, compare(node))


async def _capacity(step: Capacity, stage: Stage) -> Measured:
    resources = {resource for uses in step.uses.values() for resource in uses}
    found = await stage.uses(step.uses, sorted(resources))
    wrong = tuple(
        f"{node}: {resource}: expected {use}, got {found.get(node, {}).get(resource)}"
        for node, uses in step.uses.items()
        for resource, use in uses.items()
        if found.get(node, {}).get(resource) != use
    )
    nodes = {name: await stage.node(name) for name in step.uses}
    pods = [await stage.pod(name) for name in stage.made]
    return Measured(found, nodes, frozenset(one for pod in pods for one in held_ids(pod)), wrong)
