"""Ports of this machine for programs that must be told where to listen."""

import atexit
import random
import socket

from e2e.cluster.errors import ClusterError

#: Below the range from which the kernel takes ports for outgoing connections: no other program gets one by accident.
_PORTS = range(20_000, 32_000)
_kept: list[socket.socket] = []


def free_port() -> int:
    """A port that is given once: neither to another caller nor to another process, for as long as this process lives.

    Several clusters start at the same time, and a program takes a second until it listens. So the port stays bound here.
    The program can still listen there, because both sockets allow the address to be used again.
    """
    for port in random.sample(_PORTS, k=len(_PORTS)):
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: bind() would share a port
        _kept.append(kept)
        return port
    raise ClusterError(f"no port from {_PORTS.start} to {_PORTS.stop} is free")


@atexit.register
def _close() -> None:
    for one in _kept:
        one.close()
