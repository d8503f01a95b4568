"""Records of claims, kept right beside what the kubelet asks for: those that cannot be read are rebuilt, stale ones go.

A record that cannot be read is written again from what else knows the claim: the API server's claim and the CDI spec. Either names
the claim's devices. What neither knows holds back every device that no other claim is known to hold, until the kubelet ends the
claim: its container may have any of them.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from tessera.core.devices.device import Device
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.node.cdi import ClaimFiles, cdi_names
from tessera.node.dra.claim_objects import GivenDevice, ReplacedClaim, WrongClaim, given
from tessera.node.dra.prepared_claims import HeldDevice, Phase, PreparedClaim, PreparedClaims
from tessera.protocol.kubelet.dra_messages import ClaimName

log = logging.getLogger(__name__)


def repair(
    store: PreparedClaims,
    files: ClaimFiles,
    claims: Mapping[ClaimName, Sequence[GivenDevice]],
    devices: Mapping[str, Device],
) -> None:
    """Write every entry again that cannot be read and can be rebuilt; waits for the disk.

    `claims` are those of the API server with devices of this node, `devices` all that the node could have, by name.
    """
    by_uid = {claim.uid: claim for claim in claims}
    with store.locked():
        for error in store.read()[1]:
            # a claim that is gone from the API server has no name any more
            claim = by_uid.get(error.uid, ClaimName("", error.uid, error.uid))
            held = _held(claim, claims.get(claim, ()), files, devices)
            if not held:
                continue
            # completed: a container may have its devices
            entry = PreparedClaim(claim.uid, claim.namespace, claim.name, store.boot, Phase.COMPLETED, held)
            store.write(entry)
            names = ", ".join(sorted(one.device for one in held))
            log.warning("%s: its record could not be read, and was rebuilt: %s", entry, names)


def _held(
    claim: ClaimName, given: Sequence[GivenDevice], files: ClaimFiles, devices: Mapping[str, Device]
) -> tuple[HeldDevice, ...]:
    """Every device that the API server or the spec says a claim has; none: they do not say."""
    known = {one.device: one for one in given}
    for name in files.names(claim.uid) or ():
        known.setdefault(name, GivenDevice("", name))
    if not known.keys() <= devices.keys():
        return ()
    return tuple(
        HeldDevice.of(
            devices[name], name, one.request, cdi_names(claim.uid, name, devices[name]), admin=one.admin
        )
        for name, one in known.items()
    )


async def forget_stale(client: Client, pool: str, store: PreparedClaims, files: ClaimFiles) -> int:
    """Forget claims that the API server no longer has, where no container can have them; how many others it no longer has.

    No container can have one after a start of the machine, and where the kubelet never got an answer. Any other may belong to a
    pod that was deleted by force and whose container still runs: the kubelet ends it when that has ended.
    """
    stale = 0
    for entry in await asyncio.to_thread(store.readable):
        if not await _is_gone(client, pool, entry.claim):
            continue
        if entry.boot != store.boot or entry.phase is Phase.STARTED:
            await asyncio.to_thread(_forget, entry, store, files)
        else:
            stale += 1
            log.warning(
                "%s is gone from the API server; its devices stay held until the kubelet ends it", entry
            )
    return stale


async def _is_gone(client: Client, pool: str, claim: ClaimName) -> bool:
    if not claim.namespace:
        return True  # its record was rebuilt when it was gone already
    try:
        await given(client, claim, pool)
    except ApiError as error:
        if error.is_not_found:
            return True
        raise
    except WrongClaim as error:
        return isinstance(error, ReplacedClaim)
    return False


def _forget(entry: PreparedClaim, store: PreparedClaims, files: ClaimFiles) -> None:
    with store.locked():
        if store.get(entry.uid) == entry:
            files.remove(entry.uid)
            store.remove(entry.uid)
            log.info("%s is gone, and what was kept for it is removed", entry)
