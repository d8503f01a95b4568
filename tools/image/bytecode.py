"""Byte code made in advance: a container with a read-only file system cannot keep its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

PYTHON: Final = "3.11"  # Debian bookworm's: the whole image is made for it


def compile_all(root: Path, folder: Path) -> None:
    """Compile every module in a folder of a root file system; the same bytes whenever and wherever it is done.

    In a fresh process with a fixed seed: what else a process has loaded shows in the byte code that it makes.
    """
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != PYTHON:
        return  # another version's byte code would be of no use: the image starts a little slower
    command = [sys.executable, "-s", "-m", "compileall", "-qq", "-s", str(root), "-p", "/", "-j", "1",
               "--invalidation-mode", "unchecked-hash", str(root / folder)]  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    # not checked: a library's test data may have modules that are none, and these are of no use anyway
    subprocess.run(command, env=environment, cwd=root, check=False)
