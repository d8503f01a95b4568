"""Lists cut up while they arrive."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kube.errors import BadResponse
from tessera.kube.watch.listing import ListCutter

# texts that look like what is cut at, and objects that contain such places
texts = st.text() | st.sampled_from(['},{"metadata":', '"items":[', "]}", '"', "\\", "}]}"])
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts, inner, max_size=3)
        | st.lists(st.fixed_dictionaries({"metadata": inner}), max_size=3)
    ),
    max_leaves=8,
)
objects = st.lists(
    st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": texts}), "spec": values}), max_size=5
)


def cut(body: bytes, size: int) -> tuple[list[object], str]:
    taken: list[object] = []
    cutter = ListCutter(lambda raw: taken.append(json.loads(raw)))
    for start in range(0, len(body), size):
        cutter.feed(body[start : start + size])
    return taken, cutter.finish().version


@given(objects=objects, size=st.integers(1, 400), typed=st.booleans(), compact=st.booleans())
def test_any_list_cut_anywhere_gives_its_objects(objects, size, typed, compact):
    """Whatever a list holds and however it is cut on its way, its objects come out, each once, in order."""
    metadata = {"resourceVersion": "7"}
    head = {"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": objects}
    if not typed:  # as the API server prints what it has no type for: sorted
        head = {"apiVersion": "v1", "items": objects, "kind": "List", "metadata": metadata}
    body = json.dumps(head, separators=(",", ":") if compact else None).encode() + b"\n"
    assert cut(body, size) == (objects, "7")


def test_objects_come_early():
    """An object is handed out when the next one begins, not when the list is over."""
    taken: list[bytes] = []
    cutter = ListCutter(taken.append)
    cutter.feed(
        b'{"kind":"NodeList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"meta'
    )
    assert taken == []
    cutter.feed(b'data":{"name":"b"}}')
    assert taken == [b'{"metadata":{"name":"a"}}']
    cutter.feed(b"]}")
    assert cutter.finish().version == "7"
    assert len(taken) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"items":7}',
        b'{"metadata":{"resourceVersion":"\xff"},"items":[]}',
        b'{"metadata":{},"items":[{"metadata":{}},{"metadata":',
        b'{"metadata":{},"items":[{"metadata":{}}',
        b'{"metadata":{},"items":[' + b"[" * 100_000,
        b'{"items":' + b"[" * 100_000,
    ],
)
def test_no_list(body):
    """What is no list, or half of one, is refused in one sentence."""
    with pytest.raises(BadResponse, match="a list that"):
        cut(body, 1000)


@pytest.mark.parametrize(
    "body", [b'{"metadata":{"resourceVersion":"7"},"items":%b}' % items for items in (b"null", b"[]")]
)
def test_empty(body):
    """An empty list is a list."""
    assert cut(body, 10) == ([], "7")


@pytest.mark.parametrize(
    ("head", "more", "message"),
    [
        (b'{"metadata":{},"items":[{"a":"', b"x", "an object of more than 16 MiB"),
        (b"", b" ", "a list of more than 64 MiB"),
    ],
)
def test_what_cannot_be_a_list_is_refused_in_time(head, more, message):
    """One endless object is given up, and so is an endless head."""
    with pytest.raises(BadResponse, match=message):
        cut(head + more * 70_000_000, 1_000_000)


def test_many_separators_are_not_quadratic():
    """An object full of places that look like its end is read in reasonable time."""
    inner = [{"metadata": {"n": number}} for number in range(300)]
    body = msgspec.json.encode(
        {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {}, "list": inner}] * 3}
    )
    assert cut(body, 4096) == ([{"metadata": {}, "list": inner}] * 3, "1")
