"""The kubelet's checkpoint of allocated devices."""

import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.kubelet.checkpoint import CheckpointEntry, allocated, encode, registered

# as a kubelet 1.36 wrote it, with fewer devices and a shorter answer
WRITTEN = b"""{"Data":{"PodDeviceEntries":[
{"PodUID":"ea3f788f-12fc-4dc3-825b-ca1edd742646","ContainerName":"main","ResourceName":"nvidia.com/mig-1g.10gb",
"DeviceIDs":{"-1":["MIG-de72d594-2def-5a96-874a-77788088a691"]},"AllocResp":"CoEFChZOVklESUFf"},
{"PodUID":"ea3f788f-12fc-4dc3-825b-ca1edd742646","ContainerName":"side","ResourceName":"example.com/x",
"DeviceIDs":{"0":["a","b"],"1":["b","c"]},"AllocResp":""}],
"RegisteredDevices":{"nvidia.com/mig-1g.10gb":["MIG-de72d594-2def-5a96-874a-77788088a691"],"nvidia.com/gpu":[]}},
"Checksum":18446744073709551615}"""


def test_devices_are_read_whatever_their_numa_node() -> None:
    """Every device of every container, by resource and id."""
    assert allocated(WRITTEN) == {
        ("nvidia.com/mig-1g.10gb", "MIG-de72d594-2def-5a96-874a-77788088a691"),
        ("example.com/x", "a"),
        ("example.com/x", "b"),
        ("example.com/x", "c"),
    }


def test_the_devices_that_the_kubelet_chooses_from() -> None:
    """The healthy ones of every resource; a file that does not say them says nothing, and not that there are none."""
    one = ("nvidia.com/mig-1g.10gb", "MIG-de72d594-2def-5a96-874a-77788088a691")
    assert registered(WRITTEN) == {one}
    assert registered(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"x":null}}}') == frozenset()
    assert registered(encode([], {one[0]: [one[1]]})) == {one}
    for silent in (b'{"Data":{"PodDeviceEntries":null}}', encode()):
        with pytest.raises(InvalidInput, match="does not say which devices are registered"):
            registered(silent)


def test_no_entries_are_null() -> None:
    """Go writes an empty list as null."""
    nothing = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    assert allocated(nothing) == frozenset()
    assert allocated(encode([])) == frozenset()


def test_what_is_encoded_is_read() -> None:
    """A stand-in's checkpoint reads like the kubelet's."""
    entry = CheckpointEntry("uid", "main", "example.com/x", {"-1": ["a"], "0": ["b"]})
    assert allocated(encode([entry])) == {("example.com/x", "a"), ("example.com/x", "b")}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"Data":{}}',
        b'{"Data":{"RegisteredDevices":{}}}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":["a"]}]}}',  # the format of Kubernetes 1.19
        b'{"Data":{"PodDeviceEntries":[{}]}}',
        b'{"PodDeviceEntries":[]}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_never_an_empty_list(data: bytes) -> None:
    """A file of another shape says nothing about devices: taken for empty it would free them all."""
    with pytest.raises(InvalidInput, match="not as the kubelet writes it"):
        allocated(data)
    with pytest.raises(InvalidInput, match="not as the kubelet writes it"):
        registered(data)
