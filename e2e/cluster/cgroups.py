"""The control groups of a node's containers: one group at the top, in every hierarchy, that holds all of them."""

import contextlib
import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PATIENCE = 2.0  # seconds for the kernel to let the last killed process leave its group


def create(name: str) -> None:
    """Create the group."""
    for hierarchy in _hierarchies():
        _enable_controllers(hierarchy)
        (hierarchy / name).mkdir(exist_ok=True)


def remove(name: str) -> None:
    """Remove the group and all that are below it."""
    deadline = time.monotonic() + _PATIENCE
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            while not _removed(Path(folder), last_try=time.monotonic() > deadline):
                time.sleep(0.02)


def writable() -> bool:
    """Whether groups can be made here."""
    return any(os.access(hierarchy, os.W_OK) for hierarchy in _hierarchies())


def _hierarchies() -> list[Path]:
    """The roots of all hierarchies: one in version 2, one for each controller in version 1."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.glob("*") if path.is_dir() and not path.is_symlink()]


def _enable_controllers(hierarchy: Path) -> None:
    """Let groups below the root have every controller, which in version 2 must be asked for."""
    with contextlib.suppress(
        OSError
    ):  # version 1, or not ours to decide: the kubelet will say what it misses
        for controller in (hierarchy / "cgroup.controllers").read_text().split():
            (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")


def _removed(path: Path, *, last_try: bool) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        if last_try:
            raise
        return False
    return True
