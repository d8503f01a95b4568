"""The system layer: Debian's Python 3.11 and the libraries it needs, unpacked from their packages.

Packages are fetched by name through apt, which knows the mirrors and checks the hashes; nothing is installed on this
machine. Only what a program without a terminal needs is kept, and each package's licence and control data stay, for people
and for scanners.
"""

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.image.bytecode import PYTHON, compile_all
from tools.image.errors import ImageError

_SUITE: Final = "bookworm"

PACKAGES: Final = (
    "base-files",  # /etc/os-release: scanners go by it
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libstdc++6",  # grpcio
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
)

# What the packages bring along and Tessera does not use.
_LEFT_OUT: Final = (
    "etc/cron.*", "etc/default", "etc/dpkg", "etc/init.d", "etc/profile.d", "etc/update-motd.d", "etc/skel", "etc/issue*",
    "home", "media", "mnt", "opt", "srv", "usr/games", "usr/include", "usr/src", "usr/share/base-files",
    "usr/share/lintian", "usr/share/man", "usr/share/applications", "usr/share/binfmts", "usr/share/bug",
    "usr/share/dict", "usr/share/info", "usr/share/pixmaps", "usr/share/gdb", "usr/share/gcc", "usr/share/libc-bin",
    "usr/lib/*/gconv", "usr/lib/*/audit", "usr/lib/*/perl5", "usr/lib/mime",
    "usr/lib/python3.11/lib2to3", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/curses",
    "usr/lib/python3.11/sqlite3", "usr/lib/python3.11/dbm", "usr/lib/python3.11/turtle.py",
    "var/backups", "var/cache", "var/local", "var/mail", "var/spool", "var/opt",
)  # fmt: skip
# Extension modules whose libraries are not in the list of packages.
_MODULES_LEFT_OUT: Final = ("_curses", "_curses_panel", "_dbm", "_sqlite3", "nis", "readline")

_ACCOUNT: Final = 65532  # what distroless images call nonroot
_FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\ntessera:x:{_ACCOUNT}:{_ACCOUNT}:tessera:/:/nonexistent\n",
    "etc/group": f"root:x:0:\ntessera:x:{_ACCOUNT}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that apt offers: the very file."""

    name: str
    version: str
    sha256: str


def architecture() -> str:
    """This machine's architecture, as Debian and container images call it."""
    machine = platform.machine()
    try:
        return {"x86_64": "amd64", "aarch64": "arm64"}[machine]
    except KeyError:
        raise ImageError(f"images are made for x86_64 and aarch64, and this machine is {machine}") from None


def offered() -> list[Package]:
    """The packages that apt would fetch now; what the system layer depends on."""
    if shutil.which("apt-get") is None or _codename() != _SUITE:
        raise ImageError(
            f"the image is made of Debian {_SUITE}'s packages, which needs a Debian {_SUITE}: use the Dockerfile here"
        )
    found = _show()
    if missing := [name for name in PACKAGES if name not in found]:
        raise ImageError(
            f"apt does not know {', '.join(missing)}: run `apt-get update` as root to fetch its lists"
        )
    return [found[name] for name in PACKAGES]


def build(folder: Path, packages: Sequence[Package], work: Path) -> None:
    """Unpack the system layer into an empty folder; downloads lie in `work`."""
    _run(["apt-get", "download", "--quiet", *(f"{one.name}={one.version}" for one in packages)], work)
    status = folder / "var" / "lib" / "dpkg" / "status.d"
    for package in packages:
        archive = next(work.glob(f"{package.name}_*.deb"))
        if hashlib.sha256(archive.read_bytes()).hexdigest() != package.sha256:
            raise ImageError(f"{archive.name} is not what apt's lists say that it is")
        _run(["dpkg-deb", "--extract", archive, folder], work)
        status.mkdir(parents=True, exist_ok=True)
        (status / package.name).write_text(_run(["dpkg-deb", "--field", archive], work))
    _merge_usr(folder)
    _leave_out(folder)
    (folder / "usr" / "bin" / "python3").symlink_to(f"python{PYTHON}")
    compile_all(folder, Path("usr/lib") / f"python{PYTHON}")
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    for name in ("dev", "proc", "sys", "tmp", "run"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "tmp").chmod(0o1777)


def _codename() -> str:
    text = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return values.get("VERSION_CODENAME", "").strip('"')


def _show() -> dict[str, Package]:
    shown = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", *PACKAGES], capture_output=True, text=True, check=False
    ).stdout
    found = {}
    for paragraph in shown.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if {"Package", "Version", "SHA256"} <= fields.keys():
            found[fields["Package"]] = Package(fields["Package"], fields["Version"], fields["SHA256"])
    return found


def _merge_usr(folder: Path) -> None:
    """`/bin` and `/lib` are links into `/usr`, as on every Debian of today; packages still unpack beside it."""
    for name in ("bin", "sbin", "lib", "lib64"):
        apart, merged = folder / name, folder / "usr" / name
        if apart.is_dir() and not apart.is_symlink():
            shutil.copytree(apart, merged, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(apart)
        merged.mkdir(parents=True, exist_ok=True)
        apart.symlink_to(f"usr/{name}")


def _leave_out(folder: Path) -> None:
    for pattern in _LEFT_OUT:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in _MODULES_LEFT_OUT:
        for path in folder.glob(f"usr/lib/python{PYTHON}/lib-dynload/{name}.*.so"):
            path.unlink()
    for path in folder.glob("usr/share/doc/*/*"):
        if path.name != "copyright":
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


def _run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"`{' '.join(map(str, command))[:200]}` failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
