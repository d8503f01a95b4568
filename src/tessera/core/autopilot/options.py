"""How a card could be cut beside what is held on it, and what is still within reach then. All of it depends on the geometry alone, so it is kept."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, Wish, maximal_patterns, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import profile_counts
from tessera.core.text import counts_in_words

Held = tuple[Instance, ...]
Profiles = tuple[MigProfile, ...]
Counts = tuple[tuple[MigProfile, int], ...]  # the smallest profile first


@dataclass(frozen=True, slots=True, eq=False)
class DeviceChange:
    """How many devices more, or fewer, there are of each profile. Equal changes are one object, compared by identity."""

    counts: Mapping[MigProfile, int]  # no zeros
    brings: Counts  # the part above zero


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One way to cut a card."""

    after: CardLayout
    change: DeviceChange
    idle: tuple[int, ...]  # the memory slices of what nobody holds then, the largest first


@lru_cache(maxsize=1 << 14)
def device_change(counts: Counts) -> DeviceChange:
    """The one object for this change."""
    return DeviceChange(dict(counts), tuple((profile, more) for profile, more in counts if more > 0))


NO_CHANGE: Final = device_change(())


@lru_cache(maxsize=1 << 10)
def profiles_of(product: Product, profiles: Profiles) -> Profiles:
    """Those that a card of this product can be cut into."""
    return tuple(one for one in profiles if product.shape(one) is not None)


@lru_cache(maxsize=1 << 14)
def options(before: CardLayout, held: Held, profiles: Profiles) -> tuple[Option, ...]:
    """All ways to cut a card so that nothing more fits; what is held stays, and so do idle devices wherever that is possible."""
    product, had, kept = before.product, before.counts, Counter(one.profile for one in held)
    idle = [one for one in before.instances if one not in held]
    ways = []
    for pattern in maximal_patterns(product, held, profiles, _most(product, profiles)):
        then = Counter(dict(zip(profiles, pattern, strict=True))) + kept
        differences = {profile: then[profile] - had.get(profile, 0) for profile in sorted({*then, *had})}
        change = device_change(tuple((profile, more) for profile, more in differences.items() if more))
        if change.brings:
            new = [
                Wish(profile) for profile, count in zip(profiles, pattern, strict=True) for _ in range(count)
            ]
            after = CardLayout.cut(product, [*_fixed(held), *new], idle)
            ways.append(Option(after, change, idle_sizes(after, held)))
    return tuple(ways)


@lru_cache(maxsize=1 << 16)
def reach(product: Product, held: Held, profiles: Profiles) -> tuple[int, ...]:
    """How many devices of each profile fit beside what is held, of each alone."""
    return tuple([_fitting(product, held, one) for one in profiles])


@lru_cache(maxsize=1 << 16)
def reach_then(
    after: CardLayout, held: Held, served: tuple[tuple[MigProfile, int], ...], profiles: Profiles
) -> tuple[int, ...]:
    """The same when pods have taken these of the card's devices: each the one that leaves most within reach, as the device plugin prefers."""
    for profile, count in served:
        for _ in range(count):
            free = [one for one in after.instances if one.profile == profile and one not in held]
            held = max(
                (by_position((*held, one)) for one in free),
                key=lambda some: sum(reach(after.product, some, profiles)),
            )
    return reach(after.product, held, profiles)


def idle_sizes(layout: CardLayout, held: Held) -> tuple[int, ...]:
    """The memory slices of a card's idle devices, the largest first."""
    return tuple(sorted((one.size for one in layout.instances if one not in held), reverse=True))


def by_position(some: Iterable[Instance]) -> Held:
    return tuple(sorted(some, key=lambda one: one.position))


def _fitting(product: Product, held: Held, profile: MigProfile) -> int:
    (most,) = _most(product, (profile,))
    for count in range(most, 0, -1):
        if place(product, [*_fixed(held), *[Wish(profile)] * count]) is not None:
            return count
    return 0


def _most(product: Product, profiles: Profiles) -> Pattern:
    return tuple(shape.most if (shape := product.shape(one)) else 0 for one in profiles)


def _fixed(held: Held) -> list[Wish]:
    return [Wish(one.profile, one.position, one.size) for one in held]


def explain_option(
    option: Option,
    serves: Mapping[MigProfile, int],
    takes: Mapping[MigProfile, int],
    gain: float,
    cost: float,
) -> str:
    """Say why a card is cut so."""
    brings = dict(option.change.brings)
    if not serves:
        went = counts_in_words(profile_counts(takes).items())
        room = counts_in_words(profile_counts(brings).items())
        return f"keeps room for {room}, which pods have waited for" + (f"; idle {went} go" if went else "")
    reason = f"makes room for {counts_in_words(profile_counts(serves).items())}"
    if takes:
        reason += f"; idle {counts_in_words(profile_counts(takes).items())} go"
    return f"{reason} (worth {gain:.2f}, costs {cost:.2f})"
