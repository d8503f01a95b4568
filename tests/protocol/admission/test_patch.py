"""JSON patches: applied strictly, or not at all."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.kubernetes.pod import SetAmount
from tessera.core.kubernetes.quantity import Quantity
from tessera.protocol.admission.patch import PatchDoesNotApply, apply, build, escape


def test_apply():
    """Add replaces what is there, remove takes away, and the document given stays as it was."""
    document = {"a": {"b/c": 1}, "l": [{"x": {}}]}
    operations: list[Any] = [
        {"op": "remove", "path": "/a/b~1c"},
        {"op": "add", "path": "/a/m~0n", "value": {"k": "v"}},
        {"op": "add", "path": "/l/0/x/y", "value": "z"},
    ]
    assert apply(document, operations) == {"a": {"m~n": {"k": "v"}}, "l": [{"x": {"y": "z"}}]}
    assert document == {"a": {"b/c": 1}, "l": [{"x": {}}]}


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ({"op": "remove", "path": "/a/none"}, "remove /a/none: there is nothing of that name"),
        ({"op": "add", "path": "/x/y", "value": 1}, "add /x/y: there is no x"),
        ({"op": "add", "path": "/l/1/y", "value": 1}, "add /l/1/y: there is no 1"),
        ({"op": "add", "path": "/l/0/n/y", "value": 1}, "add /l/0/n/y: its parent is no object"),
        ({"op": "replace", "path": "/a/b", "value": 1}, "replace /a/b: there is nothing of that name"),
    ],
)
def test_does_not_apply(operation, why):
    """What the API server would refuse is refused here first."""
    with pytest.raises(PatchDoesNotApply, match=why):
        apply({"a": {"b": 1}, "l": [{"n": None}]}, [operation])


@pytest.mark.parametrize(
    ("resources", "made"),
    [
        ({}, ["resources", "resources/limits"]),
        ({"resources": None}, ["resources", "resources/limits"]),
        ({"resources": {}}, ["resources/limits"]),
        ({"resources": {"limits": None}}, ["resources/limits"]),
        ({"resources": {"limits": {}}}, []),
    ],
)
def test_parents_that_are_missing_or_null_are_made_once(resources, made):
    """Two amounts in one section need its map once, and one that is there is kept."""
    edits = [SetAmount("containers", 0, "limits", name, Quantity.parse("1")) for name in ("a", "b")]
    operations = build(edits, {"spec": {"containers": [resources]}})
    paths = [f"/spec/containers/0/{path}" for path in (*made, "resources/limits/a", "resources/limits/b")]
    assert [operation["path"] for operation in operations] == paths


def test_escape():
    """~ and / in a key are ~0 and ~1 in a path."""
    assert escape("a~b/c") == "a~0b~1c"


def test_what_an_operation_adds_stays_as_it_is_there():
    """A map that one operation makes and another fills is not changed inside the patch."""
    operations: list[Any] = [
        {"op": "add", "path": "/a", "value": {}},
        {"op": "add", "path": "/a/b", "value": 1},
    ]
    assert apply({}, operations) == {"a": {"b": 1}}
    assert operations[0]["value"] == {}


paths = st.lists(st.sampled_from(["a", "b", "0", "c/d", "~"]), min_size=1, max_size=3)
documents = st.recursive(
    st.just(1) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", "0", "c/d", "~"]), inner, max_size=3)
    ),
).filter(lambda one: isinstance(one, dict))


@given(documents, st.lists(st.tuples(st.sampled_from(["add", "remove"]), paths, documents), max_size=6))
def test_maps_are_changed_as_an_independent_implementation_changes_them(document, changes):
    """What applies gives what jsonpatch gives, whatever the operations take away under each other; nothing else applies."""
    operations: Any = [
        {
            "op": op,
            "path": "".join(f"/{escape(part)}" for part in parts),
            **({"value": value} if op == "add" else {}),
        }
        for op, parts, value in changes
    ]
    before = copy.deepcopy(document), copy.deepcopy(operations)
    try:
        mine = apply(document, operations)
    except PatchDoesNotApply:
        return  # stricter than JSON Patch: no operation ends in a list
    finally:
        assert (document, operations) == before
    assert mine == jsonpatch.JsonPatch(operations).apply(document)
