"""The image is made twice from nothing, and its commands run in what it holds and nothing else."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tools.image import debian
from tools.image.errors import ImageError

from e2e.cluster import Unavailable

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The image, made twice: other caches, other folders, another umask, another seed of hashes."""
    try:
        debian.offered()
    except ImageError as error:
        raise Unavailable(str(error)) from error
    found = []
    for seed, umask in (("1", 0o022), ("2", 0o077)):
        folder = tmp_path_factory.mktemp("image")
        cache = {"TESSERA_IMAGE_CACHE": str(folder / "cache"), "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-m", "tools.image", "--output", folder / "image.tar"],
            cwd=ROOT, env={**os.environ, **cache}, umask=umask, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(folder / "image.tar")
    return found


@pytest.mark.timeout(900)
def test_image_made_twice_is_the_same(archives: list[Path]) -> None:
    """Two builds from nothing give one digest: the image's manifest, its layers, the whole archive."""
    first, second = map(_digests, archives)
    assert first == second
    assert len({hashlib.sha256(path.read_bytes()).hexdigest() for path in archives}) == 1


def _digests(archive: Path) -> dict[str, int]:
    """Every blob in an archive, by its digest: which one differs is seen at once."""
    with tarfile.open(archive) as found:
        return {entry.name: entry.size for entry in found.getmembers()}


@pytest.fixture(scope="module")
def root(archives: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's file system."""
    if os.getuid() != 0:
        raise Unavailable("only root may change the root folder")
    folder = tmp_path_factory.mktemp("root")
    with tarfile.open(archives[0]) as image:
        (entry,) = json.loads(_file(image, "manifest.json"))
        for name in entry["Layers"]:
            layer = image.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=layer) as files:
                files.extractall(folder, filter="tar")
    folder.chmod(0o755)  # it is the root folder of another account
    return folder


def _file(image: tarfile.TarFile, name: str) -> bytes:
    found = image.extractfile(name)
    assert found is not None
    return found.read()


def test_layouts_are_planned_without_numpy(root: Path) -> None:
    """The solver's library is in the image; numpy, which its Python part would want, is not, and is not missed."""
    assert list(root.glob("usr/local/lib/python3*/dist-packages/highspy*"))
    assert not list(root.glob("**/numpy"))
    done = subprocess.run(
        ["chroot", "--userspec=65532:65532", root, "/usr/local/bin/tessera",
         "mig", "fit", "1g.10gb=40,3g.40gb=9", "--product", "H100-80GB"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all 49 devices fit on 10 of 10 cards; fewer cards do not suffice")


def test_the_embedded_cluster_is_left_out(root: Path) -> None:
    """`tessera demo` is for people's machines: in the image it says so, and nothing of it is there."""
    assert not list(root.glob("usr/local/lib/python3*/dist-packages/tessera/simulation"))
    done = subprocess.run(
        ["chroot", "--userspec=65532:65532", root, "/usr/local/bin/tessera", "demo"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tessera demo: the container image does not contain the embedded cluster")
