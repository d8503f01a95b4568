"""A plan's outcome in sentences."""

from tessera.core.mig.layout import named_cards
from tessera.core.mig.misfit import a, explain_misfit
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.planner import Objective, Plan


def explain_plan(plan: Plan) -> list[str]:
    """What fits, whether more could, what is left out and why, what is not needed."""
    asked, served, used = sum(plan.demand.values()), sum(plan.served.values()), set(plan.used)
    where = f"{len(used)} of {_count(len(plan.cards), 'card')}"
    if plan.left_out:
        measure = "devices" if plan.objective is Objective.DEVICES else "memory"
        limit = f"no plan serves more {measure}"
        if plan.gaps[0]:
            unit = "" if plan.objective is Objective.DEVICES else "GB of "
            limit = f"at most {plan.gaps[0]} {unit}{measure} more could be served"
        fit = "fits" if served == 1 else "fit"
        on = f", on {where}" if plan.cards else ""
        sentences = [f"{served} of {_count(asked, 'device')} {fit}{on}; {limit}"]
    else:
        what = "the one device fits" if asked == 1 else f"all {asked} devices fit"
        sentences = [f"{what} on {where}; {_fewest(plan)}"]
    sentences += [
        f"left out: {profile} ×{count}, {_why(plan, profile)}" for profile, count in plan.left_out.items()
    ]
    spare = [number for number in range(len(plan.cards)) if number not in used and not plan.kept[number]]
    if spare:
        sentences.append(f"not needed: {named_cards(spare)}")
    return sentences


def _fewest(plan: Plan) -> str:
    opened = len(plan.opened)
    if not opened:
        return "no empty card is cut"
    cards = "cards" if not any(plan.kept) else "empty cards"
    gap = min(plan.gaps[2], opened)
    return f"at most {gap} {cards} fewer would suffice" if gap else f"fewer {cards} do not suffice"


def _why(plan: Plan, profile: MigProfile) -> str:
    if not plan.products:
        return "there are no cards"
    if any(product.shape(profile) for product in plan.products):
        return "no room is left for it"
    if len(plan.products) == 1:
        return explain_misfit(plan.products[0], [Wish(profile)])
    names = " or ".join(product.short_name for product in plan.products)
    known = "; ".join(
        f"{a(product)} has {', '.join(map(str, product.profiles))}" for product in plan.products
    )
    return f"no {names} has it; {known}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
