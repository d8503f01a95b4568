"""JSON patches: applied strictly, or not at all."""

import pytest

from tessera.protocol.admission.patch import PatchDoesNotApply, apply, escape


def test_apply():
    """Add replaces what is there, remove takes away, and the document given stays as it was."""
    document = {"a": {"b/c": 1}, "l": [{"x": {}}]}
    operations = [
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


def test_escape():
    """~ and / in a key are ~0 and ~1 in a path."""
    assert escape("a~b/c") == "a~0b~1c"
