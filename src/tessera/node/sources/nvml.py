"""Real GPUs and MIG devices, as NVIDIA's driver knows them."""

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Card, Device, DeviceNode, DeviceType, Edits, Model, Place, Span
from tessera.core.devices.preference import blocks_of
from tessera.core.mig.geometry import find_product
from tessera.core.mig.layout import Strategy
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU
from tessera.node.sources import SourceFailed
from tessera.node.sources.nvml_card import NvmlCard, NvmlMigDevice
from tessera.node.sources.nvml_library import Nvml
from tessera.protocol.configuration.devices import NvmlCards

log = logging.getLogger(__name__)

_CARDS_EVERY: Final = 10.0  # seconds: layouts of real cards change rarely, and events are read at every poll
# After that long without another event a card that answers counts as healthy: it was reset, or the fault was transient
_QUIET: Final = 300.0
# What a program does wrong, not the card: the list of NVIDIA's own plugin
_HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
# Beside its own node every GPU needs these, where the driver has made them
_SHARED_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
_MINOR: Final = re.compile(r"(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d+)")


class NvmlSource:
    """The GPUs of this machine."""

    def __init__(
        self,
        nvml: Nvml,
        configuration: NvmlCards,
        *,
        host_root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`failed` counts what goes wrong."""
        self._nvml = nvml
        self._configuration = configuration
        self._strategy = configuration.strategy
        self._host_root = host_root
        self._clock = clock
        self._failed = failed
        self._hanging: Mapping[str, str] = {}  # what of NVML does not come back, and the message about it
        self.cards: Sequence[NvmlCard] = ()  # as they were read last
        self._cards_at: float | None = None
        # card and GPU instance → when, what
        self._faults: dict[tuple[str, int | None], tuple[float, str]] = {}

    @property
    def cdi_kind(self) -> str:
        return self._configuration.cdi_kind

    def invalidate(self) -> None:
        """The cards have changed: read them at the next poll."""
        self._cards_at = None

    def close(self) -> None:
        """Let go of the cards until the next poll."""
        self._nvml.close()

    def devices(self, busy: Collection[str] = ()) -> Sequence[Device]:
        """The GPUs and MIG devices that the strategy makes resources of; cards of the UUIDs in `busy` are not asked."""
        self.refresh(busy)
        if self._strategy is Strategy.SINGLE:
            _check_single(self.cards)
        return [device for card in self.cards for device in self._card_devices(card)]

    def refresh(self, busy: Collection[str] = ()) -> None:
        """Read the cards, unless that was done a moment ago, and the events of what went wrong with them."""
        now = self._clock()
        if self._cards_at is None or now - self._cards_at >= _CARDS_EVERY or self._nvml.unanswered:
            try:
                self.cards, self._cards_at = self._nvml.cards(busy), now
            finally:
                self._report_hanging()
        for event in self._nvml.events():
            if event.xid not in _HARMLESS_XIDS:
                self._faults[event.card, event.gpu_instance] = (now, str(event))
                self.invalidate()
        self._faults = {key: fault for key, fault in self._faults.items() if now - fault[0] < _QUIET}

    def _report_hanging(self) -> None:
        before, self._hanging = (
            self._hanging,
            {what: message for what, message in self._nvml.unanswered.items() if message},
        )
        for what in self._hanging.keys() - before.keys():
            self._failed("nvml")
            log.warning("NVML, %s: %s; the rest goes on without it", what, self._hanging[what])
        for what in before.keys() - self._hanging.keys():
            log.info("NVML, %s: has answered", what)

    def _card_devices(self, card: NvmlCard) -> list[Device]:
        if self._strategy is Strategy.NONE or not card.mig_enabled:
            return [self.device(card)]
        single = self._strategy is Strategy.SINGLE
        return [self.device(card, mig, WHOLE_GPU if single else "") for mig in card.mig_devices]

    def device(self, card: NvmlCard, mig: NvmlMigDevice | None = None, resource: str = "") -> Device:
        """A card, or a slice of it; `resource`: where it does not have the one of its own."""
        own = WHOLE_GPU if mig is None else MIG_PREFIX + mig.profile.replace("+", ".")
        return Device(
            mig.uuid
            if mig
            else card.uuid or f"card-{card.index}",  # one that never answered has no other name
            resource=resource or own,
            cdi_kind=self._configuration.cdi_kind,
            edits=Edits(nodes=self._nodes(card, mig)) if self._configuration.described_by_us else Edits(),
            env_list=self._configuration.env_list,
            place=_place(card, mig),
            numa=() if card.numa is None else (card.numa,),
            problem=self.problem(card, mig),
            model=_model(card, mig),
        )

    def problem(self, card: NvmlCard, mig: NvmlMigDevice | None, *, whole: bool = True) -> str:
        """What is wrong with a slice or a card; `whole=False`: only what concerns all slices of the card."""
        faults = [fault for (uuid, instance), fault in self._faults.items() if uuid == card.uuid
                  and (instance is None or (whole if mig is None else instance == mig.gpu_instance))]  # fmt: skip
        return card.problem or (max(faults)[1] if faults else "")

    def _nodes(self, card: NvmlCard, mig: NvmlMigDevice | None) -> tuple[DeviceNode, ...]:
        paths = [f"/dev/nvidia{card.minor}", *filter(self._exists, _SHARED_NODES)]
        if mig:
            minors = mig_minors(self._read(_MIG_MINORS))
            instance = f"gpu{card.minor}/gi{mig.gpu_instance}"
            capabilities = (instance, f"{instance}/ci{mig.compute_instance}")
            paths += [f"/dev/nvidia-caps/nvidia-cap{minors[name]}" for name in capabilities if name in minors]
        return tuple(DeviceNode(path, path) for path in paths)

    def _exists(self, path: str) -> bool:
        """Whether the host has it, or NVIDIA's runtime has put it into our own container."""
        return (self._host_root / path.lstrip("/")).exists() or Path(path).exists()

    def _read(self, path: str) -> str:
        for file in (self._host_root / path.lstrip("/"), Path(path)):
            try:
                return file.read_text()
            except OSError:
                continue
        return ""


def mig_minors(text: str) -> dict[str, int]:
    """`gpu0/gi1` or `gpu0/gi1/ci0` → the minor number of the capability that opens it."""
    return {name: int(minor) for name, minor in _MINOR.findall(text)}


def _model(card: NvmlCard, mig: NvmlMigDevice | None) -> Model:
    if mig is None:
        return Model(DeviceType.GPU, card.name, "", card.uuid, card.memory_mib)
    return Model(DeviceType.MIG, card.name, mig.profile, card.uuid, mig.memory_mib)


def _place(card: NvmlCard, mig: NvmlMigDevice | None) -> Place | None:
    product = find_product(card.name, card.memory_mib or None)
    whole = Card(card.index, blocks_of(product) if product else ())
    if mig is None:
        return Place(whole, Span(0, product.memory_slices if product else 1))
    if mig.start is None or mig.size is None:
        return None
    return Place(whole, Span(mig.start, mig.size))


def _check_single(cards: Sequence[NvmlCard]) -> None:
    profiles = {mig.profile for card in cards for mig in card.mig_devices}
    if len({card.mig_enabled for card in cards if card.uuid}) > 1 or len(profiles) > 1:
        found = ", ".join(sorted(profiles)) or "none"
        raise SourceFailed(
            f"MIG strategy single wants MIG on or off on all cards and one profile (found: {found}); use mixed"
        )
