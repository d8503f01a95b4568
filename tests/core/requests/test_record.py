"""The record of a fallback: written, read and undone in one place."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.requests.record import (
    ASKED_ANNOTATION,
    DECIDED_ANNOTATION,
    MARK_ANNOTATION,
    RECORD_ANNOTATION,
    as_created,
    asked_first,
    asked_of,
    asked_text,
    mark_text,
    read_asked,
    record_with,
    recorded,
    undone,
    with_record,
    written,
)
from tests.build import GPU, MIG, container, pod, resource

PROFILES = ["1g.10gb", "1g.10gb.me", "2g.20gb", "3g.30gb", "7g.80gb"]


def asked(**containers):
    return {name: {resource(r): n for r, n in gpus.items()} for name, gpus in containers.items()}


def fallen(record, *containers, came=None, init=(), **annotations):
    text = {ASKED_ANNOTATION: asked_text(came) if isinstance(came, dict) else came} if came else {}
    return pod(*containers, init=init, annotations={RECORD_ANNOTATION: record, **text, **annotations})


@pytest.mark.parametrize(
    ("earlier", "record"),
    [
        ("", "2g.20gb->1g.10gb"),
        ("junk", "2g.20gb->1g.10gb"),
        ("3g.30gb->2g.20gb,2g.20gb->1g.10gb", "3g.30gb->2g.20gb,2g.20gb->1g.10gb"),
        (
            ",".join(f"{n}g.{n}gb->gpu" for n in range(1, 40)),
            ",".join([*(f"{n}g.{n}gb->gpu" for n in range(1, 32)), "2g.20gb->1g.10gb"]),
        ),
    ],
)
def test_what_is_recorded_is_read_again(earlier, record):
    """What is new is at the end, and is read again, however much was there before."""
    assert record_with(earlier, [("2g.20gb", "1g.10gb")]) == record
    assert (MIG + "2g.20gb", MIG + "1g.10gb") in list(recorded(record))


@given(st.lists(st.tuples(st.sampled_from(PROFILES), st.sampled_from([*PROFILES, "gpu"])), max_size=8))
def test_a_record_says_what_was_written(pairs):
    """What is read is what was written, each once, in its order."""
    assert list(recorded(written(pairs))) == [
        (resource(old), resource(new)) for old, new in dict.fromkeys(pairs)
    ]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("", ""),
        ("nonsense", ""),
        ("3g.30gb->1g.10gb", "3g.30gb"),
        ("3g.30gb->2g.20gb,2g.20gb->1g.10gb,x", "3g.30gb, 2g.20gb"),
    ],
)
def test_words(record, words):
    """What was asked for, for people."""
    assert asked_first(record) == words


# What was asked, by container

_counts = st.dictionaries(
    st.sampled_from([GPU, *(MIG + one for one in PROFILES)]), st.integers(1, 999_999), min_size=1
)
_names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.dictionaries(_names, _counts, min_size=1, max_size=5))
def test_asked_is_compact_json_and_is_read_again(came):
    """Any tool can read the annotation, and reading it gives what was written."""
    text = asked_text(came)
    assert read_asked(text) == came
    assert text == json.dumps(
        {name: {r: str(n) for r, n in gpus.items()} for name, gpus in came.items()}, separators=(",", ":")
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "null", "[]", "nonsense", '{"main":{}}', '{"main":1}', '{"main":{"nvidia.com/gpu":1}}',
        '{"main":{"nvidia.com/gpu":"0"}}', '{"main":{"nvidia.com/gpu":"-1"}}', '{"main":{"nvidia.com/gpu":"1.5"}}',
        '{"main":{"nvidia.com/gpu":"01"}}', '{"main":{"nvidia.com/gpu":"1000000"}}', '{"main":{"cpu":"1"}}',
        '{"Main":{"nvidia.com/gpu":"1"}}', '{"main":{"nvidia.com/mig-1g":"1"}}', ' {"main":{"nvidia.com/gpu":"1"}}',
        '{"main":{"nvidia.com/gpu":"1"},"main":{"nvidia.com/gpu":"2"}}', '{"main":{"nvidia.com/gpu":"1"}}x',
        '{"main":{"nvidia.com/gpu":"1","nvidia.com/gpu":"2"}}', '{"main":{"nvidia.com/gpu":"١"}}',
        "{" + ",".join(f'"c{n}":{{"nvidia.com/gpu":"1"}}' for n in range(200)) + "}",
    ],
)  # fmt: skip
def test_what_is_unreadable(text):
    """What the webhook would not write, or what is over 4 KiB, says nothing."""
    assert read_asked(text) is None


def test_what_is_too_long_is_left_out():
    """Over 4 KiB nothing is written; nor for names that no container can have."""
    lengths = {n: len(asked_text(asked(**{f"c{i}": {"gpu": 1} for i in range(n)}))) for n in range(1, 200)}
    fitting = [n for n, length in lengths.items() if length]
    assert fitting == list(range(1, max(fitting) + 1))
    assert 4096 - 30 < lengths[max(fitting)] <= 4096
    assert asked_text(asked(**{'"': {"gpu": 1}})) == ""
    assert asked_text({}) == ""


@pytest.mark.parametrize(
    ("earlier", "text"),
    [
        ("", asked(main={"2g.20gb": 1}, side={"gpu": 2})),
        ("nonsense", asked(main={"2g.20gb": 1}, side={"gpu": 2})),
        (asked(main={"3g.30gb": 1}), asked(main={"3g.30gb": 1}, side={"gpu": 2})),
        (asked(main={"3g.30gb": 1}, side={"7g.80gb": 2}), asked(main={"3g.30gb": 1}, side={"7g.80gb": 2})),
    ],
)
def test_a_later_call(earlier, text):
    """Entries of containers that are known stay, new containers are added; what cannot be read is overwritten."""
    one = pod(container(**{"2g.20gb": 1, "cpu": 1}), container("side", gpu=2), container("none", cpu=1))
    one = replace(
        one, annotations={ASKED_ANNOTATION: earlier if isinstance(earlier, str) else asked_text(earlier)}
    )
    found = with_record(one, [("2g.20gb", "1g.10gb")])
    assert read_asked(found[ASKED_ANNOTATION]) == text
    assert with_record(replace(one, annotations=found), [("2g.20gb", "1g.10gb")]) == found


# Undoing


@pytest.mark.parametrize(
    ("record", "has", "came"),
    [
        ("", "1g.10gb", "1g.10gb"),
        ("nonsense,->,a->b,2g.20gb,2g.20gb->,gpu->1g.10gb", "1g.10gb", "1g.10gb"),
        ("2g.20gb->1g.10gb", "1g.10gb", "2g.20gb"),
        ("2g.20gb->1g.10gb", "2g.20gb", "2g.20gb"),
        ("1g.10gb->2g.20gb", "2g.20gb", "1g.10gb"),
        ("7g.80gb->gpu", "gpu", "7g.80gb"),
        ("3g.30gb->2g.20gb,2g.20gb->1g.10gb", "1g.10gb", "3g.30gb"),
        ("2g.20gb->1g.10gb,3g.30gb->2g.20gb", "1g.10gb", "2g.20gb"),
        ("2g.20gb->1g.10gb,3g.30gb->2g.20gb", "2g.20gb", "3g.30gb"),
        ("2g.20gb->1g.10gb,1g.10gb->2g.20gb", "2g.20gb", "2g.20gb"),
        # several became the same one: the largest, in whatever order they stand there
        ("3g.30gb->1g.10gb,2g.20gb->1g.10gb", "1g.10gb", "3g.30gb"),
        ("2g.20gb->1g.10gb,3g.30gb->1g.10gb", "1g.10gb", "3g.30gb"),
    ],
)
def test_a_record_without_asked(record, has, came):
    """For pods of older versions only the record is there: the largest counts where several became the same one."""
    before = undone(fallen(record, container(cpu=2, **{has: 2})))
    assert asked_of(before) == asked(main={came: 2})
    assert str(before.containers[0].requests["cpu"]) == "2"
    assert before.containers[0].requests == before.containers[0].limits


@pytest.mark.parametrize(
    ("record", "containers", "came", "before"),
    [
        # which of both became which stands there
        (
            "3g.30gb->1g.10gb,2g.20gb->1g.10gb",
            {"a": {"1g.10gb": 1}, "b": {"1g.10gb": 1}},
            {"a": {"3g.30gb": 1}, "b": {"2g.20gb": 1}},
            {"a": {"3g.30gb": 1}, "b": {"2g.20gb": 1}},
        ),
        (
            "3g.30gb->2g.20gb,2g.20gb->1g.10gb",
            {"a": {"2g.20gb": 1}, "b": {"1g.10gb": 1}},
            {"a": {"3g.30gb": 1}, "b": {"2g.20gb": 1}},
            {"a": {"3g.30gb": 1}, "b": {"2g.20gb": 1}},
        ),
        # and what was asked for so in the first place
        ("2g.20gb->1g.10gb", {"a": {"1g.10gb": 1}}, {"a": {"1g.10gb": 1}}, {"a": {"1g.10gb": 1}}),
        ("2g.20gb->1g.10gb", {"a": {"1g.10gb": 3}}, {"a": {"2g.20gb": 1, "1g.10gb": 2}}, {"a": {"2g.20gb": 1, "1g.10gb": 2}}),
        # a container that it does not name goes by the record
        ("2g.20gb->1g.10gb", {"a": {"1g.10gb": 1}}, {"b": {"1g.10gb": 1}}, {"a": {"2g.20gb": 1}}),
        # so does one whose entry the record or the number of devices does not bear out
        ("2g.20gb->1g.10gb", {"a": {"1g.10gb": 1}}, {"a": {"7g.80gb": 1}}, {"a": {"2g.20gb": 1}}),
        ("2g.20gb->1g.10gb", {"a": {"1g.10gb": 1}}, {"a": {"2g.20gb": 5}}, {"a": {"2g.20gb": 1}}),
        ("7g.80gb->2g.20gb", {"a": {"2g.20gb": 1, "1g.10gb": 3}}, {"a": {"7g.80gb": 3, "1g.10gb": 1}}, {"a": {"7g.80gb": 1, "1g.10gb": 3}}),
        # and where there is no record, nothing was replaced
        ("", {"a": {"1g.10gb": 1}}, {"a": {"7g.80gb": 1}}, {"a": {"1g.10gb": 1}}),
    ],
)  # fmt: skip
def test_asked_is_taken_where_it_agrees(record, containers, came, before):
    """What was asked is taken from the annotation, container by container, where record and counts agree with it."""
    one = fallen(record, *(container(name, **gpus) for name, gpus in containers.items()), came=asked(**came))
    assert asked_of(undone(one)) == asked(**before)


@given(st.data())
def test_forged_annotations_never_make_more_devices(data):
    """Whatever a pod's author writes: a pod asked for as many devices as it has, each of a type that its record names."""
    kinds = st.sampled_from([*PROFILES, "gpu"])
    record = written(data.draw(st.lists(st.tuples(kinds, kinds), max_size=6)))
    gpus = st.dictionaries(kinds, st.integers(1, 4), min_size=1, max_size=3)
    has, came = data.draw(gpus), data.draw(gpus)
    one = fallen(record, container(**has), came=asked(main=came))
    (before,) = asked_of(undone(one)).values()
    assert sum(before.values()) == sum(has.values())
    named = {old for old, _ in recorded(record)}
    assert set(before) <= named | {resource(name) for name in has}


def test_as_created():
    """Before fallback and without the scheduler's node; a pod of a template that was decided about came as it is."""
    one = fallen("2g.20gb->1g.10gb", container(**{"1g.10gb": 1}), other="x")
    assert asked_of(as_created(one)) == asked(main={"2g.20gb": 1})
    decided = fallen("2g.20gb->1g.10gb", container(**{"1g.10gb": 1}), **{DECIDED_ANNOTATION: "template"})
    assert as_created(decided) is decided
    marked = pod(container(**{"1g.10gb": 1}), annotations={MARK_ANNOTATION: mark_text(one), "other": "x"})
    assert as_created(marked).annotations == {"other": "x"}


def test_only_gpus_come_back():
    """A section that has no GPU stays as it is, and zero of one is nothing."""
    given_ = container("main", limits={"1g.10gb": 1, "gpu": 0, "cpu": 4}, cpu=2)
    before = undone(fallen("2g.20gb->1g.10gb", given_, came=asked(main={"2g.20gb": 1}))).containers[0]
    assert before.requests is given_.requests
    assert {name: str(amount) for name, amount in before.limits.items()} == {
        GPU: "0",
        "cpu": "4",
        MIG + "2g.20gb": "1",
    }
