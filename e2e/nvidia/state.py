"""The stand-in driver's state: one file, mapped by every process.

The layout is here, once. `header` writes it down for C. The tables of a card's product come from Tessera's own list; what that
list does not have (multiprocessors, how the driver names a card) is added here.
"""

import ctypes
from typing import Any, Final

from tessera.core.mig.geometry import Product, Shape

CONSTANTS: Final = {
    "CARDS": 16,
    "PROFILES": 8,
    "INSTANCES": 15,  # of a card: its whole, halves, quarters and eighths
    "COMPUTES": 8,
    "EVENTS": 256,
    "FAULTS": 32,
    "CALLS": 8192,
    "FIRST_BUS": 0x10,  # the first card's PCI bus; each has one of its own
    # what a fault does
    "ANSWER": 0,
    "HANG": 1,
    "KILL": 2,
}
#: A fault that does not wear out.
FOREVER: Final = 0xFFFFFFFF
#: The GPU instance of an event that concerns a whole card.
WHOLE_CARD: Final = 0xFFFFFFFF

_u32, _i32, _u64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64


class Profile(ctypes.Structure):
    """One kind of GPU instance."""

    _fields_ = [
        ("kind", _u32),  # NVML_GPU_INSTANCE_PROFILE_…: its place in NVML's list
        ("id", _u32),  # its id on this card, another number
        ("slices", _u32),
        ("size", _u32),  # memory slices
        ("starts", _u32),  # a bit for each
        ("most", _u32),
        ("memory_mib", _u32),
        ("multiprocessors", _u32),
        ("media", _u32),  # has an optical flow engine
        ("media_set", _u32),  # takes one of the card's sets of media engines
        ("name", ctypes.c_char * 24),
    ]


class ProductTable(ctypes.Structure):
    """What a card is."""

    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("pci_id", _u32),
        ("memory_mib", _u32),
        ("slices", _u32),
        ("memory_slices", _u32),
        ("media_sets", _u32),
        ("architecture", _u32),
        ("cuda_major", _u32),
        ("profiles", _u32),
        ("profile", Profile * CONSTANTS["PROFILES"]),
    ]


class Compute(ctypes.Structure):
    """A compute instance."""

    _fields_ = [("used", _u32), ("profile", _u32), ("slices", _u32), ("start", _u32)]


class Instance(ctypes.Structure):
    """A GPU instance; `used` is written last."""

    _fields_ = [
        ("used", _u32),
        ("serial", _u32),
        ("profile", _u32),  # place in the product's list
        ("start", _u32),
        ("user", _u32),  # a process id; 0: nobody uses it
        ("compute", Compute * CONSTANTS["COMPUTES"]),
    ]


class Card(ctypes.Structure):
    """A card, how it is cut, and what is wrong with it."""

    _fields_ = [
        ("product", ProductTable),
        ("mig", _u32),
        ("pending", _u32),
        ("user", _u32),
        ("lost", _u32),
        ("needs_reset", _u32),  # a change of MIG mode counts after a reset only
        ("never_resets", _u32),  # nvidia-smi -r fails
        ("rows_failed", _u32),
        ("instance", Instance * CONSTANTS["INSTANCES"]),
    ]


class Event(ctypes.Structure):
    """An XID."""

    _fields_ = [("xid", _u64), ("card", _u32), ("instance", _u32)]


class Fault(ctypes.Structure):
    """What happens to calls of some functions; `left` is written last."""

    _fields_ = [
        ("left", _u32),  # how often it still happens
        ("serial", _u32),
        ("card", _i32),  # -1: any
        ("after", _u32),  # once the function has done its work
        ("skip", _u32),  # so many calls first are let through
        ("action", _u32),
        ("answer", _u32),
        ("function", ctypes.c_char * 64),  # a pattern as of a shell
    ]


class Call(ctypes.Structure):
    """A call that was made."""

    _fields_ = [("pid", _u32), ("card", _i32), ("function", ctypes.c_char * 56)]


class State(ctypes.Structure):
    """The file."""

    _fields_ = [
        ("cards", _u32),
        ("highest_first", _u32),
        ("stable_uuids", _u32),
        ("serials", _u32),
        ("events", _u64),
        ("calls", _u64),
        ("card", Card * CONSTANTS["CARDS"]),
        ("event", Event * CONSTANTS["EVENTS"]),
        ("fault", Fault * CONSTANTS["FAULTS"]),
        ("call", Call * CONSTANTS["CALLS"]),
    ]


def header() -> str:
    """The layout in C."""
    lines = ["#pragma once", "#include <stdint.h>"]
    lines.append(f"#define FOREVER {FOREVER}u")
    lines += [f"#define {name} {value}" for name, value in CONSTANTS.items()]
    for structure in (Profile, ProductTable, Compute, Instance, Card, Event, Fault, Call, State):
        name = "Product" if structure is ProductTable else structure.__name__
        fields = (_declared(*field[:2]) for field in structure._fields_)
        lines += ["typedef struct {", *fields, f"}} {name};"]
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "as in Python");')
    return "\n".join(lines) + "\n"


_C_NAMES: Final = {
    _u32: "uint32_t",
    _i32: "int32_t",
    _u64: "uint64_t",
    ctypes.c_char: "char",
    ProductTable: "Product",
}


def _declared(name: str, kind: Any) -> str:
    of, length = (kind._type_, f"[{kind._length_}]") if issubclass(kind, ctypes.Array) else (kind, "")
    return f"    {_C_NAMES.get(of, of.__name__)} {name}{length};"


# As drivers name these; of others, the label's first dash is a space
_DRIVER_NAMES: Final = {"NVIDIA H100-80GB": "NVIDIA H100 80GB HBM3"}
_TOTAL_MIB: Final = {"NVIDIA H200": 143771}  # read off a card; of others, what the name says
# compute slices (and double memory) → multiprocessors: an A100's of NVIDIA's user guide, an H200's read off a card
_AMPERE: Final = {
    (1, False): 14,
    (1, True): 14,
    (2, False): 28,
    (3, False): 42,
    (4, False): 56,
    (7, False): 98,
}
_HOPPER: Final = {
    (1, False): 16,
    (1, True): 26,
    (2, False): 32,
    (3, False): 60,
    (4, False): 64,
    (7, False): 132,
}
# NVML's lists: compute slices and what is behind the name → NVML_GPU_INSTANCE_PROFILE_…
_KINDS: Final = {
    (1, ""): 0,
    (2, ""): 1,
    (3, ""): 2,
    (4, ""): 3,
    (7, ""): 4,
    (1, "+me"): 7,
    (2, "+me"): 8,
    (1, "double"): 9,
    (1, "+gfx"): 10,
    (1, "+me.all"): 15,
}
_ARCHITECTURES: Final = {
    "A": (7, 8),
    "H": (9, 9),
    "G": (9, 9),
    "B": (10, 10),
    "R": (10, 12),
}  # NVML's number, CUDA's


def table(product: Product) -> ProductTable:
    """A real product's table."""
    shapes = [shape for shape, _ in product.listed]  # a name that only some boards have is left out
    name = _DRIVER_NAMES.get(product.name, product.label.replace("-", " ", 1))
    architecture, cuda = _ARCHITECTURES["B" if product.short_name.startswith("GB") else product.short_name[0]]
    return ProductTable(
        name=name.encode(),
        pci_id=product.pci_ids[0] if product.pci_ids else 0,
        memory_mib=_TOTAL_MIB.get(product.name, product.memory_mib),
        slices=product.compute_slices,
        memory_slices=product.memory_slices,
        media_sets=product.media_sets,
        architecture=architecture,
        cuda_major=cuda,
        profiles=len(shapes),
        profile=tuple(_profile(product, shape) for shape in shapes),
    )


def _profile(product: Product, shape: Shape) -> Profile:
    double = shape.compute == 1 and shape.size > min(one.size for one in product.shapes)
    per_slice = _AMPERE if product.short_name.startswith("A") else _HOPPER
    return Profile(
        kind=_KINDS[shape.compute, "double" if double else shape.profile.extras],
        id=shape.profile_id,
        slices=shape.compute,
        size=shape.size,
        starts=sum(1 << start for start in shape.starts),
        most=shape.most,
        # never more than its part of the card: NVIDIA's programs make the name of that fraction
        memory_mib=min(shape.memory_mib, product.memory_mib * shape.size // product.memory_slices),
        multiprocessors=per_slice[shape.compute, double],
        media=shape.media or shape.size == product.memory_slices,
        media_set=shape.media,
        name=str(shape.profile).encode(),
    )
