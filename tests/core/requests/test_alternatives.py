"""The text of a claim's alternatives, and the name that is made from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInput
from tessera.core.requests.alternatives import (
    Alternative,
    Alternatives,
    DeviceRequest,
    is_writable,
    own_expression,
    read,
    template_name,
)
from tests.build import GPU, resource

GENERAL = "tessera-any"
TEXT = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any,gpu/tessera-any"
TYPES = ["1g.10gb", "1g.10gb.me", "2g.20gb", "3g.30gb", "gpu"]

alternatives = st.builds(
    Alternatives,
    st.lists(
        st.builds(
            DeviceRequest,
            st.sampled_from(TYPES).map(resource),
            st.integers(1, 8),
            st.lists(
                st.builds(
                    Alternative,
                    st.sampled_from(TYPES).map(resource),
                    st.sampled_from([GENERAL, "a", "mig-2g.20gb.x-y"]),
                ),
                min_size=1,
                max_size=4,
                unique_by=lambda one: one.resource,
            ).map(tuple),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


@given(alternatives)
def test_what_is_written_can_be_read(given_: Alternatives):
    """read(str(x)) = x, and the name is the text's."""
    assert read(str(given_)) == given_
    assert given_.template == template_name(str(given_))


def test_text_and_name():
    """The text is short and readable; the name is a prefix and 128 bits of its SHA-256."""
    one = DeviceRequest(
        resource("2g.20gb"),
        1,
        tuple(Alternative(resource(t), GENERAL) for t in ("2g.20gb", "1g.10gb", "gpu")),
    )
    assert str(Alternatives((one,))) == TEXT
    assert Alternatives((one,)).template == "tessera-18c6f3d456670cba0b607d35cb32ce17"


def test_the_largest_claim_of_an_h200_can_be_written():
    """32 containers, eight alternatives each, by the chart's classes."""
    types = ["1g.18gb", "1g.18gb.me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb", "gpu"]
    few = tuple(Alternative(resource(one), f"tessera-{one.replace('.', '-')}") for one in types)
    most = Alternatives((DeviceRequest(resource("1g.18gb"), 1, few),) * 32)
    assert is_writable(most)
    assert read(str(most)) == most


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2g.20gb",
        "1*2g.20gb=",
        "0*2g.20gb=2g.20gb/c",
        "01*2g.20gb=2g.20gb/c",
        "33*2g.20gb=2g.20gb/c",
        "17*2g.20gb=2g.20gb/c;17*1g.10gb=1g.10gb/c",  # 34 devices
        "1*2g.20gb=2g.20gb",
        "1*2g.20gb=2g.20gb/",
        "1*2g.20gb=2g.20gb/Class",
        "1*2g.20gb=2g.20gb/a..b",  # the API server would refuse the template
        "1*2g.20gb=2g.20gb/a.-b",
        "1*2g.20gb=1g.10gb.x./c",
        "1*2g.20gb=2g.20gb/c,2g.20gb/d",
        "1*2g.20gb=cpu/c",
        "1*2g.20gb=2g.20gb/c ",
        "1*nvidia.com/mig-2g.20gb=2g.20gb/c",  # not how it is written
        "1*2g.20gb=" + ",".join(f"{n}g.10gb/c" for n in range(1, 10)),  # nine
        ";".join(["1*2g.20gb=2g.20gb/c"] * 33),
        "1*2g.20gb=2g.20gb/" + "c" * 20_000,
    ],
)
def test_anything_else_is_refused(text):
    """The controller makes nothing of a text that the webhook would not write."""
    with pytest.raises(InvalidInput):
        read(text)


def test_expressions_are_the_charts():
    """The general class is narrowed down in the very words of the chart's classes: the scheduler compiles them once."""
    assert own_expression(GPU) == (
        "device.driver == 'gpu.tessera.dev' && device.attributes['gpu.tessera.dev'].type == 'gpu'"
    )
    assert own_expression(resource("1g.10gb.me")) == (
        "device.driver == 'gpu.tessera.dev' && device.attributes['gpu.tessera.dev'].profile == '1g.10gb+me'"
    )


def test_what_was_taken():
    """An allocation names the alternatives; each pair once, and what was not allocated is not reported."""
    found = read(TEXT + ";" + TEXT + ";2*3g.30gb=3g.30gb/c,1g.10gb/c")
    assert found.taken(("gpu-0/1g-10gb", "gpu-1/1g-10gb", "gpu-2/3g-30gb", "gpu-2/3g-30gb", "other")) == (
        (resource("2g.20gb"), resource("1g.10gb")),
        (resource("3g.30gb"), resource("3g.30gb")),
    )
    assert found.taken(()) == ()


@pytest.mark.parametrize(
    ("text", "words", "choices"),
    [
        (TEXT, "2g.20gb, else 1g.10gb, else gpu", [{"2g.20gb": 1}, {"1g.10gb": 1}, {"gpu": 1}]),
        # the request that runs out first stays with its last
        (
            TEXT + ";2*3g.30gb=3g.30gb/c,1g.10gb/c",
            "2g.20gb, else 1g.10gb, else gpu; 2 × (3g.30gb, else 1g.10gb)",
            [{"2g.20gb": 1, "3g.30gb": 2}, {"1g.10gb": 3}, {"gpu": 1, "1g.10gb": 2}],
        ),
    ],
)
def test_what_would_do(text, words, choices):
    """The choices are all requests with their first alternative, then with their second, and so on."""
    found = read(text)
    assert found.words == words
    assert list(found.choices()) == [
        {resource(name): count for name, count in one.items()} for one in choices
    ]
