"""The image's three layers, kept from build to build under a hash of what they are made of."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.image import bytecode, debian, wheels
from tools.image.archive import Image, Layer, write_archive, write_layer

_KEEP_SECONDS: Final = 7 * 86400  # layers that no build used for so long are removed
DEFAULT_NAME: Final = f"localhost/tessera:{wheels.version()}"
CONFIG: Final[dict[str, Any]] = {
    "User": "65532:65532",
    "WorkingDir": "/",
    "Entrypoint": ["/usr/local/bin/tessera"],
    "Cmd": ["--help"],
    "Env": [
        "PATH=/usr/local/bin:/usr/bin",
        "LANG=C.UTF-8",
        "PYTHONUNBUFFERED=1",
    ],
    "Labels": {
        "org.opencontainers.image.title": "tessera",
        "org.opencontainers.image.description": "GPUs on Kubernetes, cut into slices: admission, devices and layouts",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": wheels.version(),
    },
}


@dataclass(frozen=True, slots=True)
class Part:
    """One layer: its name, a hash of what it is made of, and how it is made in an empty folder."""

    name: str
    recipe: str
    build: Callable[[Path, Path], None]  # into a folder, with another to work in


def parts() -> list[Part]:
    """The three layers, from the one that changes least to the one that changes most."""
    packages = debian.offered()
    compiled = Path(bytecode.__file__)
    system = _hash(
        [Path(debian.__file__), compiled, *(one.sha256 for one in packages), debian.architecture()]
    )
    libraries = _hash([Path(wheels.__file__), compiled, wheels.REQUIREMENTS, debian.architecture()])
    program = _hash([Path(wheels.__file__), compiled, wheels.BUILD_REQUIREMENTS, *wheels.sources()])
    return [
        Part("system", system, lambda folder, work: debian.build(folder, packages, work)),
        Part("libraries", libraries, lambda folder, _: wheels.build_libraries(folder)),
        Part("program", program, lambda folder, _: wheels.build_program(folder)),
    ]


def cache_dir() -> Path:
    """Where layers are kept: `TESSERA_IMAGE_CACHE`, else `tessera-image` in the user's cache folder."""
    if chosen := os.environ.get("TESSERA_IMAGE_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera-image"


def build_archive(path: Path, name: str = DEFAULT_NAME) -> None:
    """Make the image, or as much of it as is new, and write it as an archive."""
    layers = [_layer(part) for part in parts()]
    write_archive(path, Image(name, debian.architecture(), CONFIG), layers)


def build_folders(target: Path) -> None:
    """Make the layers as folders, for a Dockerfile to copy."""
    for part in parts():
        folder = target / part.name
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            part.build(folder, Path(work))


def _layer(part: Part) -> Layer:
    path = cache_dir() / f"{part.name}-{part.recipe}.tar"
    if path.exists():
        path.touch()
        return Layer.read(path)
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache_dir()) as folder:
        root, work = Path(folder) / "root", Path(folder) / "work"
        root.mkdir()
        work.mkdir()
        part.build(root, work)
        layer = write_layer(root, work / "layer.tar")
        layer.path.replace(path)
    for old in cache_dir().glob("*.tar"):
        if old.stat().st_mtime < time.time() - _KEEP_SECONDS:
            old.unlink(missing_ok=True)
    return Layer(path, layer.digest, layer.size)


def _hash(ingredients: Iterable[Path | str]) -> str:
    digest = hashlib.sha256()
    for one in ingredients:
        content = one.read_bytes() if isinstance(one, Path) else one.encode()
        name = str(one.relative_to(wheels.PROJECT)) if isinstance(one, Path) else ""
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
