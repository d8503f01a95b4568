"""Layouts that are asked for: the last good one holds."""

from pathlib import Path

import pytest

from tessera.core.devices.device import Transition, transition
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import SIMULATED_H200_70GB
from tessera.core.mig.layout import Strategy
from tessera.node.sources.layout import Decided, Layouts, NodeLayoutStatus, State, file_text
from tests.node.running import slices

CARDS = [SIMULATED_H200_70GB] * 4
MIXED = {"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.30gb": 4}
DONE = Transition(())


def layouts(tmp_path: Path, default: str = "", strategy: Strategy = Strategy.MIXED) -> Layouts:
    return Layouts(CARDS, strategy, tmp_path / "state" / "layout", default)


def resources(decided: Decided) -> dict[str, int]:
    return decided.layout.resources(Strategy.MIXED)


def test_a_layout_that_fits_is_taken(tmp_path: Path) -> None:
    """A layout that fits is applied, and where none is desired it is what the configuration says."""
    some = layouts(tmp_path)
    decided = some.decide("2g.20gb=2,3g.30gb=1", None)
    assert resources(decided) == MIXED
    assert decided.status(DONE) == NodeLayoutStatus(State.SUCCESS)
    assert some.decide("2g.20gb=2,3g.30gb=1", decided) is decided
    for nothing in (None, "", " \n"):
        assert resources(some.decide(nothing, decided)) == {"nvidia.com/gpu": 4}
    default = layouts(tmp_path, default="7g.70gb=1").decide(None, None)
    assert resources(default) == {"nvidia.com/mig-7g.70gb": 4}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("][", "run.ai/mig.config: line 1, column 1:"),
        ("a: &a [*a, *a]", "run.ai/mig.config"),
        ("4g.40gb=1", "4g.40gb"),
        ("3g.30gb=3", "3g.30gb"),
        (
            "{version: v1, mig-configs: {selected: [{devices: [9], mig-enabled: true, mig-devices: [7g.70gb]}]}}",
            "card 9: not there",
        ),
        ("{version: v2, mig-configs: {selected: [{devices: [0]}], x: 1}}", "version: unknown; expected v1"),
    ],
)
def test_fault_27_a_bad_layout_changes_nothing(tmp_path: Path, text: str, reason: str) -> None:
    """No YAML, an impossible layout, an unknown profile: failed, with the reason; the last good layout stays."""
    some = layouts(tmp_path)
    bad = some.decide(text, some.decide("2g.20gb=2,3g.30gb=1", None))
    assert resources(bad) == MIXED
    outcome = bad.status(DONE)
    assert outcome.state is State.FAILED
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
    assert len(outcome.reason) <= 1024
    assert some.decide("1g.10gb=7", bad).status(DONE) == NodeLayoutStatus(State.SUCCESS)


def test_fault_27_across_a_restart(tmp_path: Path) -> None:
    """A plugin that starts in front of a bad annotation goes on with the last good layout of the run before."""
    layouts(tmp_path).decide("2g.20gb=2,3g.30gb=1", None)
    decided = layouts(tmp_path).decide("nonsense", None)
    assert resources(decided) == MIXED
    assert decided.status(DONE).state is State.FAILED
    assert resources(layouts(tmp_path / "elsewhere").decide("nonsense", None)) == {"nvidia.com/gpu": 4}


def test_the_last_good_layout_is_recalled(tmp_path: Path) -> None:
    """Without a word from the cluster, the last good layout is used if there is one; else it is waited for."""
    assert layouts(tmp_path).recall() is None
    layouts(tmp_path).decide("1g.10gb=7", None)
    recalled = layouts(tmp_path).recall()
    assert recalled is not None
    assert resources(recalled) == {"nvidia.com/mig-1g.10gb": 28}


def test_a_kept_layout_that_is_no_text_is_none(tmp_path: Path) -> None:
    """A state file that is not UTF-8 stops no start: it holds no layout, and the next good one replaces it."""
    path = tmp_path / "state" / "layout"
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe\x00")
    some = layouts(tmp_path)
    assert some.recall() is None
    assert resources(some.decide("nonsense", None)) == {"nvidia.com/gpu": 4}
    some.decide("1g.10gb=7", None)
    assert path.read_text() == "1g.10gb=7"


def test_strategies_may_refuse(tmp_path: Path) -> None:
    """What the strategy does not allow is a failed layout; in the configuration it is a mistake."""
    decided = layouts(tmp_path, strategy=Strategy.SINGLE).decide("2g.20gb=2,3g.30gb=1", None)
    assert decided.status(DONE).state is State.FAILED
    assert "use strategy mixed" in decided.status(DONE).reason
    with pytest.raises(InvalidInput, match="use strategy mixed"):
        layouts(tmp_path, default="2g.20gb=2,3g.30gb=1", strategy=Strategy.SINGLE)


def test_fault_28_pending_until_pods_end(tmp_path: Path) -> None:
    """While pods hold on to old devices the layout is pending, and says who they are."""
    decided = layouts(tmp_path).decide("7g.70gb=1", None)
    before = slices(2, [0])
    change = transition(before, slices(7, [0]), {before[0].key: "ml/train"})
    assert decided.status(change) == NodeLayoutStatus(
        State.PENDING,
        "1 to come after 1 × 2g.20gb, kept for ml/train",
    )


def test_what_stays_is_counted(tmp_path: Path) -> None:
    """However many devices stay, the reason names each resource and each pod once."""
    decided = layouts(tmp_path).decide("7g.70gb=1", None)
    ones, twos = slices(1, range(4)), slices(2, [4])
    held = {device.key: f"ml/batch-{number // 2}" for number, device in enumerate(ones)}
    change = transition([*ones, *twos], slices(7, [0]), held | {twos[0].key: "ml/train"})
    assert decided.status(change).reason == (
        "1 to come after 4 × 1g.10gb, kept for ml/batch-0, ml/batch-1; 1 × 2g.20gb, kept for ml/train"
    )


def test_a_long_reason_ends_after_a_word(tmp_path: Path) -> None:
    """Of more pods than an annotation should name, some are named in full, and … says that there are more."""
    decided = layouts(tmp_path).decide("7g.70gb=1", None)
    before = [device for card in range(100) for device in slices(2, [0], card)]
    pods = [f"ml/long-name-of-batch-{number:03}" for number in range(100)]
    held = dict(zip((device.key for device in before), pods, strict=True))
    reason = decided.status(transition(before, slices(7, [0]), held)).reason
    assert len(reason) <= 1024
    assert reason.startswith("1 to come after 100 × 2g.20gb, kept for ml/long-name-of-batch-000, ")
    assert reason.endswith(" …")
    assert set(reason.removesuffix(", …").partition("kept for ")[2].split(", ")) <= {*pods}


def test_a_file_is_followed(tmp_path: Path) -> None:
    """The file's text, every time it changes; nothing while there is no file."""
    path = tmp_path / "layout.yaml"
    assert file_text(path) is None
    path.write_text("1g.10gb=7")
    assert file_text(path) == "1g.10gb=7"
    path.write_text("2g.20gb=3")
    assert file_text(path) == "2g.20gb=3"
    path.write_bytes(b"\xff\xfe")
    assert file_text(path) == "\ufffd\ufffd"
    path.unlink()
    assert file_text(path) is None
