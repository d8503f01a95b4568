"""Pods that a webhook did not let controllers create, by the Events of these."""

from typing import Final

from tessera.core.errors import InvalidInput
from tessera.diagnosis.reading import Reader
from tessera.doctor.observations import FailedCreate
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import collection
from tessera.kube.watch.resource import FAILED_CREATES
from tessera.protocol.kubernetes.controllers import Workload, decode_event, decode_workload, denial_in
from tessera.protocol.kubernetes.objects import ObjectReference, decode_list

_MOST_REFUSALS: Final = 500  # events; there may be thousands of the same
_MOST_OWNERS: Final = 50  # controllers that are read, one request each


async def failed_creates(reader: Reader) -> tuple[FailedCreate, ...]:
    """The refusals, and whether those controllers are still there."""
    found: list[FailedCreate] = []
    with reader.reading("refusals"):
        query = {**FAILED_CREATES.query, "limit": str(_MOST_REFUSALS)}
        page = decode_list(await reader.client.get(FAILED_CREATES.path, query))
        owners: dict[tuple[str, str, str], tuple[Workload | None, bool]] = {}
        for raw in page.items or ():
            event = reader.readable("refusals", raw, decode_event)
            if event is None or denial_in(event.message) is None:
                continue
            about = event.involved_object
            key = about.kind, about.namespace, about.name
            if key not in owners:
                owners[key] = (
                    await _owner(reader.client, about) if len(owners) < _MOST_OWNERS else (None, False)
                )
            found.append(FailedCreate(event, *owners[key]))
    return tuple(found)


async def _owner(client: Client, about: ObjectReference) -> tuple[Workload | None, bool]:
    """The controller that an event is about, and whether it is gone; what may not be read may well be there."""
    path = collection(about.kind, about.namespace, about.name)
    if not path:
        return None, False
    try:
        owner = decode_workload(await client.get(path))
    except ApiError as error:
        return None, error.is_not_found
    except (KubeError, InvalidInput):
        return None, False
    return owner, bool(about.uid and owner.metadata.uid and about.uid != owner.metadata.uid)
