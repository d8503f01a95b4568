"""ResourceSlices, read: what many have alike is one object."""

import pytest

from tessera.protocol.dra.names import EVERY_NAME, Names
from tessera.protocol.dra.objects import SliceReader
from tessera.protocol.kubernetes.objects import InvalidObject
from tests.protocol.dra.samples import device, raw, slice_


def test_shared():
    """Devices that differ only in what no class looks at are one kind, and nodes with the same share it."""
    reader = SliceReader()
    reader.names = Names(frozenset({"profile"}))
    one, other = (
        reader.read(
            raw(slice_(name, *(device(f"d{n}", profile="2g.20gb", uuid=f"{name}-{n}") for n in range(9))))
        )
        for name in ("s", "t")
    )
    assert one.contents is other.contents
    (group,) = one.contents.groups
    assert group.number == 9
    reader.names = EVERY_NAME
    assert (
        len(reader.read(raw(slice_("s", *(device(str(n), uuid=str(n)) for n in range(9))))).contents.groups)
        == 9
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": {}},
        slice_("s", {"capacity": {"memory": {"value": "many"}}}),
        slice_("s", {"attributes": {"x": {"int": "1"}}}),
    ],
)
def test_broken(broken):
    """A slice that the API server would not accept is left out, with a word."""
    reader = SliceReader()
    reader.names = EVERY_NAME
    with pytest.raises(InvalidObject):
        reader.read(raw({"metadata": {"name": "s"}, **broken}))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"int": -3}, ("int", -3)),
        ({"bool": False}, ("bool", False)),
        ({"string": ""}, ("string", "")),
        ({"version": "1.2.3"}, ("version", "1.2.3")),
        ({"ints": [1, 2]}, ("ints", (1, 2))),
        ({"bools": [True]}, ("bools", (True,))),
        ({"strings": ["a", ""]}, ("strings", ("a", ""))),
        ({"versions": ["1.2.3"]}, ("versions", ("1.2.3",))),
        ({"newer": 1}, ("other", None)),
    ],
)
def test_types_of_attributes(written, read):
    """Each of the API's types; what is newer is of none."""
    reader = SliceReader()
    reader.names = EVERY_NAME
    (group,) = reader.read(raw(slice_("s", {"name": "d", "attributes": {"x": written}}))).contents.groups
    assert [(one.type, one.value) for one in group.kind.attributes] == [read]
