"""Container images made by hand: a docker-archive with one layer, from files of this machine. Nothing is pulled."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import Unavailable

BUSYBOX = "localhost/busybox:1"
PAUSE = "localhost/pause:1"

_GO_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """This machine's architecture, as images and Go call it."""
    return _GO_ARCHITECTURE.get(platform.machine(), platform.machine())


def write_image(path: Path, name: str, layer: bytes, *, command: Sequence[str]) -> None:
    """Write a docker-archive that holds one image of one layer (an uncompressed tar)."""
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Cmd": list(command),
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}.tar"]}]
    files = {config_name: config, f"{digest}.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(tar(files))


def write_busybox_images(folder: Path) -> list[Path]:
    """The two images that every node has: busybox to run things in, and the pod sandbox, which only waits."""
    busybox = Path("/bin/busybox")
    if b"/ld-linux" in busybox.read_bytes():
        raise Unavailable(
            "the busybox here needs libraries, which an image of it would lack: install busybox-static"
        )
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    files = {"bin/busybox": busybox.read_bytes(), "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n"}
    layer = tar(files, links=links, folders=("bin", "dev", "etc", "proc", "sys", "tmp"))
    images = {"busybox.tar": (BUSYBOX, ["sh"]), "pause.tar": (PAUSE, ["/bin/sleep", "2147483647"])}
    for file, (name, command) in images.items():
        write_image(folder / file, name, layer, command=command)
    return [folder / file for file in images]


def tar(
    files: Mapping[str, bytes], *, links: Mapping[str, str] | None = None, folders: Sequence[str] = ()
) -> bytes:
    """A tar archive in memory; every file executable, everything root's, no times: the same bytes every time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            archive.addfile(entry)
    return buffer.getvalue()
