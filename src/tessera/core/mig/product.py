"""Which product a node label or a person means.

Labels come from the driver through GPU feature discovery: `NVIDIA-A100-SXM4-40GB`, with `-MIG-1g.5gb` behind it
under the single strategy (the memory label then speaks of the slice, not of the card) and `-SHARED` under time
slicing. People write `H200` or `A100-40GB`.
"""

import re
from functools import lru_cache
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import PRODUCTS, Product
from tessera.core.text import quoted

# A driver shows up to about 1 % less than the name says (H200: 143771 MiB of 141 GiB); neighbours of one family
# are as close as 94 and 96 GB, which the nearest one decides
_MEMORY_TOLERANCE: Final = 0.04
_SUFFIX: Final = re.compile(r"(-mig-[0-9a-z.+-]+|-shared)+$")
_GIGABYTES: Final = re.compile(r"([1-9]\d{0,4})gb?")


@lru_cache(maxsize=256)
def find_product(text: str, memory_mib: int | None = None) -> Product | None:
    """The product that a label means; the card's memory decides where the label leaves it open."""
    plain = _plain(text)
    label = _SUFFIX.sub("", plain)
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
    names = ", ".join(product.short_name for product in candidates or PRODUCTS)
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
    found = [int(m[1]) for word in label.split("-") if (m := _GIGABYTES.fullmatch(word))]
    return found[-1] * 1024 if found else None


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "-", text.strip().lower()).removeprefix("nvidia-")
