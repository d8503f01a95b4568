"""What can be asked about, as kubectl names it: pods, what makes pods, and MigLayouts."""

from typing import Final

from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.rest.paths import CALLED, POD_KINDS, collection, path_of
from tessera.protocol.mig.miglayout import API_VERSION, KIND, PLURAL

POD: Final = "pod"
MIG_LAYOUT: Final = KIND.lower()
_CALLED: Final = {**CALLED, **dict.fromkeys((MIG_LAYOUT, PLURAL), MIG_LAYOUT)}
KINDS: Final = tuple(sorted(_CALLED))  # for completion


class NoSuchObject(TesseraError):
    """There is nothing of that name."""


def parse_target(text: str) -> tuple[str, str]:
    """The kind and the name of `train`, `pod/train`, `deploy/web`, `miglayouts.tessera.dev/inference`, as kubectl names them."""
    kind, slash, name = text.rpartition("/")
    known = _known(kind) if slash else POD
    if known is None or not name:
        kinds = ", ".join(one.short[0] if one.short else kind for kind, one in POD_KINDS.items())
        raise InvalidInput(f'"{text}" is no pod and no KIND/NAME; kinds are {kinds}, {MIG_LAYOUT}')
    return known, name


def _known(kind: str) -> str | None:
    return _CALLED.get(kind.lower().partition(".")[0])


def objects_of(kind: str, namespace: str) -> str:
    """Where the objects are that a kind of target names, by any of its names; empty for a kind that is not known."""
    known = _known(kind) or ""
    if known == MIG_LAYOUT:
        return path_of(API_VERSION, PLURAL)
    return collection(known, namespace)
