"""Whether a plan is right, checked from the geometry alone.

Nothing here is shared with the planner or the placement search: what they get wrong, this finds. It says nothing
about whether a better plan exists.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from tessera.core.mig.geometry import Product
from tessera.core.mig.placement import Instance
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import CardToCut
from tessera.core.planning.planner import Plan


def check_plan(plan: Plan, demand: Mapping[MigProfile, int], cards: Sequence[CardToCut]) -> list[str]:
    """Everything that is wrong with the plan as an answer to this demand on these cards; empty when it is right."""
    if len(plan.cards) != len(cards):
        return [f"{len(plan.cards)} layouts for {len(cards)} cards"]
    wrong = []
    made: Counter[MigProfile] = Counter()
    for number, (card, layout) in enumerate(zip(cards, plan.cards, strict=True)):
        if layout.product != card.product:
            wrong.append(f"card {number}: {layout.product.name} instead of {card.product.name}")
        wrong += [f"card {number}: {text}" for text in check_card(card.product, layout.instances)]
        missing = Counter(card.kept) - Counter(layout.instances)
        wrong += [f"card {number}: {instance} had to stay" for instance in missing]
        made.update(
            instance.profile for instance in (Counter(layout.instances) - Counter(card.kept)).elements()
        )
    for profile in {*demand, *made, *plan.served, *plan.left_out}:
        asked, served = demand.get(profile, 0), plan.served.get(profile, 0)
        if made[profile] != served:
            wrong.append(f"{profile}: {made[profile]} made, {served} said to be served")
        if served + plan.left_out.get(profile, 0) != asked:
            wrong.append(
                f"{profile}: {asked} asked for, {served} served, {plan.left_out.get(profile, 0)} left out"
            )
    return wrong


def check_card(product: Product, instances: Sequence[Instance]) -> list[str]:
    """Everything that is wrong with these devices on that card."""
    wrong = []
    owner: dict[int, Instance] = {}
    compute = media = 0
    for instance in instances:
        shape = next((s for s in product.shapes if s.profile == instance.profile), None)
        if shape is None:
            wrong.append(f"{product.name} has no {instance.profile}")
            continue
        compute += shape.compute
        media += shape.media
        if instance.size != shape.size or instance.position not in shape.starts:
            wrong.append(f"{instance} of size {instance.size} is no placement of it")
        for number in range(instance.position, instance.position + instance.size):
            if number in owner:
                wrong.append(f"slice {number} belongs to {owner[number]} and to {instance}")
            owner[number] = instance
    for shape in product.shapes:
        count = sum(instance.profile == shape.profile for instance in instances)
        if count > shape.most:
            wrong.append(f"{shape.profile} ×{count}, at most {shape.most}")
    if any(number >= product.memory_slices for number in owner):
        wrong.append(f"beyond the {product.memory_slices} memory slices")
    if compute > product.compute_slices:
        wrong.append(f"{compute} compute slices of {product.compute_slices}")
    if media > product.media_sets:
        wrong.append(f"media engines {media} times of {product.media_sets}")
    return wrong
