"""The other two layers: what Tessera depends on, from locked wheels, and Tessera itself."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.image.bytecode import PYTHON, compile_all
from tools.image.errors import ImageError

PROJECT: Final = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS: Final = PROJECT / "requirements" / "runtime.txt"
BUILD_REQUIREMENTS: Final = PROJECT / "requirements" / "build.txt"  # the build backend
_SITE: Final = (
    Path("usr/local/lib") / f"python{PYTHON}" / "dist-packages"
)  # where Debian's Python looks by itself
_PACKAGE: Final = "tessera-gpu"  # as pyproject.toml names it
_LEFT_OUT: Final = "simulation"  # the embedded cluster of `tessera demo`: production needs none of it
_GLIBC: Final = (36, 35, 34, 28, 24, 17)  # bookworm has 2.36: wheels for that and for older ones run

_ENTRY: Final = """\
#!/usr/bin/python3 -I
import sys

from tessera.cli import main

sys.exit(main())
"""


def build_libraries(folder: Path) -> None:
    """Install the locked requirements, for the image's Python whichever is running now."""
    site = folder / _SITE
    site.mkdir(parents=True)
    machine = platform.machine()
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in _GLIBC]
    platforms += [f"--platform=manylinux2014_{machine}", f"--python-version={PYTHON}", "--implementation=cp"]
    _pip(
        "install", f"--target={site}", "--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes",
        *platforms, "-r", str(REQUIREMENTS),
    )  # fmt: skip
    shutil.rmtree(site / "bin", ignore_errors=True)
    compile_all(folder, _SITE)


def build_program(folder: Path) -> None:
    """Install the project, and the command."""
    site = folder / _SITE
    site.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        tools, wheels = Path(work) / "tools", Path(work) / "wheels"
        _pip(
            "install", f"--target={tools}", "--no-deps", "--only-binary=:all:", "--require-hashes",
            "-r", str(BUILD_REQUIREMENTS),
        )  # fmt: skip
        # setuptools writes beside the sources: a copy keeps the work tree clean, and builds apart from one another
        source = Path(work) / "source"
        for path in sources():
            copy = source / path.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        # without isolation, in which pip would fetch the backend itself, without hashes
        _pip("wheel", f"--wheel-dir={wheels}", "--no-deps", "--no-build-isolation", str(source), tools=tools)
        # by name, so that no record names the folder of this build
        _pip(
            "install", f"--target={site}", "--no-deps", "--no-compile", "--no-index", f"--find-links={wheels}",
            f"{_PACKAGE}=={version()}",
        )  # fmt: skip
    shutil.rmtree(site / "bin", ignore_errors=True)
    compile_all(folder, _SITE)
    command = folder / "usr" / "local" / "bin" / "tessera"
    command.parent.mkdir(parents=True)
    command.write_text(_ENTRY)
    command.chmod(0o755)


def _pip(*arguments: str, tools: Path | None = None) -> None:
    """Run pip; what it builds with is in `tools`."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    if tools is not None:
        environment["PYTHONPATH"] = str(tools)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"pip {arguments[0]} failed: {done.stderr.strip()[-2000:]}")


def version() -> str:
    """The project's version."""
    import tomllib

    document = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return str(document["project"]["version"])


def sources() -> Sequence[Path]:
    """The files that the program layer is made of."""
    inside = (path for path in (PROJECT / "src").rglob("*") if path.is_file())
    kept = [
        path
        for path in inside
        if not {"__pycache__", _LEFT_OUT}.intersection(path.parts) and ".egg-info" not in str(path)
    ]
    return sorted([*kept, PROJECT / "pyproject.toml", PROJECT / "README.md", PROJECT / "LICENSE"])
