"""What a line of a watch says."""

import pytest

from tessera.kube.errors import ApiError, BadResponse
from tessera.kube.watch.table import Key, read_event

_OBJECT = b'{"metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"spec":{"x":"}"}}'


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ADDED","object":%b}' % _OBJECT,
        b'{"type":"ADDED","object":%b} ' % _OBJECT,
        b'{ "type": "ADDED", "object": %b }' % _OBJECT,
        b'{"object":%b,"type":"ADDED"}' % _OBJECT,
    ],
)
def test_an_event_however_it_is_written(line):
    """Its type, the object's bytes as they came, its name and version."""
    event = read_event(line)
    assert (event.type, event.raw, event.key) == ("ADDED", _OBJECT, Key("n", "a"))
    assert event.metadata.version == "7"


def test_an_error_is_raised():
    """As the API server's answer would be; what is no event is a bad response."""
    with pytest.raises(ApiError, match="too old"):
        read_event(b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}')
    for line in (b"x", b'{"type":"ADDED"}', b'{"type":"ADDED","object":7}'):
        with pytest.raises(BadResponse):
            read_event(line)
