"""Devices for tests of the DRA driver: cards of seven slices as the simulation has them."""

from tessera.core.devices.device import Card, Device, DeviceType, Edits, Model, Place, Span
from tessera.core.devices.preference import blocks_of
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.placement import every_place

PRODUCT = product_named("Simulated H200-70GB")
NODE = "node-1"
POOL = "node-1/tessera"


def card(number: int = 0, product: Product = PRODUCT) -> Device:
    """A whole card."""
    return Device(
        f"GPU-{number}",
        resource="nvidia.com/gpu",
        cdi_kind="tessera.simulated/gpu",
        edits=Edits(env=((f"TESSERA_DEVICE_{number:04}", "whole"),)),
        env_list="NVIDIA_VISIBLE_DEVICES",
        place=Place(Card(number, blocks_of(product)), Span(0, product.memory_slices)),
        model=Model(DeviceType.GPU, product.name, "", f"GPU-{number}", product.memory_mib),
    )


def mig(
    profile: str,
    start: int,
    number: int = 0,
    *,
    cut: bool = True,
    product: Product = PRODUCT,
    problem: str = "",
) -> Device:
    """A slice of a card."""
    place = next(one for one in every_place(product) if (str(one.profile), one.position) == (profile, start))
    return Device(
        f"MIG-{number}-{profile}-{start}",
        resource=place.profile.resource,
        cdi_kind="tessera.simulated/gpu",
        edits=Edits(env=((f"TESSERA_DEVICE_{number:04}_{start:02}", profile),)),
        env_list="NVIDIA_VISIBLE_DEVICES",
        place=Place(Card(number, blocks_of(product)), Span(start, place.size)),
        problem=problem,
        model=Model(
            DeviceType.MIG, product.name, profile, f"GPU-{number}", place.profile.memory_gb * 1024, cut=cut
        ),
    )


def listed(name: str, resource: str = "device.example.com/gpu", problem: str = "") -> Device:
    """A device of a list."""
    return Device(
        name, resource=resource, cdi_kind=resource, edits=Edits(env=(("LISTED", name),)), problem=problem
    )
