"""`run.ai/mig-mapping`: which devices there are on a node's cards.

An annotation: base64 of `{"0": [{"position": 0, "device_uuid": "MIG-…", "gpu_instance_id": 14}]}`, cards by number;
`gpu_instance_id` is the id of the profile, as fake-gpu-operator writes it. A device of an earlier layout that stays for
its pod says `"leaving": true` besides; no other device has that field.
"""

import base64
import binascii
from collections.abc import Collection
from typing import Annotated, Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import NodeLayout, Slot
from tessera.core.mig.placement import every_place

MAPPING: Final = "run.ai/mig-mapping"

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_CardNumber = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,4}$")]


class MappedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One MIG device in the annotation."""

    position: _Natural
    device_uuid: str
    gpu_instance_id: _Natural
    leaving: bool = False  # no longer wanted, and stays for its pod


def mapping_of(
    layout: NodeLayout, node: str, leaving: Collection[str] = ()
) -> dict[int, tuple[MappedDevice, ...]]:
    """The mapping that tells what there is on a simulated node: its layout, as far as devices that leave have room for it.

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
    """The annotation's value."""
    document = {str(card): mapping[card] for card in sorted(mapping)}
    return base64.b64encode(msgspec.json.encode(document)).decode("ascii")


def decode_mapping(text: str) -> dict[int, tuple[MappedDevice, ...]]:
    """What the annotation's value says."""
    try:
        document = _DECODER.decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"{MAPPING}: not base64 of a JSON map of MIG devices: {error}") from error
    return {int(card): devices for card, devices in document.items()}


_DECODER: Final = msgspec.json.Decoder(dict[_CardNumber, tuple[MappedDevice, ...]])
