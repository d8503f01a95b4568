"""The text of a story for a person: what came of each step, in a few lines."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tessera.cli.common.output import Style, table
from tessera.cli.mig.tiles import draw_cards
from tessera.core.resources import is_whole_or_mig, short
from tessera.diagnosis.layouts.words import card_words
from tessera.protocol.mig.nodes import GpuNode, present_layout
from tessera.protocol.mig.rollouts import Result
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.pods import Counts
from tessera.simulation.stories.scenes import (
    LayoutChanged,
    ManyEnded,
    Measured,
    NamespaceAnnotated,
    NodesCame,
    PodDeleted,
    PodEnded,
    RecutsDone,
    RecutsPlanned,
    Scene,
)
from tessera.simulation.stories.story import Story

_Line = tuple[str, str, Callable[[str], str] | None]  # label, text, colour

_INDENT: Final = "  "
_LABEL: Final = 10  # columns


def heading(story: Story, style: Style, width: int) -> Iterator[str]:
    rule = "─" * max(2, width - len(story.title) - len(story.name) - 8)
    yield f"{style.bold(f'── {story.title}')} {style.dim(f'{rule} {story.name} ──')}"
    yield from textwrap.wrap(story.text, width)
    yield ""


def narrate(scene: Scene, style: Style, width: int) -> Iterator[str]:
    """What came of one step, and what is wrong about it."""
    for label, text, paint in _NARRATED[type(scene)](scene, style):
        yield from _block(label, text, paint, width)
    for error in scene.wrong:
        yield from _block("✗", error, style.bad, width)


def _nodes(scene: NodesCame, _: Style) -> Iterator[_Line]:
    rows: list[tuple[str, ...]] = [(name, counted(has) or "no GPU") for name, has in scene.offers.items()]
    for at, line in enumerate(table(rows)):
        yield "offered" if at == 0 else "", line, None


def _annotated(scene: NamespaceAnnotated, _: Style) -> Iterator[_Line]:
    yield "annotated", f"namespace {scene.namespace}: {scene.key}: {scene.value}", None


def _pod(scene: PodEnded, style: Style) -> Iterator[_Line]:
    yield "asked", f"pod {_name(scene.asked)}: {asked(scene.asked)}", None
    yield from _ended(scene, style)


def _many(scene: ManyEnded, style: Style) -> Iterator[_Line]:
    first, last = (_name(scene.ended[at].asked) for at in (0, -1))
    yield "asked", f"{len(scene.ended)} pods, {first} to {last}, each: {asked(scene.ended[0].asked)}", None
    yield "decided", _decision(scene.ended[0]), style.good
    for at, one in enumerate(one for one in scene.ended if one.node):
        yield "" if at else "landed", f"{_name(one.asked)} on {one.node}, running", None
    for at, one in enumerate(one for one in scene.ended if not one.node):
        yield "" if at else "waits", f"{_name(one.asked)}: {one.waiting}", style.note


def _deleted(scene: PodDeleted, style: Style) -> Iterator[_Line]:
    yield "ended", f"pod {scene.name}", None
    if scene.then is not None:
        yield "then", f"pod {_name(scene.then.asked)}: {asked(scene.then.asked)}", None
        yield from _allocated(scene.then, style)
        yield from _landed(scene.then, style)


def _layout(scene: LayoutChanged, style: Style) -> Iterator[_Line]:
    if scene.asked is not None:
        yield "layout", f"{scene.node} is to be {scene.asked}", None
    paint = {"success": style.good, "failed": style.bad}.get(scene.state, style.note)
    yield "became", scene.state + (f": {scene.reason}" if scene.reason else ""), paint
    yield "offers", _change(scene.before, scene.after), None


def _planned(scene: RecutsPlanned, style: Style) -> Iterator[_Line]:
    spec = scene.layout["spec"]
    where = ", ".join(f"{key}: {value}" for key, value in spec["nodeSelector"].items())
    yield "created", f"MigLayout {_name(scene.layout)}: mode {spec['mode']}, for nodes with {where}", None
    yield "plans", scene.summary, style.note
    for one in scene.recuts:
        yield "", card_words(one), None
        yield "because", one.reason, None


def _recut(scene: RecutsDone, style: Style) -> Iterator[_Line]:
    yield "allowed", f"MigLayout {scene.name} may act: dryRun: false", None
    for one in scene.done:
        paint = style.good if one.result == Result.DONE else style.bad
        yield "cut", f"{card_words(one)}: {one.result.lower()}", paint
    yield "offers", _change(scene.before, scene.after), None
    for pod in scene.then:
        yield "then", f"pod {_name(pod.asked)}: {asked(pod.asked)}", None
        yield from _landed(pod, style)


def _measured(scene: Measured, style: Style) -> Iterator[_Line]:
    rows: list[tuple[str, ...]] = [("node", "resource", "allocatable", "allocated", "available")]
    for name, uses in scene.uses.items():
        rows += [
            (name, resource, *map(str, (use.allocatable, use.allocated, use.available)))
            for resource, use in uses.items()
        ] or [(name, "no GPU", "", "", "")]
    for at, line in enumerate(table(rows)):
        yield "" if at else "capacity", line, None if at else style.bold
    for name, gpus in scene.gpus.items():
        if drawn := list(_mosaic(gpus, scene.held, style)):
            yield "cards", f"of {name}:", None
            yield from (("", line, _as_it_is) for line in drawn)


def _mosaic(gpus: GpuNode, held: frozenset[str], style: Style) -> Iterator[str]:
    layout = present_layout(gpus)
    if layout is None:
        return
    slots = (slot for slots in layout.slots(gpus.strategy).values() for slot in slots)
    yield from draw_cards(
        layout.cards, style, frozenset(slot for slot in slots if slot.uuid(gpus.name) in held)
    )


_NARRATED: Final[dict[type, Callable[..., Iterator[_Line]]]] = {
    NodesCame: _nodes,
    NamespaceAnnotated: _annotated,
    PodEnded: _pod,
    ManyEnded: _many,
    PodDeleted: _deleted,
    LayoutChanged: _layout,
    RecutsPlanned: _planned,
    RecutsDone: _recut,
    Measured: _measured,
}


def _ended(scene: PodEnded, style: Style) -> Iterator[_Line]:
    if scene.pod is None:
        yield "refused", scene.refusal, style.bad
        return
    yield "decided", _decision(scene), style.good
    yield from (("warned", warning, style.note) for warning in scene.warnings)
    yield from _given(scene, style)
    yield from _allocated(scene, style)
    yield from _landed(scene, style)


def _decision(scene: PodEnded) -> str:
    if scene.is_claim:
        return scene.reason
    record = scene.record.replace("->", " → ")
    return f"{record}: {scene.reason}" if record else f"admitted: {scene.reason or 'nothing to change'}"


def _given(scene: PodEnded, style: Style) -> Iterator[_Line]:
    """What containers have now that they had not asked for, beside a fallback."""
    before = {one["name"]: one for one in scene.asked["spec"]["containers"]}
    for container in (scene.pod or {})["spec"]["containers"]:
        limits = (container.get("resources") or {}).get("limits") or {}
        old = (before[container["name"]].get("resources") or {}).get("limits") or {}
        added = {
            name: amount for name, amount in limits.items() if name not in old and not is_whole_or_mig(name)
        }
        if added:
            listed = ", ".join(f"{name}: {amount}" for name, amount in added.items())
            yield "given", f"{container['name']}: {listed}", style.good


def _allocated(scene: PodEnded, style: Style) -> Iterator[_Line]:
    """What the scheduler chose of a claim's alternatives."""
    for container, counts in scene.claimed.items():
        who = f"{container}: " if len(scene.claimed) > 1 else ""
        why = f"the first that was free ({scene.record.replace('->', ' → ')})" if scene.record else "as asked"
        yield "allocated", f"{who}{counted(counts)}, {why}", style.good


def _landed(scene: PodEnded, style: Style) -> Iterator[_Line]:
    if scene.waiting:
        yield "waits", f"Pending: {scene.waiting}", style.note
    elif scene.pod is not None:
        phase = scene.pod["status"].get("phase", "")
        yield "landed", f"{scene.node or 'no node'}, {phase.lower()}", None
    label = "sees"
    for container, lines in scene.seen.items():
        who = f"{container}: " if len(scene.seen) > 1 else ""
        for at, line in enumerate(lines or ("no device",)):
            yield label, (" " * len(who) if at else who) + line, style.dim
            label = ""


def asked(pod: Document) -> str:
    """What a pod asks for, container by container."""
    containers = pod["spec"]["containers"]
    texts = []
    for container in containers:
        resources = container.get("resources") or {}
        amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        text = ", ".join(f"{name}: {amount}" for name, amount in amounts.items()) or "nothing"
        texts.append(f"{container['name']} {text}" if len(containers) > 1 else text)
    notes = (pod["metadata"].get("annotations") or {}).items()
    marks = "".join(f" ({key.rpartition('/')[2]}: {value})" for key, value in notes)
    return "; ".join(texts) + marks


def counted(counts: Counts) -> str:
    """`2g.20gb ×8, 3g.30gb ×4`; what there is none of is left out."""
    return ", ".join(f"{short(name)} ×{count}" for name, count in sorted(counts.items()) if count)


def _change(before: Counts, after: Counts) -> str:
    names = sorted({*before, *after})
    return ", ".join(
        f"{short(name)} {before.get(name, 0)} → {after.get(name, 0)}"
        if before.get(name, 0) != after.get(name, 0)
        else f"{short(name)} still {after.get(name, 0)}"
        for name in names
        if before.get(name) or after.get(name)
    )


def _as_it_is(text: str) -> str:
    """The colour of drawings: they have theirs, and are not to be broken."""
    return text


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _block(label: str, text: str, paint: Any, width: int) -> Iterator[str]:
    """A label and its text; lines too long for the terminal go on under their beginning."""
    if paint is _as_it_is:
        yield f"{_INDENT}{label:<{_LABEL}}{text}".rstrip()
        return
    room = max(40, width - _LABEL - len(_INDENT))
    indent = " " * (len(text) - len(text.lstrip()))
    # hyphens are part of names: a node or a device is looked for as a whole
    lines = textwrap.wrap(
        text, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    for at, line in enumerate(lines or [""]):
        yield f"{_INDENT}{(label if at == 0 else ''):<{_LABEL}}{paint(line) if paint else line}".rstrip()
