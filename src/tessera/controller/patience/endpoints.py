"""Whether the webhook can be called, by the EndpointSlices of its Service."""

from collections.abc import Iterable
from typing import Final

import msgspec

from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import Key, Resource, Sink
from tessera.protocol.kubernetes.objects import ObjectReference, Part, decoder


class _Conditions(Part):
    ready: bool = True  # one that does not say is, as in Kubernetes


class _Endpoint(Part):
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _EndpointSlice(Part):
    metadata: ObjectReference = msgspec.field(default_factory=ObjectReference)
    endpoints: list[_Endpoint] | None = None

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def is_ready(self) -> bool:
        return any(one.conditions.ready for one in self.endpoints or ())


_decode: Final = decoder(_EndpointSlice)


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

    def sink(self) -> Sink[_EndpointSlice]:
        return Sink(_decode, self._replace, self._put, lambda key: self._slices.pop(key, None))

    def _put(self, one: _EndpointSlice) -> None:
        self._slices[one.key] = one.is_ready

    def _replace(self, found: Iterable[_EndpointSlice]) -> None:
        self._slices = {one.key: one.is_ready for one in found}
