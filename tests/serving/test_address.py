"""Where to listen."""

import pytest

from tessera.core.errors import InvalidInput
from tessera.serving.address import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8443", "", 8443),
        ("0.0.0.0:1", "0.0.0.0", 1),  # noqa: S104
        ("[::1]:443", "::1", 443),
        ("host.example:65535", "host.example", 65535),
    ],
)
def test_addresses_are_read_and_written(text, host, port):
    """An address to listen on is read, and written as it was."""
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "8443", "host:", "host:x", "host:65536", "::1:443", "host:-1", "host:٣", ":²", ":" + "9" * 5000],
)
def test_anything_else_is_refused(text):
    """Anything else is refused with what would be right."""
    with pytest.raises(InvalidInput, match="write host:port"):
        Address.parse(text)
