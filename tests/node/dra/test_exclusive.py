"""Which of several processes speaks for the node."""

import os
from pathlib import Path

import pytest

from tessera.core.errors import TesseraError
from tessera.node.dra.exclusive import DriverProcess


def test_the_newest_that_lives_leads(tmp_path: Path) -> None:
    """A new process takes over at once; when it has ended, the older one leads again."""
    with DriverProcess(tmp_path) as old:
        assert old.leads()
        with DriverProcess(tmp_path) as new:
            assert (old.leads(), new.leads()) == (False, True)
            assert old.token != new.token
        assert old.leads()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Its lock went with it: files of killed processes do not gather, younger or older than ours, hidden ones when they are old."""
    hidden = tmp_path / ".00000000000000000000-dead.new"
    hidden.touch()
    os.utime(hidden, (0, 0))
    with DriverProcess(tmp_path) as old:
        for number in range(3):
            (tmp_path / f"0000000000000000000{number}-dead").touch()
        (tmp_path / "99999999999999999999-dead").touch()
        assert old.leads()
        assert [path.name.endswith(old.token) for path in tmp_path.iterdir()] == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A full or read-only disk is one sentence, not a traceback."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(TesseraError, match="the DRA driver cannot write there, so it does not start"),
        DriverProcess(tmp_path / "file"),
    ):
        pass
