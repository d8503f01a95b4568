"""Files that change while we run."""

import os

import pytest

from tessera.kube.files import WatchedFiles, signature_of


def write(path) -> None:
    path.write_text("another text")


def rename(path) -> None:
    other = path.with_name("other")
    other.write_text(path.read_text())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


def keep_the_time(path) -> None:
    before = path.stat()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def remove(path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [write, rename, keep_the_time, remove])
def test_a_change_is_seen_once(tmp_path, change):
    """A write, a rename over it, the same length and time, its end: each is one change, and then none."""
    path = tmp_path / "file"
    path.write_text("one")
    files = WatchedFiles(path)
    assert [files.changed(), files.changed()] == [True, False]
    change(path)
    assert [files.changed(), files.changed()] == [True, False]


def test_a_swapped_link_is_a_change(tmp_path):
    """A mounted ConfigMap changes by a link two folders up."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("same")
    (tmp_path / "data").symlink_to("v1")
    files = WatchedFiles(tmp_path / "data" / "file")
    assert files.changed()
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").rename(tmp_path / "data")
    assert [files.changed(), files.changed()] == [True, False]


def test_a_missing_file_has_no_signature(tmp_path):
    """What is not there is not there, also at the first look, and is seen when it comes."""
    path = tmp_path / "file"
    assert signature_of(path) is None
    files = WatchedFiles(path)
    assert [files.changed(), files.changed()] == [True, False]
    path.write_text("one")
    assert [files.changed(), files.changed()] == [True, False]


def test_any_of_several_files_is_a_change(tmp_path):
    """A certificate and its key belong together."""
    paths = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    for path in paths:
        path.write_text("one")
    files = WatchedFiles(*paths)
    files.changed()
    for path in paths:
        path.write_text("another")
        assert [files.changed(), files.changed()] == [True, False]
