"""Layers and archives: the same bytes from the same files, in a form that Docker, podman and containerd all take."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Layer:
    """A tar archive on disk, and its digest."""

    path: Path
    digest: str  # hex
    size: int

    @classmethod
    def read(cls, path: Path) -> "Layer":
        """A layer that was written before."""
        with path.open("rb") as file:
            return cls(path, hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Image:
    """What a container of this image is started with."""

    name: str
    architecture: str
    config: Mapping[str, Any]


def write_layer(folder: Path, path: Path) -> Layer:
    """Pack a folder: sorted, everything root's, no times."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for each in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(each, str(each.relative_to(folder)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                entry.mode = 0o755 if entry.mode & 0o100 else 0o644
                with each.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                if entry.isdir():
                    entry.mode = 0o1777 if entry.mode & 0o1000 else 0o755  # the former for /tmp
                archive.addfile(entry)
    return Layer.read(path)


def write_archive(path: Path, image: Image, layers: Sequence[Layer]) -> None:
    """Write an OCI image layout as a tar, with the `manifest.json` that older Dockers read."""
    config = _json(
        {
            "architecture": image.architecture,
            "os": "linux",
            "config": image.config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
            "history": [{"created_by": f"tools.image {layer.path.stem}"} for layer in layers],
        }
    )
    described = [
        {"mediaType": _LAYER, "digest": f"sha256:{layer.digest}", "size": layer.size} for layer in layers
    ]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _described(_CONFIG, config),
            "layers": described,
        }
    )
    platform = {"architecture": image.architecture, "os": "linux"}
    named = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
    }
    entry = {**_described(_MANIFEST, manifest), "platform": platform, "annotations": named}
    docker = {
        "Config": _blob(config),
        "RepoTags": [image.name],
        "Layers": [f"blobs/sha256/{layer.digest}" for layer in layers],
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}),
        "manifest.json": _json([docker]),
        _blob(config): config,
        _blob(manifest): manifest,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            _add(archive, name, len(content), io.BytesIO(content))
        for layer in layers:
            with layer.path.open("rb") as file:
                _add(archive, f"blobs/sha256/{layer.digest}", layer.size, file)
    partial.replace(path)


def _add(archive: tarfile.TarFile, name: str, size: int, content: Any) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _described(media_type: str, content: bytes) -> dict[str, Any]:
    return {
        "mediaType": media_type,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }
