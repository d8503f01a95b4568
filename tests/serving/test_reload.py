"""Files that are followed while the server runs."""

import asyncio
import os
from pathlib import Path

import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.configuration import webhook as config
from tessera.serving.reload import Followed


def parse(content: bytes) -> int:
    if not content.isdigit():
        raise InvalidInput(f'limit: "{content.decode()}" is not a number')
    return int(content)


class Follow:
    """A followed file, what was used and what was reported."""

    def __init__(self, path: Path) -> None:
        self.used: list[int] = []
        self.told: list[tuple[str, str | None]] = []
        self.followed = Followed(
            "configuration", [path], parse, self.used.append, lambda *told: self.told.append(told)
        )
        self.followed.load()

    def check(self) -> None:
        asyncio.run(self.followed.check())


def mount(folder: Path, content: bytes, version: str) -> None:
    """Change a file as the kubelet does in a mounted ConfigMap."""
    data = folder / f"..{version}"
    data.mkdir(parents=True)
    (data / "config").write_bytes(content)
    (folder / "..tmp").symlink_to(data.name)
    (folder / "..tmp").rename(folder / "..data")
    if not (folder / "config").is_symlink():
        (folder / "config").symlink_to("..data/config")


def test_first_load_fails(tmp_path):
    """At the start a broken file is the caller's error, with its path."""
    path = tmp_path / "config"
    with pytest.raises(InvalidInput, match=f"^{path}: no such file or directory$"):
        Follow(path)
    path.write_text("x")
    with pytest.raises(InvalidInput, match=f'^{path}: limit: "x" is not a number$'):
        Follow(path)


def test_fault_26_broken_while_running(tmp_path):
    """A broken file changes nothing, is reported once with the field's path, and shows; a good one is taken."""
    path = tmp_path / "config"
    path.write_text("1")
    follow = Follow(path)
    path.write_text("1x")
    follow.check()
    follow.check()
    assert follow.used == [1]
    assert follow.told == [
        ("configuration not reloaded, the last good one stays in use", f'{path}: limit: "1x" is not a number')
    ]
    assert (follow.followed.good, follow.followed.bad, follow.followed.current) == (1, 1, False)
    path.write_text("12")
    follow.check()
    assert follow.used == [1, 12]
    assert follow.told[1:] == [("configuration reloaded", None)]
    assert (follow.followed.good, follow.followed.bad, follow.followed.current) == (2, 1, True)


def test_every_complaint(tmp_path):
    """A file with several mistakes is refused with all of them, each with the path."""
    path = tmp_path / "config"
    path.write_text("a: 1\nb: 2\n")
    with pytest.raises(InvalidInput) as caught:
        Followed("configuration", [path], config.parse, lambda _: None, lambda *_: None).load()
    assert str(caught.value) == f"{path}: a: unknown field\n{path}: b: unknown field"


def test_mounted_config_map(tmp_path):
    """A swapped link is a change; the same content looked at again is none."""
    folder = tmp_path / "mounted"
    mount(folder, b"1", "first")
    follow = Follow(folder / "config")
    follow.check()
    mount(folder, b"2", "second")
    follow.check()
    follow.check()
    assert follow.used == [1, 2]


def test_gone_and_back(tmp_path):
    """A file that vanishes is reported and outlived."""
    path = tmp_path / "config"
    path.write_text("1")
    follow = Follow(path)
    path.unlink()
    follow.check()
    follow.check()
    assert follow.told == [
        ("configuration not reloaded, the last good one stays in use", f"{path}: no such file or directory")
    ]
    path.write_text("3")
    follow.check()
    assert follow.used == [1, 3]


def test_same_size_same_second(tmp_path):
    """A change that leaves size and second alone is seen."""
    path = tmp_path / "config"
    path.write_text("1")
    os.utime(path, (1, 1))
    follow = Follow(path)
    path.write_text("2")
    os.utime(path, (1, 1))
    follow.check()
    assert follow.used == [1, 2]
