"""Files that are there whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from tessera.node.files import write_whole


@pytest.mark.parametrize(("lasting", "synced"), [(True, ["file", "folder"]), (False, ["file"])])
def test_what_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool, synced: list[str]
) -> None:
    """The content is on the disk before the file is in place; that it is in place only where it is to last."""
    waited = []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        assert (tmp_path / "file").exists() == is_folder
        waited.append("folder" if is_folder else "file")

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "file", b"content", 0o600, lasting=lasting)
    assert waited == synced
    assert (tmp_path / "file").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failure_names_the_file_that_was_wanted(tmp_path: Path) -> None:
    """The same failure has the same text each time, without the temporary name; and nothing is left over."""
    (tmp_path / "taken").mkdir()
    texts = set()
    for _ in range(2):
        with pytest.raises(IsADirectoryError) as caught:
            write_whole(tmp_path / "taken", b"content")
        texts.add(str(caught.value))
    assert texts == {f"[Errno 21] Is a directory: '{tmp_path / 'taken'}'"}
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file/below"):  # where even cleaning up fails
        write_whole(tmp_path / "file" / "below", b"content")
