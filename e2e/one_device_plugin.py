"""The smallest device plugin that a kubelet accepts: one resource, one device, handed out by its CDI name.

It proves that the cluster's kubelet takes plugins; so it must not be Tessera's. Three messages are written by hand, with the
field numbers of the kubelet's api.proto.
"""

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc


class OneDevicePlugin:
    """Serves and registers when entered, goes away when left."""

    def __init__(self, folder: Path, resource: str, cdi_name: str) -> None:
        self._folder, self._resource, self._cdi_name = folder, resource, cdi_name
        self._socket = folder / "one-device.sock"
        self._over = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        plugin = "v1beta1.DevicePlugin"
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(plugin, handlers)])
        self._server.add_insecure_port(f"unix:{self._socket}")

    def __enter__(self) -> Self:
        self._server.start()
        request = (
            _field(1, b"v1beta1") + _field(2, self._socket.name.encode()) + _field(3, self._resource.encode())
        )
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as kubelet:
            register = kubelet.unary_unary("/v1beta1.Registration/Register", _as_is, _as_is)
            register(request, timeout=10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.stop(grace=None).wait()

    def _list_and_watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield _field(1, _field(1, b"the-device") + _field(2, b"Healthy"))
        self._over.wait()

    def _allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        cdi_device = _field(1, self._cdi_name.encode())
        return _field(1, _field(5, cdi_device))


def _as_is(message: bytes) -> bytes:
    return message


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of fewer than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content
