"""The other two layers: what Tessera depends on, from locked wheels, and Tessera itself."""

import importlib.metadata
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
_SITE: Final = (
    Path("usr/local/lib") / f"python{PYTHON}" / "dist-packages"
)  # where Debian's Python looks by itself
_GLIBC: Final = (36, 35, 34, 28, 24, 17)  # bookworm has 2.36: wheels for that and for older ones run
_SETUPTOOLS: Final = 77  # what pyproject.toml builds with

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
    isolation = [] if _setuptools() < _SETUPTOOLS else ["--no-build-isolation"]
    with tempfile.TemporaryDirectory() as work:
        # setuptools writes beside the sources: a copy keeps the work tree clean, and builds apart from one another
        source = Path(work) / "source"
        source.mkdir()
        shutil.copytree(
            PROJECT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(PROJECT / name, source)
        _pip("install", f"--target={site}", "--no-deps", "--no-compile", *isolation, str(source))
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/direct_url.json"):  # names a folder that is gone
        record.unlink()
    compile_all(folder, _SITE)
    command = folder / "usr" / "local" / "bin" / "tessera"
    command.parent.mkdir(parents=True)
    command.write_text(_ENTRY)
    command.chmod(0o755)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"pip {arguments[0]} failed: {done.stderr.strip()[-2000:]}")


def _setuptools() -> int:
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def version() -> str:
    """The project's version."""
    import tomllib

    document = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return str(document["project"]["version"])


def sources() -> Sequence[Path]:
    """The files that the program layer is made of."""
    inside = (path for path in (PROJECT / "src").rglob("*") if path.is_file())
    kept = [path for path in inside if "__pycache__" not in path.parts and ".egg-info" not in str(path)]
    return sorted([*kept, PROJECT / "pyproject.toml", PROJECT / "README.md", PROJECT / "LICENSE"])
