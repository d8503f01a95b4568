"""A cluster's folder: what it is called, which processes belong to it, and how all of it is taken away again."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Network
from e2e.cluster.node import ANCHOR, cgroup_of
from e2e.cluster.processes import Process, processes_of, stop_all, this_process

#: Names become folder, node and control group names.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
#: Sockets lie below a cluster's folder (kubelet/device-plugins/…), and their paths end at 108 characters.
_LONGEST_PATH = 60
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")  # it stands in shell scripts and configuration files
_LONGEST_LINE = 300  # the API server logs whole objects now and then


def base_dir() -> Path:
    """The folder of all clusters of this user: `TESSERA_E2E_RUN`, else one in /tmp."""
    return Path(os.environ.get("TESSERA_E2E_RUN") or f"/tmp/tessera-e2e-{os.geteuid()}").absolute()


class Folder:
    """One cluster's folder. Processes and network devices carry its path, and so are found again after a crash."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ClusterError(
                f"{name!r} is no name for a cluster: up to 24 small letters, digits and inner hyphens"
            )
        self.name = name
        self.path = base_dir() / name
        self.logs = self.path / "logs"
        self.kubeconfig = self.path / "kubeconfig"
        self._owner = self.path / "owner"

    @staticmethod
    def all() -> Iterator["Folder"]:
        """Every cluster that has a folder."""
        with contextlib.suppress(FileNotFoundError):  # there is none, or the last one has just gone
            yield from (Folder(path.name) for path in sorted(base_dir().iterdir()) if path.is_dir())

    def create(self, *, owned: bool) -> None:
        """Make the folder; an owned cluster is meant to end with this process."""
        if len(os.fsencode(self.path)) > _LONGEST_PATH:
            raise ClusterError(
                f"{self.path} is too long for sockets in it; set TESSERA_E2E_RUN to a shorter folder"
            )
        try:
            self._make()
        except FileExistsError:
            raise ClusterError(
                f"there is a cluster {self.name!r} already, or what a crash left of it:"
                f" `python -m e2e.cluster down {self.name}` removes it"
            ) from None
        self.logs.mkdir()
        if owned:
            unfinished = self._owner.with_suffix(".new")
            unfinished.write_text(json.dumps(this_process().as_json()))
            unfinished.rename(self._owner)

    def _make(self) -> None:
        while True:
            base_dir().mkdir(mode=0o700, exist_ok=True)
            if base_dir().stat().st_uid != os.geteuid():
                raise ClusterError(
                    f"{base_dir()} belongs to another account; set TESSERA_E2E_RUN to a folder of your own"
                )
            with contextlib.suppress(
                FileNotFoundError
            ):  # the last of the other clusters has just taken it away
                return self.path.mkdir(mode=0o700)

    @property
    def owner(self) -> Process | None:
        """The process with which the cluster is meant to end; None for a cluster that stays up."""
        with contextlib.suppress(FileNotFoundError):
            return Process(**json.loads(self._owner.read_text()))
        return None

    @property
    def abandoned(self) -> bool:
        """Whether its owner has ended without taking it away."""
        return self.owner is not None and not self.owner.alive

    def log_sizes(self) -> dict[Path, int]:
        """Every log, of programs and of containers, and how long it is now."""
        sizes = {}
        for path in [*sorted(self.logs.glob("*.log")), *sorted(self.path.glob("pod-logs/*/*/*.log"))]:
            with contextlib.suppress(FileNotFoundError):  # a container's, just removed
                sizes[path] = path.stat().st_size
        return sizes

    def log_tails(self, since: Mapping[Path, int] | None = None, *, lines: int = 8) -> str:
        """The last lines of every log, of what was written since it had the given size."""
        tails = []
        for path in self.log_sizes():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek((since or {}).get(path, 0))
                if written := file.read().decode(errors="replace").splitlines():
                    tails.append(f"--- {path.relative_to(self.path)} ---")
                    tails += [line[:_LONGEST_LINE] for line in written[-lines:]]
        return "\n".join(tails)

    def keep_logs(self, target: Path) -> None:
        """Copy every log to where it outlives the cluster."""
        for path in self.log_sizes():
            copy = target / path.relative_to(self.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path, copy)

    def processes(self) -> list[Process]:
        """Every process of the cluster that runs."""
        return processes_of(self.path)

    def remove(self) -> None:
        """End every process, and take away everything that the cluster brought into the machine.

        At once rather than politely: what they could save is removed in the same breath. The node's anchor takes
        shims, containers and mounts with it.
        """
        # The anchor first: a namespace ends only when all in it are reaped, which the wrappers outside do if they still can.
        stop_all(lambda: [process for process in self.processes() if process.name == ANCHOR])
        stop_all(self.processes)
        if (network := Network.of(self.path)) is not None:
            network.release()
        cgroups.remove(cgroup_of(self.path))
        shutil.rmtree(self.path)
        with contextlib.suppress(OSError):  # not empty: there are other clusters
            base_dir().rmdir()
