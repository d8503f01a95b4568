"""Whether the webhook can be called, by the EndpointSlices of its Service."""

from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import Key, Resource
from tessera.kube.watch.table import TableEntry
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

    def entry(self) -> TableEntry[EndpointSlice]:
        remove = self._slices.pop
        return TableEntry(
            decode_endpoint_slice, self._put, lambda key: remove(key, None), begin=self._slices.clear
        )

    def _put(self, one: EndpointSlice) -> None:
        self._slices[_key(one)] = one.is_ready


def _key(one: EndpointSlice) -> Key:
    return Key(one.metadata.namespace, one.metadata.name)
