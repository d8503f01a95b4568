"""The node annotation `tessera.dev/devices-in-use`: which devices pods hold, as Tessera's device plugin writes it.

`{"0": {"1g.18gb@0": "3f2a9c1b"}, "3": {"gpu": "77d0e1aa"}}`: cards by number, the places of devices that are held, and the first letters of
the UIDs of the pods that hold them; an empty text where the pod is not known. `{}`: none is held. Without the annotation it is not known.
"""

from typing import Annotated, Final

import msgspec

from tessera.core.devices.held import Published

IN_USE: Final = "tessera.dev/devices-in-use"
_LONGEST: Final = 16 * 1024  # characters: a node has 256 KiB for all of its annotations

_Card = Annotated[int, msgspec.Meta(ge=0, le=9999)]
_Text = Annotated[str, msgspec.Meta(max_length=63)]
_DECODER: Final = msgspec.json.Decoder(dict[_Card, dict[_Text, _Text]])


def encode_in_use(published: Published) -> str | None:
    """The annotation's text; None where it would be too long."""
    ordered = {str(card): dict(sorted(places.items())) for card, places in sorted(published.items())}
    text = msgspec.json.encode(ordered).decode()
    return text if len(text) <= _LONGEST else None


def decode_in_use(text: str | None) -> Published | None:
    """What the annotation says; None where there is none, or none that can be read."""
    if text is None or len(text) > _LONGEST:
        return None
    try:
        return _DECODER.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
