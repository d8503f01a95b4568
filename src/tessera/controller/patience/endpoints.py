"""Whether the webhook can be called, by the EndpointSlices of its Service."""

from collections.abc import Iterable

from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import Key, Resource, Sink
from tessera.protocol.kubernetes.webhook import EndpointSlice, decode_endpoint_slice


def endpoint_slices(namespace: str, service: str) -> Resource:
    """The EndpointSlices of a Service."""
    path = path_of("discovery.k8s.io/v1", "endpointslices", namespace=namespace)
    return Resource("endpointslices", path, labels=f"kubernetes.io/service-name={service}")


class Endpoints:
    """The endpoints of a Service."""

    def __init__(self) -> None:
        self._slices: dict[Key, bool] = {}  # whether one of them is ready

    @property
    def is_ready(self) -> bool:
        return any(self._slices.values())

    def sink(self) -> Sink[EndpointSlice]:
        return Sink(decode_endpoint_slice, self._replace, self._put, lambda key: self._slices.pop(key, None))

    def _put(self, one: EndpointSlice) -> None:
        self._slices[_key(one)] = one.is_ready

    def _replace(self, found: Iterable[EndpointSlice]) -> None:
        self._slices = {_key(one): one.is_ready for one in found}


def _key(one: EndpointSlice) -> Key:
    return Key(one.metadata.namespace, one.metadata.name)
