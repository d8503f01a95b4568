"""`run.ai/mig-mapping`: which devices a node's layout became.

An annotation: base64 of `{"0": [{"position": 0, "device_uuid": "MIG-…", "gpu_instance_id": 14}]}`, cards by number;
`gpu_instance_id` is the id of the profile, as fake-gpu-operator writes it.
"""

import base64
import binascii
from typing import Annotated, Final

import msgspec

from tessera.core.device_ids import mig_uuid
from tessera.core.errors import InvalidInput
from tessera.core.layout import NodeLayout

MAPPING: Final = "run.ai/mig-mapping"

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_CardNumber = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,4}$")]


class MappedDevice(msgspec.Struct, frozen=True):
    """One MIG device in the annotation."""

    position: _Natural
    device_uuid: str
    gpu_instance_id: _Natural


def mapping_of(layout: NodeLayout, node: str) -> dict[int, tuple[MappedDevice, ...]]:
    """The mapping that tells of a simulated node's layout; cards with MIG off are left out."""
    mapping: dict[int, tuple[MappedDevice, ...]] = {}
    for number, card in enumerate(layout.cards):
        if card.mig_enabled:
            ids = {shape.profile: shape.profile_id for shape in card.product.shapes}
            mapping[number] = tuple(
                MappedDevice(i.position, mig_uuid(node, number, i), ids[i.profile]) for i in card.instances
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
