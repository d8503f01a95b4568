"""The mark of a pod that was decided about by what was free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.requests.record import MARK_ANNOTATION, Mark, can_be_marked, mark_of, mark_text
from tests.build import MIG, container, pod

ONE = f'{{"main":{{"{MIG}1g.10gb":"1"}}}}'
MAIN, SIDE = container(**{"1g.10gb": 1, "cpu": 2}), container("side", **{"2g.20gb": 1, "cpu": 1})


def marked(text, *containers, init=()):
    return pod(*containers, init=init, annotations={MARK_ANNOTATION: text})


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (pod(MAIN), Mark.NONE),
        (marked(ONE, MAIN), Mark.AGREES),
        (marked(ONE, MAIN, container("log", cpu=1)), Mark.AGREES),
        (marked(ONE, MAIN, SIDE), Mark.EARLIER),
        (marked(ONE, MAIN, init=(container("setup", gpu=1),)), Mark.EARLIER),
        (marked(ONE, container(**{"2g.20gb": 1})), Mark.NONE),
        (marked(ONE, container(**{"1g.10gb": 2})), Mark.NONE),
        (marked(ONE, container(**{"1g.10gb": 1, "gpu": 1})), Mark.NONE),
        (marked(ONE, container("other", **{"1g.10gb": 1})), Mark.NONE),
        (marked(ONE, container(cpu=1)), Mark.NONE),
        (marked(ONE, SIDE), Mark.NONE),
        (marked("", MAIN), Mark.NONE),
        (marked("full", MAIN), Mark.NONE),
        (marked("{}", MAIN), Mark.NONE),
        (marked(ONE.replace(":", ": "), MAIN), Mark.NONE),
        (marked(ONE.replace('"1"}', '"01"}'), MAIN), Mark.NONE),
        (marked("{" + ONE[1:-1] * 200 + "}", MAIN), Mark.NONE),
    ],
)  # fmt: skip
def test_what_a_mark_says(one, said):
    """A mark holds only where the webhook could have written it, and each container that it names asks for just that now."""
    assert mark_of(one) is said


def test_too_long():
    """No mark is written that would be too long for an annotation."""
    many = [container(f"main-{i}", **{"1g.10gb": 1}) for i in range(200)]
    assert mark_text(pod(*many)) == ""
    assert not can_be_marked(pod(*many))
    assert can_be_marked(pod(*many[:40]))
    assert not can_be_marked(pod(*many[:60])), "what replaces these may have longer names"
    assert mark_text(pod(*(container(f"main-{i}", **{"1g.10gb.me.all": 1}) for i in range(50))))


names = st.text("ab-1", min_size=1, max_size=3)
containers = st.lists(
    st.builds(
        lambda name, gpus: container(name, **gpus),
        names.filter(lambda name: not name.startswith("-") and not name.endswith("-")),
        st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "gpu", "cpu"]), st.integers(0, 3)),
    ),
    max_size=4,
    unique_by=lambda one: one.name,
)


@given(containers, containers)
def test_a_mark_of_its_own_agrees(first, later):
    """A pod with its own mark is marked; with more containers it is an earlier mark, unless these ask for no GPU."""
    text = mark_text(pod(*first))
    known = {one.name for one in first}
    more = [one for one in later if one.name not in known]
    found = mark_of(marked(text, *first, *more))
    if not text:
        assert found is Mark.NONE
    else:
        assert found is (Mark.EARLIER if mark_text(pod(*more)) else Mark.AGREES)
