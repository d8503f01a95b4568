"""What NVML's cards and the plugin's devices say, in the words of layouts. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.devices.device import Card, Device, DeviceType, Model, Place, Span
from tessera.core.errors import InvalidInput
from tessera.core.mig.cutting import Cut, GpuInstance
from tessera.core.mig.geometry import Product, Shape
from tessera.core.mig.layout import CardLayout, DoesNotFit, NodeLayout
from tessera.core.mig.placement import Instance
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import CardUse
from tessera.node.sources.nvml_card import NvmlCard, NvmlMigDevice
from tessera.node.state import Key
from tessera.protocol.mig.nodes import MappedDevice


def unreadable(card: NvmlCard) -> str:
    """Why it is not known how a card is cut; empty: it is."""
    unknown = [device for device in card.mig_devices if _instance(device) is None]
    return (
        f"has a slice of which NVML does not say what or where it is ({unknown[0].uuid})" if unknown else ""
    )


def mode_stays(card: NvmlCard) -> str:
    """Why a card whose MIG mode would have to change is not cut, where the configuration does not let it change."""
    return f"has MIG mode {'on' if card.mig_enabled else 'off'}, and nvml.switchMode is not set"


def devices_by_instance(card: NvmlCard) -> dict[int, list[NvmlMigDevice]]:
    """A card's devices, by the number of their GPU instance."""
    found: dict[int, list[NvmlMigDevice]] = {}
    for device in card.mig_devices:
        found.setdefault(device.gpu_instance, []).append(device)
    return found


def made_on(card: NvmlCard) -> tuple[GpuInstance, ...]:
    """The GPU instances of a card, as far as they have devices and can be read."""
    return tuple(
        GpuInstance(
            number,
            instance,
            tuple(sorted(one.compute_instance for one in some)),
            len(some) == 1 and "c." not in some[0].profile,
        )
        for number, some in sorted(devices_by_instance(card).items())
        if (instance := _instance(some[0]))
    )


def _instance(device: NvmlMigDevice) -> Instance | None:
    part, _, of = device.profile.partition("c.")  # 1c.3g.71gb: one compute slice of a 3g.71gb
    try:
        profile = MigProfile.parse(of if part.isdigit() else device.profile)
    except InvalidInput:
        return None
    if device.start is None or device.size is None:
        return None
    return Instance(profile, device.start, device.size)


def ids_on(card: NvmlCard) -> frozenset[str]:
    """Every id that a device of the card can have."""
    return frozenset({card.uuid, *(device.uuid for device in card.mig_devices)})


def is_of(goal: Cut, device: Device) -> bool:
    """Whether a device is one that the card is to have."""
    if device.model.type is DeviceType.GPU:
        return not goal.mig
    span = device.place.span if device.place else None
    return any(
        device.model.profile == str(one.profile) and span is not None and span.start == one.position
        for one in goal.instances
    )


def mapping_with(
    devices: Iterable[Device], products: Mapping[str, Product]
) -> dict[int, tuple[MappedDevice, ...]]:
    """The mapping of which slices there are, by card; cards that are whole GPUs are left out."""
    mapping: dict[int, list[MappedDevice]] = {}
    for device in devices:
        shape = _shape(device, products)
        if device.place and shape:
            one = MappedDevice(device.place.span.start, device.id, shape.profile_id, device.leaving)
            mapping.setdefault(device.place.card.index, []).append(one)
    return {card: tuple(sorted(some, key=lambda one: one.position)) for card, some in sorted(mapping.items())}


def _shape(device: Device, products: Mapping[str, Product]) -> Shape | None:
    """What a device's profile is on its card; None: nothing that is known, or it is the card itself."""
    product = products.get(device.model.parent)
    shapes = product.shapes if product else ()
    return next((one for one in shapes if str(one.profile) == device.model.profile), None)


def layout_with(
    cards: Sequence[NvmlCard], products: Mapping[str, Product], devices: Iterable[Device]
) -> NodeLayout:
    """How the cards are cut, as far as pods can be given the devices."""
    by_card: dict[str, list[Instance]] = {}
    for device in devices:
        shape, place = _shape(device, products), device.place
        if shape and place and not device.leaving:
            at = Instance(shape.profile, place.span.start, place.span.size)
            by_card.setdefault(device.model.parent, []).append(at)
    known = [card for card in cards if card.uuid in products]
    return NodeLayout(
        tuple(_card(products[card.uuid], by_card.get(card.uuid, ()), mig=card.mig_enabled) for card in known),
        changing=True,
    )


def _card(product: Product, instances: Sequence[Instance], *, mig: bool) -> CardLayout:
    try:
        return CardLayout(product, mig_enabled=mig or bool(instances), instances=tuple(instances))
    except DoesNotFit:  # by our rule, and yet it is there
        return CardLayout(product, mig_enabled=mig)


def use_of(
    numbers: Sequence[int], layout: NodeLayout, devices: Collection[Device], held: Collection[Key]
) -> tuple[CardUse, ...]:
    """The cards, and which of their devices are among these that pods hold."""
    there = {
        (d.place.card.index, d.place.span.start, d.model.type): d.key in held for d in devices if d.place
    }
    return tuple(
        CardUse(
            card,
            tuple(one for one in card.instances if there.get((number, one.position, DeviceType.MIG))),
            bool(there.get((number, 0, DeviceType.GPU))),
        )
        for number, card in zip(numbers, layout.cards, strict=True)
    )


@dataclass(frozen=True, slots=True)
class CardClaims:
    """What claims hold of a card."""

    instances: tuple[Instance, ...] = ()
    whole: bool = False  # the card itself
    ids: frozenset[str] = frozenset()  # slices that were given as they were found, by UUID, on whichever card


def free_on(card: NvmlCard, wanted: CardClaims) -> Iterator[tuple[int, Instance]]:
    """The GPU instances of a card that no claim was given as they are."""
    on = devices_by_instance(card)
    return (
        (one.id, one.instance)
        for one in made_on(card)
        if not wanted.ids & {device.uuid for device in on[one.id]}
    )


def place_on(card: Device, on: Card, product: Product, one: Instance) -> Device:
    """A place on a card that a claim can have cut, given the card itself."""
    shape = product.shape(one.profile)
    memory = shape.memory_mib if shape else 0
    model = Model(DeviceType.MIG, card.model.product, str(one.profile), card.id, memory, cut=False)
    return replace(
        card,
        id=f"{card.id}-{one.profile}-{one.position}",
        resource=one.profile.resource,
        place=Place(on, Span(one.position, one.size)),
        model=model,
    )


def slice_at(card: NvmlCard, profile: str, start: int) -> NvmlMigDevice | None:
    """The slice of a profile that begins there and is one device."""
    return next((one for one in card.mig_devices if (one.profile, one.start) == (profile, start)), None)
