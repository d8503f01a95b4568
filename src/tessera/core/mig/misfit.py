"""Why a set of MIG devices does not fit a card, in one sentence that says what to change."""

from collections import Counter
from collections.abc import Callable, Sequence

from tessera.core.mig.geometry import Product, Shape
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.profile import MigProfile
from tessera.core.text import number_of

_Asked = list[tuple[Wish, Shape]]


def explain_misfit(product: Product, wishes: Sequence[Wish]) -> str:
    """The first reason found, the plainest kinds first. Only for wishes that `place` refused."""
    unknown = [wish for wish in wishes if product.shape(wish.profile) is None]
    if unknown:
        return _unknown(product, unknown)
    asked = [(wish, shape) for wish in wishes if (shape := product.shape(wish.profile))]
    for reason in _REASONS:
        sentence = reason(product, asked)
        if sentence:
            return sentence
    return f"{_listed(_smallest_misfit(product, wishes))} cannot lie on {a(product)} together"


def a(product: Product) -> str:
    """`an H200`, `a B200`: the product with its article, as the name is spoken."""
    first = product.short_name[0].upper()
    acronym = product.short_name[:2].upper() == product.short_name[:2]
    return ("an " if first in ("AEFHILMNORSX" if acronym else "AEIOU") else "a ") + product.short_name


def _unknown(product: Product, unknown: Sequence[Wish]) -> str:
    names = list(dict.fromkeys(str(wish.profile) for wish in unknown))[:3]  # the first few are enough
    word = "profile" if len(names) == 1 else "profiles"
    return f"unknown {word} {' and '.join(names)} for {product.name}; it has {product.profile_names}"


def _too_many(product: Product, asked: _Asked) -> str | None:
    for shape, count in Counter(shape for _, shape in asked).items():
        if count > shape.most:
            return f"{shape.profile} ×{count} is more than the {shape.most} {a(product)} holds"
    return None


def _media_taken(product: Product, asked: _Asked) -> str | None:
    media = [Wish(wish.profile) for wish, shape in asked if shape.media]
    if len(media) <= product.media_sets:
        return None
    times = "once" if product.media_sets == 1 else f"{product.media_sets} times"
    return f"{_listed(media)} each need the media engines, which {a(product)} has {times}"


def _not_a_start(_product: Product, asked: _Asked) -> str | None:
    for wish, shape in asked:
        if wish.position is not None and wish.position not in shape.starts:
            return (
                f"{wish.profile} cannot start at slice {wish.position}; it starts at {_either(shape.starts)}"
            )
    return None


def _wrong_size(product: Product, asked: _Asked) -> str | None:
    for wish, shape in asked:
        if wish.size not in (None, shape.size):
            return f"{wish.profile} takes {number_of(shape.size, 'slice')} of {a(product)}, not {wish.size}"
    return None


def _sums(product: Product, asked: _Asked) -> str | None:
    for kind, need, have in (
        ("memory", sum(shape.size for _, shape in asked), product.memory_slices),
        ("compute", sum(shape.compute for _, shape in asked), product.compute_slices),
    ):
        if need > have:
            what = _listed([Wish(wish.profile) for wish, _ in asked])
            return f"{what} need {need} {kind} slices, {a(product)} has {have}"
    return None


def _collision(product: Product, asked: _Asked) -> str | None:
    """Two that want the same slices, and where the one that was put there could go instead."""
    wishes = [wish for wish, _ in asked]
    for number, wish in enumerate(wishes):
        if wish.position is None:
            continue
        others = wishes[:number] + wishes[number + 1 :]
        blocked = next((other for other in others if place(product, [wish, other]) is None), None)
        elsewhere = _elsewhere(product, wish.profile, others)
        shape = product.shape(blocked.profile) if blocked else None
        if blocked is None or shape is None or elsewhere is None:
            continue
        moved = "one of them" if blocked.profile == wish.profile else str(wish.profile)
        slices = _either([_span(s, shape.size) for s in shape.starts if blocked.position in (None, s)])
        return f"{blocked.profile} needs slices {slices}, taken by {wish.profile}; put {moved} at {elsewhere}"
    return None


def _elsewhere(product: Product, profile: MigProfile, others: Sequence[Wish]) -> int | None:
    """Where a device of the profile goes when only it may move."""
    places = place(product, [*others, Wish(profile)])
    taken = {other.position for other in others if other.profile == profile}
    return next((i.position for i in places or () if i.profile == profile and i.position not in taken), None)


def _positions(product: Product, asked: _Asked) -> str | None:
    """No two collide, yet all of them do not go together where they were put."""
    wishes = [wish for wish, _ in asked]
    if place(product, [Wish(wish.profile) for wish in wishes]) is None:
        return None
    remedy = "without positions all devices fit"
    for number, wish in enumerate(wishes):
        elsewhere = _elsewhere(product, wish.profile, wishes[:number] + wishes[number + 1 :])
        if wish.position is not None and elsewhere is not None:
            remedy = f"move {wish.profile} from {wish.position} to {elsewhere}"
            break
    return f"{_listed(_smallest_misfit(product, wishes))} cannot lie on {a(product)} together; {remedy}"


def _span(start: int, size: int) -> str:
    return f"{start}-{start + size - 1}" if size > 1 else str(start)


def _smallest_misfit(product: Product, wishes: Sequence[Wish]) -> list[Wish]:
    """The wishes without those that play no part: taking any one more away would make it fit."""
    kept = list(wishes)
    for wish in wishes:
        without = list(kept)
        without.remove(wish)
        if place(product, without) is None:
            kept = without
    return kept


def _listed(wishes: Sequence[Wish]) -> str:
    counts: Counter[tuple[MigProfile, int | None]] = Counter((w.profile, w.position) for w in wishes)
    return " + ".join(str(Wish(*key)) + (f" ×{count}" if count > 1 else "") for key, count in counts.items())


def _either(options: Sequence[object]) -> str:
    texts = [str(option) for option in options]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]


_REASONS: tuple[Callable[[Product, _Asked], str | None], ...] = (
    _too_many,
    _media_taken,
    _wrong_size,
    _not_a_start,
    _sums,
    _collision,
    _positions,
)
