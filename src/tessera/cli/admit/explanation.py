"""`-o explain`: a decision told to a person."""

import difflib

from tessera.cli.common.terminal import Style, table
from tessera.core.admission import explanation as core
from tessera.core.admission.decision import Admit, Policy, Reject
from tessera.core.admission.fallback import UNLIMITED, Step, asked_profiles
from tessera.core.admission.offers import Offers
from tessera.core.kubernetes.resources import of_short, short
from tessera.core.text import first_of
from tessera.protocol import yaml
from tessera.webhook.offline import Admitted

_STEPS = {
    Step.AS_ASKED: "as asked",
    Step.SMALLER: "smaller",
    Step.LARGER: "larger",
    Step.WHOLE_GPU: "a whole GPU",
}
_MOST_ROWS = 12  # of groups of nodes; beyond that a person reads the summary
_MOST_NAMES = 3


def explain(one: Admitted, offers: Offers, policy: Policy, style: Style) -> str:
    """What was asked, which nodes counted, what was tried, what came of it, and the change."""
    if one.judgement is None:
        return f"{style.bold(one.title)}: no pod template that tessera knows; passes as it is"
    pod, decision = one.judgement.pod, one.judgement.decision
    lines = [style.bold(one.title)]
    asked = core.asked(pod)
    lines += _block(
        "asks for", [f"{what}  {style.dim(f'(container {name})')}" for name, what in asked] or ["no GPU"]
    )
    if asked:
        lines += _block("nodes", _nodes(core.nodes(pod, offers.nodes.values()), style))
    trials = core.trials(pod, offers, policy)
    chosen = _chosen(one)
    if trials:
        rows = [(short(t.candidate), _STEPS[t.step], _found(t)) for t in trials]
        several = len({t.asked for t in trials}) > 1
        texts = table(
            [(f"{short(t.asked)} →", *row) if several else row for t, row in zip(trials, rows, strict=True)]
        )
        marks = [
            style.good(f"{text}  ← chosen") if (t.asked, t.candidate) in chosen else text
            for t, text in zip(trials, texts, strict=True)
        ]
        lines += _block("candidates", marks)
    if isinstance(decision, Reject):
        lines += _block("decision", [style.bad(f"rejected: {decision.message}")])
        return "\n".join(lines)
    verdict = "admitted as it is" if isinstance(decision, Admit) else "admitted with a change"
    lines += _block("decision", [f"{style.good(verdict)}: {decision.reason}"])
    lines += _block("warning", [style.note(warning) for warning in decision.warnings])
    if not isinstance(decision, Admit):
        lines += _block("change", _diff(one, style))
    return "\n".join(lines)


def _block(label: str, texts: list[str]) -> list[str]:
    return [f"  {(label if at == 0 else ''):<12}{text}".rstrip() for at, text in enumerate(texts)]


def _nodes(verdicts: list[core.NodeVerdict], style: Style) -> list[str]:
    if not verdicts:
        return ["none at all"]
    groups: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        offer = (
            ", ".join(f"{short(resource)} ×{count}" for resource, count in verdict.offer.counts) or "no GPU"
        )
        groups.setdefault((verdict.excluded or "", offer), []).append(verdict.node.name)
    ordered = sorted(groups.items(), key=lambda item: (bool(item[0][0]), item[0]))
    counted = sum(len(names) for (excluded, _), names in ordered if not excluded)
    lines = [f"{counted} of {len(verdicts)} count for this pod"]
    rows = [
        (first_of(names, _MOST_NAMES), offer, excluded) for (excluded, offer), names in ordered[:_MOST_ROWS]
    ]
    for row, text in zip(rows, table([(names, offer, "") for names, offer, _ in rows]), strict=True):
        lines.append(style.bad(f"✗ {text}  {row[2]}") if row[2] else f"{style.good('✓')} {text}")
    if len(ordered) > _MOST_ROWS:
        lines.append(style.dim(f"… and {len(ordered) - _MOST_ROWS} more groups of nodes"))
    return lines


def _found(trial: core.Trial) -> str:
    if trial.offered:
        return "offered (autoscaler)" if trial.most == UNLIMITED else f"offered, up to {trial.most} a node"
    return f"not enough: at most {trial.most} a node" if trial.most else "not offered"


def _chosen(one: Admitted) -> set[tuple[str, str]]:
    assert one.judgement is not None  # noqa: S101
    decision = one.judgement.decision
    if isinstance(decision, Reject):
        return set()
    replaced = dict(getattr(decision, "replaced", ()))
    return {
        (r, of_short(replaced[short(r)]) if short(r) in replaced else r)
        for r in asked_profiles(one.judgement.pod)
    }


def _diff(one: Admitted, style: Style) -> list[str]:
    before, after = yaml.dump(one.before).splitlines(), yaml.dump(one.after).splitlines()
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    return [
        style.good(line)
        if line.startswith("+")
        else style.bad(line)
        if line.startswith("-")
        else style.dim(line)
        for line in lines
    ]
