"""The image's archive: what Docker, podman and containerd find in it."""

import hashlib
import json
import re
import tarfile
from pathlib import Path

import pytest
from tools.image import wheels
from tools.image.archive import Image, Layer, write_archive, write_layer
from tools.image.layers import CONFIG

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/program").write_text("#!/bin/program\n")
    (root / "usr/bin/program").chmod(0o700)
    (root / "usr/text").write_text("text")
    (root / "usr/text").chmod(0o600)
    (root / "bin").symlink_to("usr/bin")
    return root


def test_layer_is_the_same_whoever_makes_it(folder: Path, tmp_path: Path):
    """A layer does not depend on times, owners or the umask of the machine that makes it."""
    first = write_layer(folder, tmp_path / "first.tar")
    (folder / "usr/text").touch()
    (folder / "usr/text").chmod(0o644)
    second = write_layer(folder, tmp_path / "second.tar")
    assert first.digest == second.digest
    with tarfile.open(first.path) as archive:
        seen = {
            entry.name: (entry.mode, entry.uid, entry.mtime, entry.linkname) for entry in archive.getmembers()
        }
    assert seen["usr/bin/program"] == (0o755, 0, 0, "")
    assert seen["usr/text"] == (0o644, 0, 0, "")
    assert seen["bin"][3] == "usr/bin"


def test_archive_is_both_an_oci_layout_and_a_docker_archive(folder: Path, tmp_path: Path):
    """Every digest in the archive is that of the file it names, in both ways of reading it."""
    layer = write_layer(folder, tmp_path / "layer.tar")
    path = tmp_path / "out" / "image.tar"
    write_archive(path, Image("localhost/x:1", "amd64", {"User": "65532"}), [layer])
    with tarfile.open(path) as archive:
        files = {entry.name: _content(archive, entry) for entry in archive.getmembers()}
    for name, content in files.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(content).hexdigest() == name.rpartition("/")[2]
    [entry] = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:1"
    manifest = json.loads(files[_blob(entry)])
    config = json.loads(files[_blob(manifest["config"])])
    assert config["config"] == {"User": "65532"}
    assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}"]
    assert [len(files[_blob(one)]) for one in manifest["layers"]] == [layer.size]
    [docker] = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == ["localhost/x:1"]
    assert json.loads(files[docker["Config"]]) == config
    assert docker["Layers"] == [_blob(one) for one in manifest["layers"]]


def test_layer_that_was_written_before_is_read_back(folder: Path, tmp_path: Path):
    """A kept layer has the digest that it had when it was made."""
    written = write_layer(folder, tmp_path / "layer.tar")
    assert Layer.read(written.path) == written


def test_dockerfile_starts_the_container_as_the_archive_does():
    """Both ways to make the image agree on user, command, environment and labels."""
    text = (ROOT / "Dockerfile").read_text()
    final = text.rpartition("FROM scratch")[2]
    assert f"USER {CONFIG['User']}\n" in final
    assert f"ENTRYPOINT {json.dumps(CONFIG['Entrypoint'])}\n" in final
    assert f"CMD {json.dumps(CONFIG['Cmd'])}\n" in final
    assert f"ENV {' '.join(CONFIG['Env'])}\n" in final
    assert f"ARG VERSION={wheels.version()}\n" in final
    labels = dict(re.findall(r'(org\.\S+)="([^"]*)"', final))
    for name in ("title", "description", "licenses"):
        key = f"org.opencontainers.image.{name}"
        assert labels[key] == CONFIG["Labels"][key]


def test_runtime_lock_has_what_the_package_asks_for():
    """Every dependency of the package is locked for the image, in the version that development uses."""
    import tomllib

    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    runtime, development = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))
        for name in ("runtime.txt", "dev.txt")
    )
    assert {re.split(r"[>=<]", one)[0].lower() for one in asked} <= runtime.keys()
    assert runtime.items() <= development.items()


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    assert file is not None
    return file.read()


def _blob(descriptor: dict[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"
