"""Label selectors."""

import pytest

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import EVERYTHING, LabelSelector

LABELS = {"pool": "a", "zone": "x", "nvidia.com/gpu.count": "8", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("  ", True),
        ("pool=a", True),
        ("pool==a", True),
        ("pool = a , zone=x", True),
        ("pool=b", False),
        ("pool!=a", False),
        ("pool!=b", True),
        ("other!=b", True),
        ("pool", True),
        ("other", False),
        ("!pool", False),
        ("! other", True),
        ("pool in (a, b)", True),
        ("pool in (b)", False),
        ("pool notin (b,c)", True),
        ("pool notin (a)", False),
        ("other notin (a)", True),
        ("other in (a)", False),
        ("nvidia.com/gpu.count=8,pool in (a),!old", True),
        ("nvidia.com/gpu.count>4", True),
        ("nvidia.com/gpu.count<4", False),
        ("pool>4", False),
        ("empty=", True),
        ("empty", True),
        ("pool=,zone=x", False),
        ("in=x", False),
        ("pool in (a),zone in (x,y),zone!=y", True),
    ],
)
def test_matches(text, matches):
    """Selectors mean what they mean to kubectl."""
    assert LabelSelector.parse(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    "text",
    [",", "a=b,", "a==b=c", "a in b", "a in (b", "a in (b))", "=b", "!", "a b", "a=(b)", "a,,b", "a=b\n;c", "-a", "a=-b"],
)  # fmt: skip
def test_refused(text):
    """What kubectl would not read is refused in one sentence."""
    with pytest.raises(InvalidInput, match="expected such as pool=a") as error:
        LabelSelector.parse(text)
    assert "\n" not in str(error.value)


def test_everything():
    """No requirement selects everything."""
    assert EVERYTHING.matches({})
    assert LabelSelector.parse(" ").text == ""
