"""`-o explain`: a decision explained to a person, at the terminal or on the dashboard."""

import difflib
from collections.abc import Awaitable, Callable

from tessera.cli.common.output import Style, block, table
from tessera.core.admission import explanation as core
from tessera.core.admission.fallback.candidates import Step
from tessera.core.admission.outcome import Allowed, Denied, Observed
from tessera.core.admission.policy import Policy, mode_source
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node, Offer
from tessera.core.resources import short
from tessera.core.text import first_of, number_of
from tessera.kube.view.policy import UsedPolicy
from tessera.protocol import yaml
from tessera.protocol.admission import patch
from tessera.protocol.kubernetes.workloads import FieldPath, items
from tessera.webhook.offline import Admitted, admit, without_own_room

_STEPS = {
    Step.AS_ASKED: "as asked",
    Step.EQUAL: "its equal",
    Step.SMALLER: "smaller",
    Step.LARGER: "larger",
    Step.WHOLE_GPU: "a whole GPU",
}
_MOST_ROWS = 12  # of groups of nodes; beyond that a person reads the summary
_MOST_NAMES = 3


def explain(one: Admitted, offers: Offers, policy: Policy, style: Style) -> str:
    """What was asked, which nodes counted, what was tried, what came of it, and the change."""
    if not one.reviewed:
        return f"{style.bold(one.title)}: no pod template in it; passes as it is"
    namespace = next(iter(one.reviewed.values())).pod.namespace
    with without_own_room(one.before, offers, namespace):
        return "\n\n".join(_explained(one, place, offers, policy, style) for place in one.reviewed)


def explainer(
    offers: Offers, read_policy: Callable[[], Awaitable[UsedPolicy]]
) -> Callable[[str], Awaitable[str]]:
    """The same for the YAML that a person writes into the dashboard of `tessera dashboard` or `tessera demo --serve`."""

    async def answer(text: str) -> str:
        used = await read_policy()
        policy = used.policy
        results = [admit(one, offers, policy, "default") for one in items(yaml.load_all(text, "YAML"))]
        explained = [explain(one, offers, policy, Style(enabled=False)) for one in results if one.reviewed]
        if not explained:
            raise InvalidInput("there is no pod in this, and nothing that makes pods")
        if any(one.claims for one in results):
            explained.append("tessera controller is taken to be running: requests become claims")
        return "\n\n".join([*explained, str(used)]) + "\n"

    return answer


def _explained(one: Admitted, place: FieldPath, offers: Offers, policy: Policy, style: Style) -> str:
    reviewed = one.reviewed[place]
    pod, decision, observes = reviewed.pod, reviewed.would, isinstance(reviewed.decision, Observed)
    lines = [style.bold(one.title_at(place))]
    asked = core.asked(pod)
    lines += block(
        "asks for", [f"{what}  {style.dim(f'(container {name})')}" for name, what in asked] or ["no GPU"]
    )
    if asked:
        lines += block("rules", core.rules(pod, offers, policy))
        free = core.view_of_free(pod, offers, policy)
        lines += block("nodes", _nodes(core.nodes(pod, offers.nodes.values(), policy), free, style))
    trials = core.trials(pod, offers, policy)
    if trials:
        several = len({one.asked for one in trials}) > 1
        rows = [
            (
                *([f"{short(one.asked)} →"] if several else []),
                short(one.candidate),
                _STEPS[one.kind],
                one.reason,
            )
            for one in trials
        ]
        marked = zip(trials, table(rows), strict=True)
        lines += block(
            "candidates", [style.good(f"{text}  ← chosen") if one.chosen else text for one, text in marked]
        )
    if observes:
        by = mode_source(offers.namespaces.get(pod.namespace))
        lines += block("mode", [style.note(f"observe ({by}): what follows would be, and is not done")])
    if isinstance(decision, Denied):
        lines += block("decision", [style.bad(f"rejected: {decision.message}")])
        return "\n".join(lines)
    verdict = "admitted as it is" if isinstance(decision, Allowed) else "admitted with a change"
    lines += block("decision", [f"{style.good(verdict)}: {decision.reason}"])
    lines += block("warning", [style.note(warning) for warning in decision.warnings])
    if not isinstance(decision, Allowed):
        lines += block("change", _diff(one, place, style))
    return "\n".join(lines)


def _nodes(nodes: list[tuple[Node, str | None]], free: ClusterView | None, style: Style) -> list[str]:
    """Which nodes count, and what they have; `free`: what of it is free, where that matters."""
    if not nodes:
        return ["none at all"]
    groups: dict[tuple[str, str], list[str]] = {}
    offers: dict[str, Offer] = {}
    for node, excluded in nodes:
        offer = ", ".join(
            f"{short(resource)} ×{count}{' (DRA)' if resource in node.offer.dra else ''}"
            for resource, count in node.offer.counts
        )
        offers[offer] = node.offer
        groups.setdefault((excluded or "", offer), []).append(node.name)
    # first what counts, then what has something and does not count, then what has nothing
    ordered = sorted(groups.items(), key=lambda item: (not item[0][1], bool(item[0][0]), item[0]))
    counted = sum(len(names) for (excluded, offer), names in ordered if offer and not excluded)
    having = sum(len(names) for (_, offer), names in ordered if offer)
    lines = [f"{counted} of {len(nodes)} nodes usable, {having} with GPUs"]
    shown = ordered[:_MOST_ROWS]
    rows = table([(first_of(names, _MOST_NAMES), offer or "no GPU") for (_, offer), names in shown])
    for ((excluded, offer), names), text in zip(shown, rows, strict=True):
        if not offer:
            lines.append(style.dim(f"- {text}  {excluded}".rstrip()))
        elif excluded:
            lines.append(style.bad(f"✗ {text}  {excluded}"))
        else:
            lines.append(f"{style.good('✓')} {text}{_free(offers[offer], names, free)}")
    if len(ordered) > _MOST_ROWS:
        lines.append(style.dim(f"… and {number_of(len(ordered) - _MOST_ROWS, 'more group')} of nodes"))
    return lines


def _free(offer: Offer, names: list[str], free: ClusterView | None) -> str:
    """What is free on nodes that offer the same, behind that: the most on one of them."""
    if free is None:
        return ""
    most = free.most_on(names)
    some = "up to " if len(names) > 1 else ""
    return "  free now: " + ", ".join(f"{short(name)} ×{some}{most.get(name, 0)}" for name, _ in offer.counts)


def _diff(one: Admitted, place: FieldPath, style: Style) -> list[str]:
    changed = patch.apply(one.before, one.reviewed[place].operations or one.reviewed[place].withheld)
    before, after = yaml.dump(one.before).splitlines(), yaml.dump(changed).splitlines()
    paint = {"+": style.good, "-": style.bad}
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    return [paint.get(line[0], style.dim)(line) for line in lines]
