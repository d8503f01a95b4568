"""What NVIDIA's programs look for on a machine besides the driver's library: cards on the PCI bus, the kernel's module, capabilities.

The files lie in a folder. A program sees them where it looks for them in a mount namespace of its own.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.nvidia.driver import Driver
from e2e.nvidia.state import CONSTANTS

# On a real H200: gpu 0's first GPU instance has minor 3, its first compute instance 4
_FIRST_MINOR, _PER_INSTANCE = 3, 9
_ACCESS = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
# No file can be made in /proc: a folder of links takes its place. /var/lib has no folder for plugins where no kubelet runs
_IN_ITS_PLACE = """\
if test -n "{sockets}"; then
    mount -t tmpfs none {real}
    mkdir {real}/upper {real}/work
    mount -t overlay -o lowerdir=/var/lib,upperdir={real}/upper,workdir={real}/work overlay /var/lib
    mkdir -p /var/lib/kubelet/device-plugins
    mount --bind {sockets} /var/lib/kubelet/device-plugins
fi
mount --bind {pci} /sys/bus/pci/devices
mount --bind /proc {real}
mount -t tmpfs none /proc
ln -s {real}/* /proc
rm -f /proc/modules /proc/driver
ln -s {proc}/modules {proc}/driver /proc
exec "$@"
"""


class Machine:
    """The files for a driver's cards."""

    def __init__(self, folder: Path, driver: Driver) -> None:
        self.root = folder
        self._pci, self._proc, self._real = folder / "pci", folder / "proc", folder / "real"
        for one in (self._pci, self._proc, self._real):
            one.mkdir(parents=True)
        (self._proc / "modules").write_text("nvidia 1 0 - Live 0x0\n")
        for card in driver.cards:
            self._plug_in(card, driver.state.card[card].product.pci_id)
        self._write_minors(len(driver.cards))

    def seen_by(self, *command: str | Path, sockets: Path | None = None) -> list[str | Path]:
        """A command, run where it finds these files, as root; `sockets`: where device plugins have theirs, without a kubelet."""
        script = _IN_ITS_PLACE.format(pci=self._pci, proc=self._proc, real=self._real, sockets=sockets or "")
        return ["unshare", "--mount", "sh", "-ec", script, "sh", *command]

    def _plug_in(self, card: int, pci_id: int) -> None:
        folder = self._pci / f"0000:{CONSTANTS['FIRST_BUS'] + card:02x}:00.0"
        folder.mkdir()
        (folder / "vendor").write_text(f"0x{pci_id & 0xFFFF:04x}\n")
        (folder / "device").write_text(f"0x{pci_id >> 16:04x}\n")
        (folder / "class").write_text("0x030200\n")  # a 3D controller
        (folder / "numa_node").write_text("0\n")
        (folder / "config").write_bytes(bytes(256))
        regions = (f"0x{n}0000000 0x{n}0ffffff 0x0000000000040200\n" for n in range(6))
        (folder / "resource").write_text("".join(regions))

    def _write_minors(self, cards: int) -> None:
        minors = {"config": 1, "monitor": 2}
        for card in range(cards):
            for gi in range(CONSTANTS["INSTANCES"]):
                minor = _FIRST_MINOR + _PER_INSTANCE * (CONSTANTS["INSTANCES"] * card + gi)
                minors[f"gpu{card}/gi{gi}/access"] = minor
                for ci in range(CONSTANTS["COMPUTES"]):
                    minors[f"gpu{card}/gi{gi}/ci{ci}/access"] = minor + 1 + ci
        listed = self._proc / "driver/nvidia-caps/mig-minors"
        listed.parent.mkdir(parents=True)
        listed.write_text("".join(f"{name} {minor}\n" for name, minor in minors.items()))
        for name, minor in minors.items():
            if name.endswith("/access"):
                file = self._proc / "driver/nvidia/capabilities" / name.replace("/", "/mig/", 1)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_ACCESS.format(minor))


@contextmanager
def device_nodes(cards: int = 1) -> Iterator[None]:
    """The nodes of the first cards in /dev, as far as a container runtime looks at them."""
    paths = [Path("/dev/nvidiactl"), *(Path(f"/dev/nvidia{card}") for card in range(cards))]
    made = [path for path in paths if not path.exists()]
    for path in made:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    try:
        yield
    finally:
        for path in made:
            path.unlink()
