"""Where to listen: `host:port` as it is written on a command line, and the socket for it."""

import socket
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import InvalidInput, TesseraError

_BACKLOG: Final = 1024  # connections that the kernel may hold while a burst of TLS handshakes is worked off


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str  # empty: every address, IPv6 and IPv4
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, `:port` or `[v6]:port`."""
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if (
            not colon
            or not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536)
            or (":" in host and not bracketed)
        ):
            raise InvalidInput(
                f'"{text}" is not an address to listen on; write host:port, :port or [v6-address]:port'
            )
        return cls(host[1:-1] if bracketed else host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """A listening socket that never blocks."""
        dual = not self.host and socket.has_dualstack_ipv6()
        try:
            found = socket.getaddrinfo(self.host or ("::" if dual else "0.0.0.0"), self.port)  # noqa: S104 # asked for
            family, *_, where = found[0]
            listening = socket.create_server(where[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except OSError as error:
            raise TesseraError(f"cannot listen on {self}: {error.strerror or error}") from error
        listening.settimeout(0)
        return listening
