"""What every object has."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.protocol.kubernetes.objects import moment, seconds


@given(st.integers(0, 253402300799))
def test_a_moment_is_read_as_it_was_written(at: int) -> None:
    """To the second, until the year 9999."""
    assert seconds(moment(at)) == at


def test_a_moment_as_the_api_server_writes_it() -> None:
    """What is less than a second is cut off; what is no time is none."""
    assert moment(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert [seconds(text) for text in ("2027-01-15T08:00:00Z", "soon", "", None)] == [1_800_000_000, None, None, None]  # fmt: skip
