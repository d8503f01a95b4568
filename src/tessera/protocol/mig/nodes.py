"""What a Node object says about its GPUs: labels of GPU feature discovery, and annotations with layout, mapping and use.

`run.ai/mig-mapping` is which devices there are on a node's cards: base64 of `{"0": [{"position": 0, "device_uuid": "MIG-…",
"gpu_instance_id": 14}]}`, cards by number; `gpu_instance_id` is the id of the profile, as fake-gpu-operator writes it. A
device of an earlier layout that stays for its pod says `"leaving": true` besides; no other device has that field.
For nodes whose GPUs are simulated both are written here as well.

`tessera.dev/devices-in-use` is which devices pods hold, as Tessera's device plugin writes it: `{"0": {"1g.18gb@0":
"3f2a9c1b"}, "3": {"gpu": "77d0e1aa"}}`. It has cards by number, the places of devices that are held, and the first
letters of the UIDs of the pods that hold them, or an empty text where the pod is not known. `{}`: none is held. Without
the annotation it is not known.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from tessera.core.cache import cache_short
from tessera.core.devices.held import Published
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_COUNT_LABEL, GPU_MEMORY_LABEL, GPU_PRODUCT_LABEL
from tessera.core.kubernetes.quantity import InvalidQuantity, Quantity
from tessera.core.mig.geometry import Product, find_product
from tessera.core.mig.layout import CardLayout, NodeLayout, Slot, Strategy, named_cards, resolve_alike
from tessera.core.mig.placement import Wish, every_place
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import MIG_PREFIX, SHARED, WHOLE_GPU, is_any_gpu
from tessera.core.text import shortened
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.kubernetes.objects import ABSENT, Part, decoder, seconds
from tessera.protocol.mig import documents
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE, PARTED_CONFIG, RUNAI_CONFIG

MAPPING: Final = "run.ai/mig-mapping"
CHANGING: Final = frozenset({"pending", "rebooting"})  # states of a layout that is on the way
_STRATEGY: Final = "nvidia.com/mig.strategy"
_CAPABLE: Final = "nvidia.com/mig.capable"
BY_MIG_MANAGER: Final = (
    "nvidia.com/gpu.deploy.mig-manager"  # the operator's: whether its mig-manager runs on the node
)
_COUNT: Final = ".count"
_PER_PROFILE: Final = re.compile(rf"{re.escape(MIG_PREFIX)}[a-z0-9.+-]+\.(count|memory|product)", re.ASCII)

_MOST_CARDS: Final = 1024  # of one node: labels are written by people too
_MOST_DEVICES: Final = 99_999
_NUMBER: Final = 50  # characters that a count is as long as
_MOST_REASON: Final = 1000  # characters: it is copied into other annotations
_MOST_MIB: Final = 1 << 24  # 16 TiB on one card
_STRATEGIES: Final = {strategy.value: strategy for strategy in Strategy}

Counts = tuple[tuple[str, int], ...]  # by resource, in the order of names, none of them zero


@dataclass(frozen=True, slots=True)
class GpuNode:
    name: str
    label: str  # the product as the node calls it; empty when it does not
    product: Product | None  # None: nothing is known of that one
    cards: int | None  # None: the node does not say
    layout: str | None  # the text of its layout annotation
    strategy: Strategy
    mapping: str | None = None  # what became of it
    state: str = ""
    reason: str = ""  # why the state is not success
    config: str = ""  # the configuration that mig-manager is to make: label nvidia.com/mig.config
    labelled: Counts = ()  # MIG devices that GPU Feature Discovery counts, by resource
    offered: Counts = ()  # GPUs and MIG devices that the node has, healthy or not; shares only where it is not known of how many
    by_mig_manager: bool = False  # NVIDIA's mig-manager cuts the cards, not who reads the annotation
    in_use: str | None = None  # which devices pods hold, as Tessera's device plugin writes it

    @property
    def length(self) -> int:
        """About how many characters its texts have: its labels and annotations may be enormous."""
        texts = (self.label, self.layout, self.mapping, self.state, self.reason, self.config, self.in_use)
        counted = (*self.labelled, *self.offered)
        return sum(len(text) for text in texts if text) + sum(_NUMBER + len(name) for name, _ in counted)

    @property
    def is_changing(self) -> bool:
        """Whether its layout is on the way: devices in use are waited for, or mig-manager is at work."""
        return self.state in CHANGING

    @property
    def no_product(self) -> str:
        """Why nothing is known of its product."""
        return f'unknown product "{self.label}"' if self.label else f"no label {GPU_PRODUCT_LABEL}"


def gpu_node(node: NodeIn) -> GpuNode:
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    label = labels.get(GPU_PRODUCT_LABEL, "")
    # under the single strategy the product says `-MIG-`, and the count is of MIG devices
    cards = None if "-MIG-" in label else _number(labels.get(GPU_COUNT_LABEL), _MOST_CARDS)
    # GPU Feature Discovery writes no strategy where it is none
    no_strategy = Strategy.NONE if _CAPABLE in labels else Strategy.MIXED
    return GpuNode(
        name=node.metadata.name,
        label=label,
        product=_product(label, _number(labels.get(GPU_MEMORY_LABEL), _MOST_MIB)) if label else None,
        cards=cards,
        layout=annotations.get(RUNAI_CONFIG),
        strategy=_STRATEGIES.get(labels.get(_STRATEGY, no_strategy), Strategy.MIXED),
        mapping=annotations.get(MAPPING),
        state=labels.get(CONFIG_STATE, ""),
        reason=shortened(annotations.get(CONFIG_REASON, ""), _MOST_REASON),
        config=labels.get(PARTED_CONFIG, ""),
        labelled=(labelled := _labelled(labels)),
        offered=_offered(node, labelled),
        by_mig_manager=labels.get(BY_MIG_MANAGER) == "true"
        or (PARTED_CONFIG in labels and RUNAI_CONFIG not in annotations),
        in_use=annotations.get(IN_USE),
    )


class _Managed(Part):
    time: str | None = None
    fields_v1: msgspec.Raw = msgspec.field(default=ABSENT, name="fieldsV1")


class _ManagedMetadata(Part):
    managed_fields: list[_Managed] | None = None


class _ManagedNode(Part):
    metadata: _ManagedMetadata = msgspec.field(default_factory=_ManagedMetadata)


_managed: Final = decoder(_ManagedNode)


def state_since(raw: bytes) -> float | None:
    """Since when a node has the state of its layout, as Unix time: the client that wrote it wrote nothing else later; None: it is not known."""
    written = f'"f:{CONFIG_STATE}"'.encode()
    by = (one for one in _managed(raw).metadata.managed_fields or () if written in bytes(one.fields_v1))
    return max((at for one in by if (at := seconds(one.time)) is not None), default=None)


def _labelled(labels: Mapping[str, str]) -> Counts:
    """The MIG devices that GPU Feature Discovery counts: by profile, and under the single strategy as GPUs."""
    single = {WHOLE_GPU + _COUNT} if "-MIG-" in labels.get(GPU_PRODUCT_LABEL, "") else ()
    counted = {
        key.removesuffix(_COUNT): _number(value, _MOST_DEVICES)
        for key, value in labels.items()
        if key.endswith(_COUNT) and (key.startswith(MIG_PREFIX) or key in single)
    }
    return _in_order(counted)


def _offered(node: NodeIn, labelled: Counts) -> Counts:
    """What a node has of GPUs and MIG devices: its capacity, in which unhealthy ones count too.

    What several pods share is counted once, where a label says how many share one. Left out is what the kubelet remembers of a plugin
    that has stopped (see `core.kubernetes.node`, `is_stale`).
    """
    labels, allocatable = node.metadata.labels or {}, node.status.allocatable or {}
    found: Counter[str] = Counter()
    left = any(is_any_gpu(resource) and amount not in ("0", 0) for resource, amount in allocatable.items())
    done = left and bool(labelled) and labels.get(CONFIG_STATE) == "success"
    for resource, amount in {**allocatable, **(node.status.capacity or {})}.items():
        if not is_any_gpu(resource):
            continue
        if done and resource not in dict(labelled) and allocatable.get(resource, "0") in ("0", 0):
            continue
        device, number = counted_once(resource, _devices(amount), labels)
        found[device] += number
    return _in_order(found)


def counted_once(resource: str, number: int | None, labels: Mapping[str, str]) -> tuple[str, int]:
    """Devices of which several pods share one, counted once each; as shares where no label says how many share one."""
    device = resource.removesuffix(SHARED)
    replicas = _number(labels.get(device + ".replicas"), _MOST_DEVICES) or 1
    if number is not None and number % replicas == 0 and (replicas > 1 or device == resource):
        return device, number // replicas
    return device + SHARED, 1 if number is None else number


def _devices(amount: str | float) -> int | None:
    """How many devices a quantity is, `1k` too; None for what cannot be their number."""
    try:
        number = Quantity.parse(amount).value
    except InvalidQuantity:
        return None
    return int(number) if number.denominator == 1 and 0 <= number <= _MOST_DEVICES else None


def _in_order(counts: Mapping[str, int | None]) -> Counts:
    return tuple(sorted((resource, count) for resource, count in counts.items() if count))


_product: Final = lru_cache(maxsize=1024)(find_product)  # thousands of nodes say the same few labels


def present_layout(node: GpuNode) -> NodeLayout | None:
    """How a node's cards are cut: as it says they are, else as its annotation wants it; None when neither is there.

    While a layout is pending, devices that stay for their pods are part of it, and what waits for them is not.

    `InvalidInput` when what it says cannot be.
    """
    if node.product is None or (node.mapping is None and node.layout is None):
        return None
    if node.mapping is None:
        entries = documents.read(node.layout or "", RUNAI_CONFIG).select()
        return resolve_alike(entries, node.product, node.cards)
    mapping = decode_mapping(node.mapping)
    number = node.cards or max(mapping, default=-1) + 1
    if any(card >= number for card in mapping):
        raise InvalidInput(f"{MAPPING}: {named_cards(mapping)}, but the node has {number}")
    return NodeLayout(
        tuple(
            _mapped_card(node.product, tuple((d.position, d.gpu_instance_id) for d in mapping[card]))
            if card in mapping
            else CardLayout(node.product)
            for card in range(number)
        ),
        changing=node.state == "pending" or any(one.leaving for some in mapping.values() for one in some),
    )


@cache_short(1024, 64, lambda _, devices: len(devices))
def _mapped_card(product: Product, devices: tuple[tuple[int, int], ...]) -> CardLayout:
    # of two names with one id (7g.79gb and 7g.80gb of an A100) the larger one is the usual: pods ask for that
    profiles = {shape.profile_id: shape.profile for shape in product.shapes}
    unknown = sorted({number for _, number in devices if number not in profiles})
    if unknown:
        raise InvalidInput(f"{MAPPING}: no profile of {product.name} has the id {unknown[0]}")
    return CardLayout.cut(product, [Wish(profiles[number], position) for position, number in devices])


def _number(text: str | None, most: int) -> int | None:
    """A label's number; None for what can be none."""
    number = int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number if 0 < number <= most else None


def gpu_labels(layout: NodeLayout, strategy: Strategy) -> dict[str, str]:
    """The labels of a node with this layout; only the first card's product is published, as GPU feature discovery does."""
    if not layout.cards:
        return {}
    product = layout.cards[0].product
    labels = {
        "nvidia.com/gpu.present": "true",
        GPU_PRODUCT_LABEL: product.label,
        GPU_COUNT_LABEL: str(len(layout.cards)),
        GPU_MEMORY_LABEL: str(product.memory_mib),
        _STRATEGY: str(strategy),
        _CAPABLE: "true" if product.shapes else "false",
    }
    counts = sum((Counter(card.counts) for card in layout.cards), Counter[MigProfile]())
    if strategy is Strategy.SINGLE and counts:  # the slices are what is called a GPU
        ((profile, count),) = counts.items()
        labels |= _described(WHOLE_GPU, product, profile, count)
    if strategy is Strategy.MIXED:
        for profile, count in counts.items():
            labels |= _described(profile.resource, product, profile, count)
    return labels


def stale_labels(present: Iterable[str], wanted: Iterable[str]) -> list[str]:
    keep = set(wanted)
    return sorted(name for name in present if name not in keep and _PER_PROFILE.fullmatch(name))


def _described(name: str, product: Product, profile: MigProfile, count: int) -> dict[str, str]:
    shape = product.shape(profile)
    return {
        f"{name}.count": str(count),
        f"{name}.memory": str(shape.memory_mib if shape else 0),
        f"{name}.product": f"{product.label}-MIG-{profile.label}",
    }


_Natural = Annotated[int, msgspec.Meta(ge=0)]
_CardNumber = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,4}$")]


class MappedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    position: _Natural
    device_uuid: str
    gpu_instance_id: _Natural
    leaving: bool = False  # no longer wanted, and stays for its pod


def mapping_of(
    layout: NodeLayout, node: str, leaving: Collection[str] = ()
) -> dict[int, tuple[MappedDevice, ...]]:
    """The mapping of what there is on a simulated node: its layout, as far as devices that leave have room for it.

    `leaving` are the ids of devices of an earlier layout. Cards that are whole GPUs are left out: those with MIG off,
    and those that a pod still has whole.
    """
    mapping: dict[int, tuple[MappedDevice, ...]] = {}
    for number, card in enumerate(layout.cards):
        stay = (
            [one for one in every_place(card.product) if Slot(number, one).uuid(node) in leaving]
            if leaving
            else []
        )
        if Slot(number).uuid(node) in leaving or not (card.mig_enabled or stay):
            continue
        come = [one for one in card.instances if not any(one.mask & other.mask for other in stay)]
        ids = {shape.profile: shape.profile_id for shape in card.product.shapes}
        mapping[number] = tuple(
            MappedDevice(one.position, Slot(number, one).uuid(node), ids[one.profile], one in stay)
            for one in sorted([*stay, *come], key=lambda one: one.position)
        )
    return mapping


def encode_mapping(mapping: dict[int, tuple[MappedDevice, ...]]) -> str:
    document = {str(card): mapping[card] for card in sorted(mapping)}
    return base64.b64encode(msgspec.json.encode(document)).decode("ascii")


def decode_mapping(text: str) -> dict[int, tuple[MappedDevice, ...]]:
    try:
        document = _DECODER.decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"{MAPPING}: not base64 of a JSON map of MIG devices: {error}") from error
    return {int(card): devices for card, devices in document.items()}


_DECODER: Final = msgspec.json.Decoder(dict[_CardNumber, tuple[MappedDevice, ...]])


IN_USE: Final = "tessera.dev/devices-in-use"
_LONGEST_IN_USE: Final = 16 * 1024  # characters: a node has 256 KiB for all of its annotations

_HeldCard = Annotated[int, msgspec.Meta(ge=0, le=9999)]
_ShortText = Annotated[str, msgspec.Meta(max_length=63)]
_IN_USE_DECODER: Final = msgspec.json.Decoder(dict[_HeldCard, dict[_ShortText, _ShortText]])


def encode_in_use(published: Published) -> str | None:
    """The annotation's text; None where it would be too long."""
    ordered = {str(card): dict(sorted(places.items())) for card, places in sorted(published.items())}
    text = msgspec.json.encode(ordered).decode()
    return text if len(text) <= _LONGEST_IN_USE else None


def decode_in_use(text: str | None) -> Published | None:
    """What the annotation says; None where there is none, or none that can be read."""
    if text is None or len(text) > _LONGEST_IN_USE:
        return None
    try:
        return _IN_USE_DECODER.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
