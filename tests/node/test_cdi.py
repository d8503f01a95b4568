"""The CDI folder: whole files, our own files, nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.core.devices.device import Device, Edits
from tessera.node.cdi import CdiDirectory
from tessera.node.files import write_whole


def devices(count: int, kind: str = "example.com/gpu") -> list[Device]:
    return [
        Device(f"device_{n}", resource="example.com/gpu", cdi_kind=kind, edits=Edits(env=(("D", f"{n}"),)))
        for n in range(count)
    ]


def names(path: Path) -> list[str]:
    return [entry["name"] for entry in json.loads(path.read_text())["devices"]]


def test_specs_are_written_replaced_and_removed(tmp_path: Path) -> None:
    """Each kind has a file; what is no longer there goes; a folder that is missing is made."""
    folder = tmp_path / "run" / "cdi"
    directory = CdiDirectory(folder)
    directory.write(devices(2) + devices(1, "example.com/nic"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "tessera-example.com_gpu.json",
        "tessera-example.com_nic.json",
    ]
    assert names(folder / "tessera-example.com_gpu.json") == ["device_0", "device_1"]
    directory.write(devices(1))
    assert [path.name for path in folder.iterdir()] == ["tessera-example.com_gpu.json"]
    assert names(folder / "tessera-example.com_gpu.json") == ["device_0"]
    directory.write([])
    assert list(folder.iterdir()) == []


def test_fault_24_only_its_own_stale_specs_are_removed(tmp_path: Path) -> None:
    """A spec that an earlier run left is removed, with its half-written one; those of other programs stay."""
    others = {
        "nvidia.yaml": "x",
        "vendor.json": "{}",
        "tessera.json": "{}",
        ".hidden.tmp": "",
        "tessera-notes.txt": "",
    }
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tessera-old.example_gpu.json").write_text("{}")
    (tmp_path / ".tessera-0123456789abcdef.tmp").write_text('{"cdiVersion"')
    CdiDirectory(tmp_path).write(devices(1))
    assert {path.name for path in tmp_path.iterdir()} == {*others, "tessera-example.com_gpu.json"}
    assert {name: (tmp_path / name).read_text() for name in others} == others


def test_an_unchanged_spec_is_not_written_again(tmp_path: Path) -> None:
    """Runtimes reload what changes; what says the same stays the same file, also after a restart."""
    CdiDirectory(tmp_path).write(devices(2))
    (path,) = tmp_path.iterdir()
    before = path.stat().st_ino
    CdiDirectory(tmp_path).write(devices(2))
    assert path.stat().st_ino == before


def test_a_cleaned_folder_is_noticed(tmp_path: Path) -> None:
    """`intact` says whether the specs are still as they were written."""
    directory = CdiDirectory(tmp_path)
    directory.write(devices(1))
    assert directory.intact()
    (path,) = tmp_path.iterdir()
    path.unlink()
    assert not directory.intact()
    directory.write(devices(1))
    assert directory.intact()
    path.write_text("{}")
    assert not directory.intact()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk says no, the old spec is there and nothing else is."""
    path = tmp_path / "spec.json"
    write_whole(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys
from pathlib import Path
from tests.node.test_cdi import CdiDirectory, devices
directory = CdiDirectory(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for count in (500, 501):
        directory.write(devices(count))
        print(count, flush=True)
"""


def test_fault_24_killed_while_writing(tmp_path: Path) -> None:
    """Kill -9 at any moment leaves the old spec or the new one, whole; the next start clears the rest."""
    for written in (0, 1, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        for _ in range(written + 2):  # "ready", then some whole files; it is now in the middle of the next
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert len(names(tmp_path / "tessera-example.com_gpu.json")) in (500, 501)
    CdiDirectory(tmp_path).write(devices(3))
    assert [path.name for path in tmp_path.iterdir()] == ["tessera-example.com_gpu.json"]
