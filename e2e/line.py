"""A line from one process to the API server that can be held: what is on its way then arrives later."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tessera.protocol import yaml


class Line:
    """Passes bytes on, in both directions, unless it is held."""

    def __init__(self, kubeconfig: Path) -> None:
        """Lead to the API server of a kubeconfig."""
        self._document = yaml.load(kubeconfig.read_bytes(), "kubeconfig")
        server = urlsplit(self._document["clusters"][0]["cluster"]["server"])
        self._target = server.hostname, server.port
        self._passes = threading.Event()
        self._passes.set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        _start(self._accept)

    def kubeconfig(self, file: Path) -> Path:
        """A kubeconfig of the same user that takes this line."""
        self._document["clusters"][0]["cluster"]["server"] = (
            f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        )
        file.write_text(yaml.dump(self._document))
        return file

    def hold(self) -> None:
        self._passes.clear()

    def let_go(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self._passes.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                _start(self._connect, self._socket.accept()[0])

    def _connect(self, near: socket.socket) -> None:
        # an API server that is away: the process hears it as the end of its connection
        with near, suppress(OSError), socket.create_connection(self._target) as far:
            back = _start(self._pass_on, far, near)
            self._pass_on(near, far)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._passes.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
