"""How NVIDIA GPUs can be cut: every product, its profiles and where they may lie.

A card has compute slices and memory slices. A profile takes some of both; an instance of it lies on consecutive
memory slices, at one of a few starts. Instances may not overlap, and may not take more compute slices than there
are. The same profile name means different shapes on different cards (`1g.10gb` is the base slice of an 80 GB card
and the double-memory slice of an A100-40GB), so geometry belongs to the product.

Where the numbers come from: H200 was read off real hardware through NVML; A100 agrees with NVIDIA's mock tables;
names and counts of H100, Blackwell, A30 and RTX PRO 6000 are NVIDIA's, their placements follow the same scheme and
were not seen on hardware, and neither were the A30's profile ids. PCI ids are those by which mig-parted's default
configuration chooses layouts; a board that is not among them matches no device filter.

Which product a node label or a person means is here, too. Labels come from the driver through GPU feature discovery:
`NVIDIA-A100-SXM4-40GB`, with `-MIG-1g.5gb` behind it under the single strategy (the memory label then speaks of the
slice, not of the card) and `-SHARED` under time slicing. People write `H200` or `A100-40GB`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.mig.profile import MigProfile
from tessera.core.text import quoted

_MOST_COMPUTE: Final = 7  # slices: no real card has more
MAX_SLICES: Final = 16  # real cards have eight at most; twice that keeps every search instant


@dataclass(frozen=True, slots=True)
class Shape:
    profile: MigProfile
    size: int  # memory slices
    starts: tuple[int, ...]  # ascending
    most: int  # instances that one card can hold
    profile_id: int  # NVML's GPU instance profile id
    memory_mib: int  # usable memory where it was measured, else what the name says

    @property
    def compute(self) -> int:
        return self.profile.compute

    @property
    def media(self) -> bool:
        """Whether it takes the card's media engines (JPEG, OFA), which cannot be shared."""
        return self.profile.extras.startswith("+me")


@dataclass(frozen=True, slots=True)
class Product:
    name: str  # "NVIDIA H200"
    memory_mib: int
    compute_slices: int
    memory_slices: int
    shapes: tuple[Shape, ...]  # by profile, ascending
    labels: tuple[str, ...]  # values of nvidia.com/gpu.product that mean it, the usual one first
    pci_ids: tuple[int, ...] = ()  # device id, then vendor id, as NVML and mig-parted write them
    media_sets: int = 1  # instances with media engines that one card can hold
    simulated: bool = False

    def __hash__(self) -> int:
        """By its name: what is worked out about cards is kept by their product, and its tables are long."""
        return hash(self.name)

    def shape(self, profile: MigProfile) -> Shape | None:
        return next((shape for shape in self.shapes if shape.profile == profile), None)

    @property
    def profiles(self) -> tuple[MigProfile, ...]:
        return tuple(shape.profile for shape in self.shapes)

    @property
    def listed(self) -> list[tuple[Shape, str]]:
        """Each profile once, as people read it, and what else boards call it (7g.80gb of an A100: 7g.79gb); the larger name is the usual."""
        names: dict[int, list[Shape]] = {}
        for shape in self.shapes:
            names.setdefault(shape.profile_id, []).append(shape)
        also = {some[-1]: ", ".join(str(one.profile) for one in some[:-1]) for some in names.values()}
        return [(one, f" (on some boards {others})" if others else "") for one, others in also.items()]

    @property
    def profile_names(self) -> str:
        return ", ".join(f"{shape.profile}{also}" for shape, also in self.listed)

    @property
    def label(self) -> str:
        return self.labels[0]

    @property
    def short_name(self) -> str:
        """The name without the vendor: `H200`."""
        return self.name.removeprefix("NVIDIA ")

    @property
    def typed_name(self) -> str:
        """The name as a person types it: one word, and that of a simulated card as its label has it."""
        return self.short_name.removeprefix("Simulated ").replace(" ", "-")


def simulated_product(
    name: str, memory_gb: int, slices: int, profiles: Iterable[MigProfile], label: str = ""
) -> Product:
    """A card that exists only in a simulation: `slices` equal slices of compute and memory, and its own profiles.

    A profile takes as many slices as its memory needs (at least as many as its compute), and lies anywhere and as
    often as it fits.
    """
    if not 1 <= slices <= MAX_SLICES or memory_gb < slices:
        raise InvalidInput(
            f"{name}: {memory_gb} GB in {slices} slices: a card has 1 to {MAX_SLICES} slices, of 1 GB or more each"
        )
    shapes = []
    for number, profile in enumerate(sorted(set(profiles))):
        size = max(profile.compute, -(-profile.memory_gb * slices // memory_gb))
        if size > slices:
            raise InvalidInput(f"{name}: {profile} needs {size} slices, the card has {slices}")
        starts = tuple(range(slices - size + 1))
        shapes.append(Shape(profile, size, starts, slices // size, number, profile.memory_gb * 1024))
    if not shapes:
        raise InvalidInput(f"{name}: a card that can be cut has at least one profile")
    media = max((shape.most for shape in shapes if shape.media), default=0)
    return Product(
        name=name,
        memory_mib=memory_gb * 1024,
        compute_slices=slices,
        memory_slices=slices,
        shapes=tuple(shapes),
        labels=(label or name.replace(" ", "-"),),
        media_sets=media,
        simulated=True,
    )


# Seven compute slices, eight memory slices: kind → compute, memory slices, most, starts, profile id
_EIGHTHS: Final = {
    "1g": (1, 1, 7, (0, 1, 2, 3, 4, 5, 6), 19),
    "1g+me": (1, 1, 1, (0, 1, 2, 3, 4, 5, 6), 20),
    "1g double": (1, 2, 4, (0, 2, 4, 6), 15),
    "2g": (2, 2, 3, (0, 2, 4), 14),
    "3g": (3, 4, 2, (0, 4), 9),
    "4g": (4, 4, 1, (0,), 5),
    "7g": (7, 8, 1, (0,), 0),
}

# Usable MiB of these kinds, read through NVML; every other product's are the name's gigabytes
_MEASURED_MIB: Final = {"NVIDIA H200": (16384, 16384, 33280, 33280, 71424, 71424, 143360)}

# Names that some boards give a profile instead: there are A100-80GB PCIe that report 79 GB
_OTHER_NAMES: Final = {("NVIDIA A100-80GB", "7g"): 79}


def _eighths(name: str, gigabytes: tuple[int, ...], labels: str, pci_ids: tuple[int, ...]) -> Product:
    """A card of eighths; `gigabytes` of 1g (and 1g+me), 1g double, 2g, 3g, 4g, 7g."""
    named = dict(zip(("1g", "1g double", "2g", "3g", "4g", "7g"), gigabytes, strict=True))
    measured = dict(zip(_EIGHTHS, _MEASURED_MIB.get(name, ()), strict=False))
    shapes = []
    for kind, (compute, size, most, starts, profile_id) in _EIGHTHS.items():
        extras = "+me" if kind.endswith("+me") else ""
        for gb in (named[kind.removesuffix("+me")], _OTHER_NAMES.get((name, kind))):
            if gb is not None:
                profile = MigProfile(compute, gb, extras)
                shapes.append(Shape(profile, size, starts, most, profile_id, measured.get(kind, gb * 1024)))
    shapes.sort(key=lambda shape: shape.profile)
    return Product(name, named["7g"] * 1024, 7, 8, tuple(shapes), tuple(labels.split()), pci_ids)


def _quarters(
    name: str,
    memory_gb: int,
    profiles: dict[str, tuple[int, tuple[int, ...], int]],
    labels: str,
    pci_ids: tuple[int, ...],
) -> Product:
    """A card of four compute and four memory slices; profile → most, starts, profile id."""
    shapes = []
    for text, (most, starts, profile_id) in profiles.items():
        profile = MigProfile.parse(text)
        shapes.append(Shape(profile, profile.compute, starts, most, profile_id, profile.memory_gb * 1024))
    shapes.sort(key=lambda shape: shape.profile)
    return Product(name, memory_gb * 1024, 4, 4, tuple(shapes), tuple(labels.split()), pci_ids)


# No real card: seven slices of 10 GB, on which 2×2g.20gb + 1×3g.30gb is a full card
SIMULATED_H200_70GB: Final = simulated_product(
    "Simulated H200-70GB",
    memory_gb=70,
    slices=7,
    profiles=map(MigProfile.parse, ("1g.10gb", "2g.20gb", "3g.30gb", "7g.70gb")),
    label="NVIDIA-H200-70GB",
)

# name; GB of 1g, 1g double, 2g, 3g, 4g and 7g; labels; PCI ids. A GH200 is named after the memory of the CPU beside it.
_CARDS_OF_EIGHTHS: Final = (
    ("NVIDIA A100-40GB", (5, 10, 10, 20, 20, 40), "NVIDIA-A100-SXM4-40GB NVIDIA-A100-PCIE-40GB NVIDIA-A100-PG509-200", (0x20B010DE, 0x20B110DE, 0x20F110DE)),
    ("NVIDIA A100-80GB", (10, 20, 20, 40, 40, 80), "NVIDIA-A100-SXM4-80GB NVIDIA-A100-80GB-PCIe NVIDIA-A100-PCIE-80GB", (0x20B210DE, 0x20B510DE)),
    ("NVIDIA H100-80GB", (10, 20, 20, 40, 40, 80), "NVIDIA-H100-80GB-HBM3 NVIDIA-H100-PCIe NVIDIA-H100-SXM5-80GB", (0x233010DE, 0x233110DE)),
    ("NVIDIA H100-94GB", (12, 24, 24, 47, 47, 94), "NVIDIA-H100-NVL NVIDIA-H100-SXM5-94GB", (0x232110DE,)),
    ("NVIDIA H100-96GB", (12, 24, 24, 48, 48, 96), "NVIDIA-H100-SXM5-96GB NVIDIA-H100-96GB-HBM3", (0x233D10DE,)),
    ("NVIDIA H20", (12, 24, 24, 48, 48, 96), "NVIDIA-H20", (0x232910DE,)),
    ("NVIDIA GH200-96GB", (12, 24, 24, 48, 48, 96), "NVIDIA-GH200-480GB NVIDIA-GH200-120GB", (0x234210DE,)),
    ("NVIDIA GH200-144GB", (18, 36, 36, 72, 72, 144), "NVIDIA-GH200-144G-HBM3e", (0x234810DE,)),
    ("NVIDIA H200", (18, 35, 35, 71, 71, 141), "NVIDIA-H200 NVIDIA-H200-NVL", (0x233510DE, 0x233B10DE)),
    ("NVIDIA B200", (23, 45, 45, 90, 90, 180), "NVIDIA-B200", (0x290110DE,)),
    ("NVIDIA GB200", (23, 47, 47, 93, 93, 186), "NVIDIA-GB200", (0x294110DE,)),
    ("NVIDIA B300", (34, 67, 67, 135, 135, 269), "NVIDIA-B300 NVIDIA-B300-SXM6-AC", (0x318210DE,)),
    ("NVIDIA GB300", (35, 70, 70, 139, 139, 278), "NVIDIA-GB300", (0x31C210DE,)),
)  # fmt: skip

PRODUCTS: Final[tuple[Product, ...]] = (
    *(_eighths(*card) for card in _CARDS_OF_EIGHTHS),
    _quarters(
        "NVIDIA A30",
        24,
        {
            "1g.6gb": (4, (0, 1, 2, 3), 14),
            "1g.6gb+me": (1, (0, 1, 2, 3), 21),
            "2g.12gb": (2, (0, 2), 5),
            "2g.12gb+me": (1, (0, 2), 6),
            "4g.24gb": (1, (0,), 0),
        },
        "NVIDIA-A30",
        (0x20B710DE,),
    ),
    _quarters(
        "NVIDIA RTX PRO 6000 Blackwell",
        96,
        {
            "1g.24gb": (4, (0, 1, 2, 3), 14),
            "1g.24gb+me": (1, (0, 1, 2, 3), 21),
            "1g.24gb+gfx": (4, (0, 1, 2, 3), 47),
            "1g.24gb+me.all": (1, (0, 1, 2, 3), 65),
            "2g.48gb": (2, (0, 2), 5),
            "4g.96gb": (1, (0,), 0),
        },
        "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition "
        "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition",
        (0x2BB510DE,),
    ),
    SIMULATED_H200_70GB,
)

# the largest profile of each product: of those with seven slices a 7g, of those with four a 4g
_WHOLE_CARDS: Final = frozenset(product.shapes[-1].profile for product in PRODUCTS)


def is_whole_card(profile: MigProfile) -> bool:
    """Whether a device of this profile takes a whole card: every 7g does, known cards or not."""
    return profile.compute == _MOST_COMPUTE or profile in _WHOLE_CARDS


# as resource names and records have them
_KNOWN_LABELS: Final = frozenset(profile.label for product in PRODUCTS for profile in product.profiles)


def is_known(label: str) -> bool:
    """Whether some card has the profile of this name: `1g.10gb.me`."""
    return label in _KNOWN_LABELS


# A driver shows up to about 1 % less than the name says (H200: 143771 MiB of 141 GiB); neighbours of one family
# are as close as 94 and 96 GB, which the nearest one decides
_MEMORY_TOLERANCE: Final = 0.04
# texts, compiled when a label is read: the webhook reads none
_SUFFIX: Final = r"(-mig-[0-9a-z.+-]+|-shared)+$"
_GIGABYTES: Final = r"([1-9]\d{0,4})gb?"


@lru_cache(maxsize=256)
def find_product(text: str, memory_mib: int | None = None) -> Product | None:
    """The product that a label means; the card's memory decides where the label leaves it open."""
    plain = _plain(text)
    label = re.sub(_SUFFIX, "", plain)
    if "-mig-" in plain:
        memory_mib = None  # the slice's, not the card's
    candidates = _candidates(label)
    if memory_mib is None and len(candidates) > 1:
        memory_mib = _memory_in(label)
    if memory_mib is not None:
        near = (
            [c for c in candidates if abs(c.memory_mib / memory_mib - 1) <= _MEMORY_TOLERANCE]
            if memory_mib > 0
            else []
        )
        return min(near, key=lambda c: abs(c.memory_mib - memory_mib), default=None)
    real = [c for c in candidates if not c.simulated] or candidates
    return real[0] if len(real) == 1 else None


def product_named(text: str) -> Product:
    """The product a person named; refused with the names that would do."""
    found = find_product(text)
    if found is not None:
        return found
    candidates = _candidates(_plain(text))
    names = ", ".join(product.typed_name for product in candidates or PRODUCTS)
    if candidates:
        raise InvalidInput(f"product {quoted(text)} may be one of several: {names}")
    raise InvalidInput(f"unknown product {quoted(text)}; known are {names}")


def _candidates(label: str) -> list[Product]:
    exact = [p for p in PRODUCTS if label in map(_plain, (p.name, p.short_name, *p.labels))]
    words = label.split("-")
    family = [p for p in PRODUCTS if words[: len(_family(p))] == _family(p)]
    # a simulated card may carry a real card's label: then its memory decides
    return exact + [p for p in family if p not in exact and (not exact or p.simulated)]


def _family(product: Product) -> list[str]:
    """The words that every label of the family begins with: `h100`, `rtx pro 6000`."""
    words = _plain(product.label).split("-")
    return words[:3] if words[0] == "rtx" else words[:1]


def _memory_in(label: str) -> int | None:
    found = [int(m[1]) for word in label.split("-") if (m := re.fullmatch(_GIGABYTES, word))]
    return found[-1] * 1024 if found else None


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip().lower()).removeprefix("nvidia-")
