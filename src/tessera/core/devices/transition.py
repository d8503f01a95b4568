"""From the devices that are there to those that are wanted, without taking anything from a running pod.

A device in use that is no longer wanted stays, leaving, until its pod ends: its container can be restarted, and
no other pod gets it. A wanted device that would lie on the same slices waits for that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.core.devices.device import Device

# Seconds for which a device that a layout took can come back, for a pod that the kubelet chose it for before it knew. The kubelet says
# nothing between the choice and Allocate (devicesToAllocate in its devicemanager, 1.36). An Allocate that comes later is refused
RECALL: Final = 3.0
# The same where the kubelet has shown that it no longer chooses the device (see deviceplugin/withdrawn.py): what is left is a call that is on
# its way. The kubelet calls right after it chose, in the same goroutine, over a unix socket: less than a millisecond. If its processor time is
# limited it can stand still for most of a period of the scheduler (100 ms), in which it gets time; this is three of them
ON_THE_WAY: Final = 0.3


@dataclass(frozen=True, slots=True)
class Transition:
    devices: tuple[Device, ...]  # those that are wanted and can exist now, then those that are leaving
    waiting: tuple[Device, ...] = ()  # wanted, and in the way of what is leaving
    # who uses what is leaving, by its key
    holders: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # ids that were withdrawn a moment ago, and that no pod is given any more
    released: frozenset[str] = frozenset()

    @property
    def leaving(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.leaving)

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.leaving


def transition(
    before: Iterable[Device], wanted: Sequence[Device], held: Mapping[tuple[str, str], str]
) -> Transition:
    """The devices from now on; `held` says who uses a device, by resource and id."""
    keys = {device.key for device in wanted}
    leaving = tuple(
        replace(device, leaving=True, problem=f"no longer wanted, stays for {held[device.key]}")
        for device in before
        if device.key not in keys and device.key in held
    )
    waiting = {
        device.key for device in wanted if device.key not in held and any(map(device.overlaps, leaving))
    }
    return Transition(
        devices=(*(device for device in wanted if device.key not in waiting), *leaving),
        waiting=tuple(device for device in wanted if device.key in waiting),
        holders={device.key: held[device.key] for device in leaving},
    )
