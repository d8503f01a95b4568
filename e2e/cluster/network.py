"""The network of a cluster with a node: a bridge in the machine's own network namespace."""

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.programs import SYSTEM_PATH

_DEVICES = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Network:
    """The n-th network: addresses for pods and for Services, out of what RFC 2544 sets aside for tests."""

    index: int

    @property
    def bridge(self) -> str:
        """The bridge's name; the process that creates it has the network."""
        return f"tessera{self.index}"

    @property
    def pod_range(self) -> str:
        """Addresses of pods."""
        return f"198.18.{self.index}.0/24"

    @property
    def node_address(self) -> str:
        """The node itself, and the pods' way out."""
        return f"198.18.{self.index}.1"

    @property
    def hardware_address(self) -> str:
        """The bridge's own: one from the range that is free to choose, made from the node's address."""
        return f"02:00:c6:12:{self.index:02x}:01"

    @property
    def service_range(self) -> str:
        """Addresses of Services."""
        return f"198.19.{self.index}.0/24"

    @property
    def api_address(self) -> str:
        """The `kubernetes` Service, where the API server itself listens."""
        return f"198.19.{self.index}.1"

    @classmethod
    def claim(cls, folder: Path) -> Self:
        """The first network that is not taken, for the cluster in a folder."""
        for index in range(256):
            network = cls(index)
            added = _ip("link", "add", network.bridge, "type", "bridge")
            if added.returncode == 0:
                network._set_up(folder)
                return network
            if "File exists" not in added.stderr:  # else it is another cluster's
                break
        raise Unavailable("a node needs a network bridge, and `ip link add … type bridge` fails here")

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """The network of the cluster in a folder, if it has one: the bridge says whose it is."""
        for device in _DEVICES.glob("tessera*"):
            with contextlib.suppress(FileNotFoundError):  # another cluster's, on its way out
                if (device / "ifalias").read_text().strip() == str(folder):
                    return cls(int(device.name.removeprefix("tessera")))
        return None

    def release(self) -> None:
        """Remove the bridge; the pods' ends of it go with their namespaces."""
        _ip("link", "delete", self.bridge)

    def _set_up(self, folder: Path) -> None:
        for arguments in (
            ("link", "set", self.bridge, "alias", str(folder)),
            # Else the bridge takes the lowest address among its ports: with every pod that comes or goes it may be
            # another, and for seconds the other pods send to the old one.
            ("link", "set", self.bridge, "address", self.hardware_address),
            ("addr", "add", f"{self.node_address}/24", "dev", self.bridge),
            ("addr", "add", f"{self.api_address}/32", "dev", self.bridge),
            ("link", "set", self.bridge, "up"),
        ):
            if (done := _ip(*arguments)).returncode:
                self.release()
                raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": SYSTEM_PATH}
    return subprocess.run(["ip", *arguments], env=environment, capture_output=True, text=True, check=False)
