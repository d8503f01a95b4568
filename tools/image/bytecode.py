"""Byte code made in advance: a container with a read-only file system cannot keep its own."""

import compileall
import py_compile
import sys
from pathlib import Path
from typing import Final

PYTHON: Final = "3.11"  # Debian bookworm's: the whole image is made for it


def compile_all(root: Path, folder: Path) -> None:
    """Compile every module in a folder of a root file system; the result does not depend on when it was made."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != PYTHON:
        return  # another version's byte code would be of no use: the image starts a little slower
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        root / folder, quiet=2, stripdir=str(root), prependdir="/", invalidation_mode=mode, workers=1
    )
