"""Cards drawn as tiles: as wide as their memory slices, coloured by profile or by use; in a narrow terminal as lists."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tessera.cli.common.output import Background, Style
from tessera.core.mig.layout import CardLayout, Slot, named_cards
from tessera.core.mig.placement import Instance, room_for

_CELL = 8  # columns of a memory slice: `1g.10gb` and a border; eight slices are 65 columns

# compute slices → background; black text reads well on all of them
_COLOURS = {
    1: Background.CYAN,
    2: Background.GREEN,
    3: Background.YELLOW,
    4: Background.MAGENTA,
    7: Background.BRIGHT_BLUE,
}
_IN_USE, _FREE = Background.YELLOW, Background.GREEN  # where it is known what is in use, colours show that


# devices of a card that are in use, None the whole one; None: unknown
Taken = frozenset[Instance | None] | None


class Tile(NamedTuple):
    """Some memory slices in a row, and the text on them."""

    size: int
    lines: tuple[str, str]
    colour: Background | None


def draw_cards(
    cards: Sequence[CardLayout], style: Style, used: frozenset[Slot] | None = None, width: int | None = None
) -> Iterator[str]:
    """The cards of a node, line by line; cards that are alike and used alike are drawn once.

    Where tiles do not fit into the width, each is a line of its own: a picture that the terminal breaks is none.
    """
    alike: dict[tuple[CardLayout, Taken], list[int]] = {}
    for number, card in enumerate(cards):
        taken = None if used is None else frozenset(slot.instance for slot in used if slot.card == number)
        alike.setdefault((card, taken), []).append(number)
    for (card, taken), numbers in alike.items():
        yield f"{style.bold(named_cards(numbers))}  {card.product.short_name}, {_summary(card)}"
        tiles, slices = _tiles(card, taken), card.product.memory_slices
        fits = width is None or slices * _CELL < width
        yield from _draw(tiles, slices, style) if fits else _list(tiles, style)


def _summary(card: CardLayout) -> str:
    if not card.mig_enabled:
        return "MIG off"
    return " + ".join(f"{n}×{profile}" for profile, n in card.counts.items()) or "MIG on, nothing cut"


def _tiles(card: CardLayout, taken: Taken) -> list[Tile]:
    if not card.mig_enabled:
        return [Tile(card.product.memory_slices, ("whole GPU", _use(None, taken)), _colour(None, taken))]
    tiles = []
    edge = 0
    for instance in card.instances:
        if instance.position > edge:
            tiles.append(_gap(card, edge, instance.position - edge))
        plain = str(instance.profile).removesuffix(instance.profile.extras)
        below = " ".join(filter(None, (instance.profile.extras, _use(instance, taken))))
        tiles.append(Tile(instance.size, (plain, below), _colour(instance, taken)))
        edge = instance.position + instance.size
    if edge < card.product.memory_slices:
        tiles.append(_gap(card, edge, card.product.memory_slices - edge))
    return tiles


def _gap(card: CardLayout, start: int, size: int) -> Tile:
    """Memory slices that are in no device: free, unless no device can have them beside the others (slice 7 beside 7 × 1g)."""
    shapes = [shape for one in card.instances if (shape := card.product.shape(one.profile))]
    return Tile(
        size, ("free", "") if room_for(card.product, start, size, shapes) else ("not", "usable"), None
    )


def _use(instance: Instance | None, taken: Taken) -> str:
    return "in use" if taken is not None and instance in taken else ""


def _colour(instance: Instance | None, taken: Taken) -> Background | None:
    if taken is not None:
        return _IN_USE if instance in taken else _FREE
    return _COLOURS.get(instance.profile.compute, Background.WHITE) if instance is not None else None


def _draw(tiles: list[Tile], slices: int, style: Style) -> Iterator[str]:
    yield "┌" + "┬".join("─" * (tile.size * _CELL - 1) for tile in tiles) + "┐"
    for row in (0, 1):
        texts = (tile.lines[row].ljust(tile.size * _CELL)[: tile.size * _CELL - 1] for tile in tiles)
        painted = (_coloured(text, tile.colour, style) for text, tile in zip(texts, tiles, strict=True))
        yield "│" + "│".join(painted) + "│"
    yield "└" + "┴".join("─" * (tile.size * _CELL - 1) for tile in tiles) + "┘"
    yield style.dim("".join(f" {number}".ljust(_CELL) for number in range(slices)).rstrip())


def _list(tiles: list[Tile], style: Style) -> Iterator[str]:
    edge = 0
    for tile in tiles:
        last = edge + tile.size - 1
        places = f"{edge}-{last}" if last > edge else f"{edge}"
        text = " ".join(filter(None, tile.lines))
        yield f"  {places:<5} {_coloured(text, tile.colour, style)}"
        edge += tile.size


def _coloured(text: str, colour: Background | None, style: Style) -> str:
    return style.on(colour, text) if colour else style.dim(text)
