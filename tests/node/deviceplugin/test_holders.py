"""The record of who holds which device."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node.deviceplugin.allocations import Holders
from tessera.node.state import Key

A, B, C = ("example.com/x", "a"), ("example.com/x", "b"), ("example.com/y", "a")


def test_what_is_on_disk_comes_back(tmp_path: Path) -> None:
    """Devices and names outlive a restart; a device is on disk before anything else is done with it."""
    path = tmp_path / "state" / "holders.json"
    holders = Holders(path)
    holders.grant([A, B])
    holders.named({B: "ml/train"})
    again = Holders(path)
    again.load()
    assert again.of([A, B, C]) == {A: "a pod", B: "ml/train"}
    holders.counted([B])
    assert path.read_bytes() == b'[["example.com/x","a","a pod"],["example.com/x","b","ml/train"]]'


def test_fault_60_what_is_no_longer_counted_is_free_after_a_while(tmp_path: Path) -> None:
    """The kubelet does not count a pod deleted by force whose container ends, nor one that comes: both have ten seconds."""
    path, now = tmp_path / "holders.json", 0.0
    holders = Holders(path, lambda: now)
    holders.grant([A])
    holders.named({B: "ml/train"})
    holders.counted([])
    now = 9.0
    holders.counted([])
    assert holders.all == {A, B}
    again = Holders(path, lambda: now)
    again.load()
    again.counted([])
    now = 12.0
    holders.counted([])
    again.counted([])
    assert not holders.all
    assert again.all == {A, B}
    again.counted([B])
    now = 19.0
    again.counted([])
    assert again.all == {B}, "counted in between: its time begins again"
    now = 29.0
    again.counted([])
    assert again.all == frozenset()


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'[["a"]]', b"\xff", b'[["\xff", "a", "b"]]'])
def test_a_broken_file_is_not_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """One line, and it is known that the record is lost."""
    path = tmp_path / "holders.json"
    path.write_bytes(data)
    holders = Holders(path)
    holders.load()
    assert (holders.all, holders.lost) == (frozenset(), True)
    assert "cannot be read, every device counts as held" in caplog.text


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and the record goes on in memory."""
    (tmp_path / "state").write_text("a file where the folder should be")
    holders = Holders(tmp_path / "state" / "holders.json")
    holders.grant([A])
    holders.grant([B])
    assert holders.all == {A, B}
    assert len(caplog.records) == 1


_KEYS = st.sampled_from([A, B, C])
_STEPS = st.one_of(
    st.tuples(st.just("grant"), st.sets(_KEYS)),
    st.tuples(st.just("named"), st.sets(_KEYS)),
    st.tuples(st.just("counted"), st.sets(_KEYS)),
    st.tuples(st.just("wait"), st.just(set[Key]())),
)


@given(st.lists(_STEPS, max_size=12))
def test_only_the_kubelet_frees(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, set[Key]]]
) -> None:
    """Whatever happens in whatever order: a device is held until the kubelet has not counted it for the whole grace."""
    now = 0.0
    absent: dict[Key, float] = {}  # since when the kubelet says that it does not count it
    holders = Holders(tmp_path_factory.mktemp("state") / "holders.json", lambda: now)
    for what, keys in steps:
        before = holders.all
        if what == "grant":
            holders.grant(keys)
        elif what == "named":
            holders.named(dict.fromkeys(keys, "ml/train"))
        elif what == "wait":
            now += 6.0
        else:
            absent = {key: absent.get(key, now) for key in before - keys}
            holders.counted(keys)
            assert holders.all == keys | {key for key, since in absent.items() if now - since < 10.0}
            continue
        absent = {key: since for key, since in absent.items() if key not in keys}
        assert holders.all == before | keys
