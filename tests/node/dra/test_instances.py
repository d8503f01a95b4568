"""Which of several processes speaks for the node."""

from pathlib import Path

from tessera.node.dra.instances import Instance


def test_the_newest_that_lives_leads(tmp_path: Path) -> None:
    """A new process takes over at once; when it has ended, the older one leads again."""
    with Instance(tmp_path) as old:
        assert old.leads()
        with Instance(tmp_path) as new:
            assert (old.leads(), new.leads()) == (False, True)
            assert old.token != new.token
        assert old.leads()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Its lock went with it; its file is in no process's way."""
    with Instance(tmp_path) as old:
        left = tmp_path / "99999999999999999999-dead"
        left.touch()
        assert old.leads()
        assert not left.exists()
