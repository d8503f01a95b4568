"""The image's archive: what Docker, podman and containerd find in it."""

import hashlib
import json
import re
import sys
import tarfile
from pathlib import Path

import pytest
from tools.image import wheels
from tools.image.archive import Image, Layer, write_archive, write_layer
from tools.image.bytecode import compile_all
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
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def test_layer_does_not_depend_on_the_machine_that_makes_it(folder: Path, tmp_path: Path):
    """A layer does not depend on times, owners or the umask of the machine that makes it."""
    first = write_layer(folder, tmp_path / "first.tar")
    (folder / "usr/text").touch()
    (folder / "usr/text").chmod(0o644)
    (folder / "usr").chmod(0o700)  # as under a strict umask
    second = write_layer(folder, tmp_path / "second.tar")
    assert first.digest == second.digest
    with tarfile.open(first.path) as archive:
        seen = {
            entry.name: (entry.mode, entry.uid, entry.mtime, entry.linkname) for entry in archive.getmembers()
        }
    assert seen["usr/bin/program"] == (0o755, 0, 0, "")
    assert seen["usr/text"] == (0o644, 0, 0, "")
    assert seen["usr"] == (0o755, 0, 0, "")
    assert seen["tmp"] == (0o1777, 0, 0, "")
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


def test_everything_that_makes_the_image_is_pinned_by_a_hash():
    """The Dockerfile's base by digest, the libraries and the build's own tools by hashes."""
    stages = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert stages[-1] == "scratch"
    assert all(re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", one) for one in stages[:-1])
    for path in (wheels.REQUIREMENTS, wheels.BUILD_REQUIREMENTS):
        pinned = re.split(r"^(?=\w)", path.read_text(), flags=re.MULTILINE)[1:]
        assert pinned
        assert all(re.match(r"[\w.-]+==\S+", one) and "--hash=sha256:" in one for one in pinned)


def test_build_backend_is_the_one_that_development_uses():
    """What the package is built with is locked, and is what pyproject.toml asks for."""
    import tomllib

    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    plain = (ROOT / "requirements/build.in").read_text().splitlines()
    assert [line for line in plain if not line.startswith("#")] == asked
    locked, development = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))
        for name in ("build.txt", "dev.txt")
    )
    assert {re.split(r"[>=<]", one)[0] for one in asked} == locked.keys()
    assert locked.items() <= development.items()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="byte code is made for the image's Python")
def test_byte_code_does_not_depend_on_the_process_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Seed, folder and what is loaded do not show in it."""
    source = "WORDS = {'a', 'b', 'c', 'd'}\ndef known(x):\n    return x in {'one', 'two', 'three', 'four'}\n"
    made = []
    for seed in ("1", "2"):
        root = tmp_path / seed
        (root / "lib").mkdir(parents=True)
        (root / "lib/module.py").write_text(source)
        (root / "lib/none.py").write_text("this is no Python\n")
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        compile_all(root, Path("lib"))
        [compiled] = root.glob("lib/__pycache__/*.pyc")
        made.append(compiled.read_bytes())
    assert made[0] == made[1]
    assert b"/lib/module.py" in made[0]
    assert str(tmp_path).encode() not in made[0]


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    assert file is not None
    return file.read()


def _blob(descriptor: dict[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def test_the_embedded_cluster_is_not_in_the_image():
    """The program layer is the whole package but `simulation`, which only `tessera demo` uses."""
    package = ROOT / "src" / "tessera"
    inside = {
        path.relative_to(package)
        for path in wheels.sources()
        if path.suffix == ".py" and package in path.parents
    }
    left_out = {path.relative_to(package) for path in package.rglob("*.py")} - inside
    assert {path.parts[0] for path in left_out} == {"simulation"}
    assert not [path for path in inside if path.parts[0] == "simulation"]
    users = {path for path in inside if "tessera.simulation" in (package / path).read_text()}
    assert {str(path.parent) for path in users} == {"cli/demo"}


def test_docker_is_given_what_the_dockerfile_copies():
    """`.dockerignore` lets through every file that the build stage copies, and leaves the embedded cluster out."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    given = {line.removeprefix("!") for line in lines if line.startswith("!")}
    build = (ROOT / "Dockerfile").read_text().partition("FROM scratch")[0]
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", build, re.MULTILINE) for name in line.split()}
    assert copied == given
    assert "src/tessera/simulation" in lines
