"""What a decision reads of a cluster, and cannot write: by type."""

from collections.abc import Mapping
from typing import Final, Protocol

from tessera.core.admission.limits import Work
from tessera.core.admission.view.usable import OfferColumns
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.quota import Quota
from tessera.core.requests.tickets import TicketMaker

Needs = Mapping[str, Number]  # of resources that fallback does not look at
NOTHING_ELSE: Final[Needs] = {}


class ClusterView(Protocol):
    """The cluster at one moment: what is offered, allowed and free.

    Updates and decisions take turns on one thread, so a decision sees one consistent state.
    """

    @property
    def version(self) -> int:
        """Grows with every change that a decision could see, but for the quotas."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name."""

    @property
    def namespaces(self) -> Mapping[str, Namespace]:
        """The namespaces by name."""

    @property
    def quotas(self) -> Mapping[str, tuple[Quota, ...]]:
        """The quotas of the namespaces that have any.

        They change with every pod there, so they are no part of `version`: decisions that are kept are kept with the very tuple
        that they were made by.
        """

    @property
    def controller(self) -> bool:
        """Whether tessera controller is at work, which makes the templates of claims; a view without a clock takes that for granted."""

    @property
    def ticket_maker(self) -> TicketMaker | None:
        """What makes the tickets of pods; None: the webhook has no key, so the controller would make no template."""

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """The DeviceClass that serves an extended resource, as the scheduler chooses it."""

    @property
    def class_names(self) -> frozenset[str]:
        """The names of all classes."""

    @property
    def columns(self) -> OfferColumns:
        """What the nodes offer, by resource."""

    def anywhere(self) -> dict[str, int]:
        """Every GPU resource of the cluster, with the most that one node has."""

    def has_anywhere(self, resource: str) -> bool:
        """Whether some node with GPUs states a resource, or should and does not."""

    def for_pod(self, pod: Pod, transient: tuple[str, ...] = (), work: Work | None = None) -> int:
        """The nodes with GPUs that the pod could ever be placed on, by its selectors and tolerations; each one bit."""

    def large_enough(self, nodes: int, needs: Needs) -> int:
        """Those of some nodes that could hold a pod with these needs, beside GPUs, if they were empty."""


class WithQuotas:
    """A view of the same cluster with other quotas; all else is the same index."""

    def __init__(self, view: ClusterView, namespace: str, quotas: tuple[Quota, ...]) -> None:
        self.version, self.nodes, self.namespaces = view.version, view.nodes, view.namespaces
        self.quotas: Mapping[str, tuple[Quota, ...]] = {
            namespace: quotas
        }  # decisions are made in one namespace
        self.controller, self.ticket_maker = view.controller, view.ticket_maker
        self.classes, self.class_names = view.classes, view.class_names
        self.columns = view.columns
        self.anywhere, self.has_anywhere = view.anywhere, view.has_anywhere
        self.for_pod, self.large_enough = view.for_pod, view.large_enough
