"""Entries of claims that cannot be read, written again from what else knows them: the API server's claim and the CDI spec.

Either names the claim's devices. What neither knows holds back every device that no other claim is known to hold, until the
kubelet ends the claim: its container may have any of them.
"""

import logging
from collections.abc import Mapping, Sequence

from tessera.core.devices.device import Device
from tessera.node.dra.claims.cdi_files import ClaimFiles, cdi_names
from tessera.node.dra.claims.objects import Given
from tessera.node.dra.claims.prepared import Entry, HeldDevice, Phase, PreparedClaims
from tessera.protocol.kubelet.dra_messages import ClaimName

log = logging.getLogger(__name__)


def repair(
    store: PreparedClaims,
    files: ClaimFiles,
    claims: Mapping[ClaimName, Sequence[Given]],
    devices: Mapping[str, Device],
) -> None:
    """Write every entry again that cannot be read and can be rebuilt; waits for the disk.

    `claims` are those of the API server with devices of this node, `devices` all that the node could have, by name.
    """
    by_uid = {claim.uid: claim for claim in claims}
    with store.locked():
        for error in store.read()[1]:
            claim = by_uid.get(error.uid)
            entry = _rebuilt(
                error.uid, claim, claims.get(claim, ()) if claim else (), files, devices, store.boot
            )
            if entry is not None:
                store.write(entry)
                log.warning(
                    "%s: its record could not be read, and was rebuilt: %s",
                    entry,
                    ", ".join(sorted(one.device for one in entry.devices)),
                )


def _rebuilt(
    uid: str,
    claim: ClaimName | None,
    given: Sequence[Given],
    files: ClaimFiles,
    devices: Mapping[str, Device],
    boot: str,
) -> Entry | None:
    """The entry of a claim, with every device that the API server or the spec says it has; None: they do not say."""
    known = {one.device: one for one in given}
    for name in files.names(uid) or ():
        known.setdefault(name, Given("", name))
    if not known or not known.keys() <= devices.keys():
        return None
    held = tuple(
        HeldDevice.of(devices[name], name, one.request, cdi_names(uid, name, devices[name]), admin=one.admin)
        for name, one in known.items()
    )
    # a claim that is gone from the API server has no name any more; completed: a container may have its devices
    claim = claim or ClaimName("", uid, uid)
    return Entry(uid, claim.namespace, claim.name, boot, Phase.COMPLETED, held)
