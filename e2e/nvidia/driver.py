"""The stand-in driver: built when it is first asked for, and controlled through its state file."""

import contextlib
import ctypes
import enum
import fcntl
import functools
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.chart import go_module
from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.programs import cache_dir
from e2e.nvidia.state import (
    CONSTANTS,
    FOREVER,
    WHOLE_CARD,
    Card,
    Compute,
    Fault,
    Instance,
    State,
    header,
    table,
)
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import product_named
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.profile import MigProfile

_SOURCES: Final = Path(__file__).parent / "library"
_HEADER: Final = ("github.com/NVIDIA/go-nvml", "v0.13.3-1")  # has nvml.h, which is not ours to publish
_DECLARED: Final = re.compile(r"DECLDIR +(nvml\w+) *\(")
_DEFINED: Final = re.compile(r"^(?:Answer |const char \*|ALWAYS\()(nvml\w+)", re.MULTILINE)
_STATE: Final = "TESSERA_STAND_IN_DRIVER"
_COMPUTE_PROFILES: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}  # slices → NVML_COMPUTE_INSTANCE_PROFILE_…


class NVML(enum.IntEnum):
    """Answers that functions can be made to give; nvml.h has them all."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


@functools.cache
def build() -> Path:
    """The root of a driver's files, in the cache: `usr/lib64/libnvidia-ml.so.1` and `usr/bin/nvidia-smi`."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise Unavailable("the stand-in driver is C: install gcc")
    sources = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]
    digest = hashlib.sha256(b"\0".join([*sources, header().encode(), str(_HEADER).encode()])).hexdigest()[:8]
    root = cache_dir() / f"stand-in-driver-{digest}"
    if not root.exists():
        declared = go_module(*_HEADER) / "pkg" / "nvml"
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".driver-", dir=root.parent) as folder:
            _compile(gcc, declared, Path(folder))
            with contextlib.suppress(OSError):  # another process was quicker: one is as good as the other
                (Path(folder) / "root").rename(root)
    return root


def _compile(gcc: str, declared: Path, folder: Path) -> None:
    root = folder / "root"
    library, program = root / "usr/lib64/libnvidia-ml.so.1", root / "usr/bin/nvidia-smi"
    for one in (library, program):
        one.parent.mkdir(parents=True)
    (folder / "state.h").write_text(header())
    sources = sorted(set(_SOURCES.glob("*.c")) - {_SOURCES / "smi.c"})
    text = "".join(path.read_text() for path in sources)
    names = set(_DECLARED.findall((declared / "nvml.h").read_text())) - set(_DEFINED.findall(text))
    stubs = (f"int {name}(void) {{ return {NVML.NOT_SUPPORTED}; }}\n" for name in sorted(names))
    (folder / "stubs.c").write_text("".join(stubs))
    flags = ("-O1", "-Wall", "-Wextra", f"-I{declared}", f"-I{folder}")
    shared = ("-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1")
    _run([gcc, *flags, *shared, "-o", library, *sources, folder / "stubs.c"])
    _run([gcc, *flags, "-o", program, _SOURCES / "smi.c", "-Wl,-rpath,$ORIGIN/../lib64", library])


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"the stand-in driver does not compile:\n{done.stderr[-4000:]}")


@dataclass(frozen=True, slots=True)
class Slice:
    """A GPU instance with its compute instances."""

    profile: str
    start: int
    instance: int  # GPU instance id
    serial: int  # of its making: another one if it was made anew
    computes: tuple[int, ...]  # compute slices of each compute instance

    def uuid(self, card: int) -> str:
        """Its MIG device's, as the stand-in makes it: another one for each slice that was ever made."""
        return f"MIG-7e55e7a0-{card:04x}-5{self.instance:03x}-8000-{self.serial:012x}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that some process made."""

    function: str
    card: int | None
    pid: int


class Driver:
    """The cards of one machine. Processes that run with its `environment` see them."""

    def __init__(self, path: Path, product: str | Sequence[str], cards: int = 1) -> None:
        """Make the state file; a list of products is a card of each."""
        self.root = build()
        self.path = path
        named = [product] * cards if isinstance(product, str) else product
        state = State()
        for number, name in enumerate(named):
            state.card[number].product = table(product_named(name))
        state.cards = len(named)
        path.write_bytes(bytes(state))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = State.from_buffer(self._map)

    @property
    def library(self) -> Path:
        """libnvidia-ml.so.1"""
        return self.root / "usr/lib64/libnvidia-ml.so.1"

    @property
    def variables(self) -> dict[str, str]:
        """What a program must have in its environment to see these cards."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), _STATE: str(self.path)}

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with that, and with nvidia-smi in the PATH."""
        path = f"{self.root / 'usr/bin'}:{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, **self.variables}

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """In this process, too: pynvml finds these cards."""
        before = os.environ.get(_STATE)
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)  # found by its name from then on
        os.environ[_STATE] = str(self.path)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_STATE]
            else:
                os.environ[_STATE] = before

    # ---- how cards are cut

    @property
    def cards(self) -> range:
        """The numbers of the cards."""
        return range(self.state.cards)

    def slices(self, card: int) -> list[Slice]:
        """How a card is cut, by place."""
        found = [
            Slice(
                self._card(card).product.profile[one.profile].name.decode(),
                one.start,
                number,
                one.serial,
                tuple(each.slices for each in one.compute if each.used),
            )
            for number, one in enumerate(self._card(card).instance)
            if one.used
        ]
        return sorted(found, key=lambda one: one.start)

    def layout(self, card: int) -> list[str]:
        """The profiles of a card, by place."""
        return [one.profile for one in self.slices(card)]

    def mig(self, card: int) -> bool:
        """Whether MIG is on."""
        return bool(self._card(card).mig)

    def switch(self, card: int, *, mig: bool) -> None:
        """Switch MIG on or off."""
        with self._locked():
            self._card(card).mig = self._card(card).pending = mig

    def cut(self, card: int, *profiles: str) -> list[Slice]:
        """Cut a card anew, MIG on: `3g.71gb` anywhere, `3g.71gb@4` there; each with one compute instance."""
        target = self._card(card)
        product = product_named(target.product.name.decode())
        wishes = [self.wish(text) for text in profiles]
        placed = place(product, wishes)
        if placed is None:
            raise InvalidInput(f"{', '.join(profiles)} does not fit on {product.name}")
        names = [one.name.decode() for one in target.product.profile[: target.product.profiles]]
        with self._locked():
            target.mig = target.pending = True
            for one in target.instance:
                one.used = 0
            for one in placed:
                kind = names.index(str(one.profile))
                number = product.memory_slices // one.size - 1 + one.position // one.size
                self.state.serials += 1
                made = Instance(1, self.state.serials, kind, one.position)
                made.compute[0] = Compute(1, _COMPUTE_PROFILES[one.profile.compute], one.profile.compute, 0)
                target.instance[number] = made
        return self.slices(card)

    def reset(self, *cards: int) -> None:
        """Reset cards, or all: no slices are left, and the MIG mode that was pending counts."""
        with self._locked():
            for card in cards or self.cards:
                target = self._card(card)
                target.mig, target.lost, target.user = target.pending, 0, 0
                for one in target.instance:
                    one.used = 0

    # ---- what goes wrong

    def xid(self, card: int, xid: int, instance: int | None = None) -> None:
        """An XID on a card, or on one of its GPU instances."""
        with self._locked():
            event = self.state.event[self.state.events % CONSTANTS["EVENTS"]]
            event.xid, event.card, event.instance = xid, card, WHOLE_CARD if instance is None else instance
            self.state.events += 1

    def lose(self, card: int, *, lost: bool = True) -> None:
        """Every call for the card answers "GPU is lost", until `lost=False`."""
        self._card(card).lost = lost

    def use(self, card: int, instance: int | None = None, pid: int = 1) -> None:
        """A process uses a card or one of its GPU instances: removing that, or a change of mode, is "in use"; 0: nobody does."""
        (self._card(card) if instance is None else self._card(card).instance[instance]).user = pid

    def needs_reset(self, card: int, *, possible: bool = True) -> None:
        """A change of MIG mode counts after a reset only; nvidia-smi can do that, or cannot."""
        self._card(card).needs_reset, self._card(card).never_resets = True, not possible

    def rows_failed(self, card: int) -> None:
        """The card's memory is worn out."""
        self._card(card).rows_failed = True

    def fail(
        self,
        function: str,
        answer: NVML,
        *,
        card: int | None = None,
        nth: int = 1,
        times: int = 1,
        after: bool = False,
    ) -> None:
        """From the n-th call on, so many calls of the functions (a pattern) give this answer and do nothing else.

        With `after` they do their work first.
        """
        self._fault(
            Fault(action=CONSTANTS["ANSWER"], answer=answer, left=times), function, card, nth, after=after
        )

    def kill(
        self, function: str = "*", *, card: int | None = None, nth: int = 1, after: bool = False
    ) -> None:
        """The process that makes the n-th call is killed in it; with `after`, once the call has changed what it changes."""
        self._fault(Fault(action=CONSTANTS["KILL"], left=1), function, card, nth, after=after)

    @contextlib.contextmanager
    def hanging(self, function: str = "*", *, card: int | None = None, nth: int = 1) -> Iterator[None]:
        """Inside the block, calls from the n-th on do not return."""
        slot = self._fault(Fault(action=CONSTANTS["HANG"], left=FOREVER), function, card, nth)
        try:
            yield
        finally:
            slot.left = 0

    def no_faults(self) -> None:
        """Take away what `fail`, `kill`, `lose` and the others set."""
        with self._locked():
            for fault in self.state.fault:
                fault.left = 0
            for number in self.cards:
                one = self._card(number)
                one.lost = one.user = one.needs_reset = one.never_resets = one.rows_failed = 0
                for each in one.instance:
                    each.user = 0

    # ---- what was called

    def calls(self, function: str = "") -> list[Call]:
        """The calls that were made, the last 8192 at most; only those whose name has this in it."""
        made = self.state.calls
        numbers = range(max(0, made - CONSTANTS["CALLS"]), made)
        listed = (self.state.call[number % CONSTANTS["CALLS"]] for number in numbers)
        all_calls = (
            Call(one.function.decode(), None if one.card < 0 else one.card, one.pid) for one in listed
        )
        return [one for one in all_calls if function in one.function]

    def forget_calls(self) -> None:
        """Count from nothing."""
        self.state.calls = 0

    # ----

    def _card(self, number: int) -> Card:
        if number not in self.cards:
            raise IndexError(f"there are {self.state.cards} cards, and none has the number {number}")
        card: Card = self.state.card[number]
        return card

    @staticmethod
    def wish(text: str) -> Wish:
        """A profile, and where it is wanted: `3g.71gb@4`."""
        profile, _, position = text.partition("@")
        return Wish(MigProfile.parse(profile), int(position) if position else None)

    def _fault(
        self, fault: Fault, function: str, card: int | None, nth: int, *, after: bool = False
    ) -> Fault:
        left, fault.left = fault.left, 0
        fault.function, fault.card = function.encode(), -1 if card is None else card
        fault.skip, fault.after = nth - 1, after
        with self._locked():
            number = next((n for n, one in enumerate(self.state.fault) if not one.left), None)
            if number is None:
                raise ClusterError("too many faults at once")
            self.state.serials += 1
            fault.serial = self.state.serials
            self.state.fault[number] = fault
            slot: Fault = self.state.fault[number]
            slot.left = left
        return slot

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
