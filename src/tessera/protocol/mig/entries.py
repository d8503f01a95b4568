"""The entries of a layout document, in the two dialects that Kubernetes nodes know, and plain counts.

run.ai:      `{devices: [0, 1], mig-enabled: true, mig-devices: [2g.20gb, {name: 3g.40gb, position: 4, size: 4}]}`
mig-parted:  `{device-filter: "0x233510DE", devices: all, mig-enabled: true, mig-devices: {2g.35gb: 2}}`

Besides there are plain counts: `2g.20gb=2,3g.40gb=1`, what is wanted on each card, or of a whole cluster.
What is wrong is collected with its path, so that one reading reports all of it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tessera.core.errors import InvalidInputs
from tessera.core.mig.layout import LayoutEntry
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.core.text import escaped, quoted

MOST_DEVICES: Final = 99  # of one profile in one entry: more than any card holds, and little memory
_MOST_SLICE: Final = 999
_PCI_ID: Final = re.compile(r"0x[0-9a-fA-F]{8}")
_SEPARATOR: Final = re.compile(r"[\s,]+")
_COUNT: Final = re.compile(r"\d{1,9}", re.ASCII)


class EntryReader:
    def __init__(self, *, parted: bool) -> None:
        self.errors: list[str] = []
        self._parted = parted

    def read(self, value: Any, path: str) -> LayoutEntry | None:
        """One entry; None when it was refused."""
        known = ("devices", "mig-enabled", "mig-devices", *(("device-filter",) if self._parted else ()))
        if not self.known_fields(value, path, known):
            return None
        before = len(self.errors)
        cards = self._cards(value, f"{path}.devices")
        wishes = self._wishes(value.get("mig-devices"), f"{path}.mig-devices")
        enabled = value.get("mig-enabled", None if self._parted else bool(wishes))
        if not isinstance(enabled, bool):
            self._refuse(f"{path}.mig-enabled", enabled, "expected true or false")
        elif wishes and not enabled:
            self.errors.append(f"{path}.mig-devices: must be empty while mig-enabled is false")
        accepted = self._device_filter(value.get("device-filter"), f"{path}.device-filter")
        return LayoutEntry(cards, bool(enabled), wishes, accepted) if len(self.errors) == before else None

    def known_fields(self, value: Any, path: str, known: tuple[str, ...]) -> bool:
        """Whether this is a map; unknown fields are errors."""
        if not isinstance(value, dict):
            self._refuse(path, value, "expected a map")
            return False
        prefix = f"{path}." if path else ""
        self.errors.extend(
            f"{prefix}{_shown(field)}: unknown field; known are {', '.join(known)}"
            for field in value
            if field not in known
        )
        return True

    def _cards(self, value: dict[str, Any], path: str) -> tuple[int, ...] | None:
        devices = value.get("devices")
        if devices == "all":
            return None
        if not isinstance(devices, list) or not devices:
            self._refuse(path, devices, 'expected "all" or a list of card numbers such as [0, 1]')
            return ()
        cards: list[int] = []
        for index, item in enumerate(devices):
            # run.ai's own reader takes texts here: devices: ["0", "1"]
            number = int(item) if isinstance(item, str) and re.fullmatch(r"\d{1,4}", item, re.ASCII) else item
            if not _is_number(number, 0, 9999):
                self._refuse(f"{path}[{index}]", item, "expected a card number such as 0")
            elif number in cards:
                self.errors.append(f"{path}[{index}]: card {number} appears twice")
            else:
                cards.append(number)
        return tuple(cards)

    def _wishes(self, value: Any, path: str) -> tuple[Wish, ...]:
        if value is None:
            return ()
        if self._parted:
            return self._counted(value, path)
        if not isinstance(value, list):
            self._refuse(path, value, "expected a list of profiles, as in the rest of the document")
            return ()
        wishes = [self._wish(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return tuple(wish for wish in wishes if wish)

    def _counted(self, value: Any, path: str) -> tuple[Wish, ...]:
        if not isinstance(value, dict):
            self._refuse(path, value, "expected a map of counts, as in the rest of the document")
            return ()
        counts: dict[MigProfile, int] = {}
        for name, count in value.items():
            profile = self._profile(name, f"{path}.{_shown(name)}")
            if not _is_number(count, 0, MOST_DEVICES):
                self._refuse(f"{path}.{_shown(name)}", count, f"expected a count from 0 to {MOST_DEVICES}")
            elif profile in counts:  # 1g.10gb+me and 1g.10gb.me
                self.errors.append(f"{path}.{_shown(name)}: {profile} appears twice")
            elif profile:
                counts[profile] = count
        return repeated(counts)

    def _wish(self, item: Any, path: str) -> Wish | None:
        if isinstance(item, str):
            profile = self._profile(item, path)
            return Wish(profile) if profile else None
        if not self.known_fields(item, path, ("name", "position", "size")):
            return None
        profile = self._profile(item.get("name"), f"{path}.name")
        for field, least in (("position", 0), ("size", 1)):
            if field in item and not _is_number(item[field], least, _MOST_SLICE):
                self._refuse(f"{path}.{field}", item[field], f"expected a number from {least} on")
        return Wish(profile, item.get("position"), item.get("size")) if profile else None

    def _profile(self, name: Any, path: str) -> MigProfile | None:
        if not isinstance(name, str):
            self._refuse(path, name, "expected a profile such as 1g.10gb")
            return None
        try:
            return MigProfile.parse(name)
        except InvalidProfile as error:
            self.errors.append(f"{path}: {error}")
            return None

    def _device_filter(self, value: Any, path: str) -> tuple[int, ...]:
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        for item in listed:
            if not isinstance(item, str) or not _PCI_ID.fullmatch(item):
                self._refuse(path, item, 'expected PCI ids such as "0x233510DE"')
                return ()
        return tuple(int(item, 16) for item in listed)

    def _refuse(self, path: str, value: Any, expected: str) -> None:
        found = "missing" if value is None else _shown(value)
        self.errors.append(f"{path}: {found}; {expected}" if path else f"{found}; {expected}")


def looks_like_counts(text: str) -> bool:
    """Whether a text is meant to be counts rather than YAML."""
    return "=" in text and ":" not in text


def read_counts(text: str, source: str = "counts", most: int = 999_999) -> dict[MigProfile, int]:
    """Counts per profile, in the order of the text; separated by commas, spaces or lines."""
    return counts_of(filter(None, _SEPARATOR.split(text)), source, most)


def counts_of(items: Iterable[str], source: str, most: int) -> dict[MigProfile, int]:
    """The same of texts such as `2g.20gb=2`."""
    counts: dict[MigProfile, int] = {}
    errors = []
    for item in items:
        name, _, number = item.partition("=")
        try:
            profile = MigProfile.parse(name)
        except InvalidProfile as error:
            errors.append(f"{source}: {error}")
            continue
        if profile in counts:
            errors.append(f"{source}: {profile} appears twice")
        elif not _COUNT.fullmatch(number) or int(number) > most:
            errors.append(f"{source}: {quoted(item)}: expected a count from 0 to {most}, such as {profile}=2")
        else:
            counts[profile] = int(number)
    if errors:
        raise InvalidInputs(errors)
    if not counts:
        raise InvalidInputs([f"{source}: empty; expected counts such as 2g.20gb=2,3g.40gb=1"])
    return {profile: count for profile, count in counts.items() if count}


def write_counts(counts: Mapping[MigProfile, int]) -> str:
    return ",".join(f"{profile}={count}" for profile, count in counts.items())


def write_runai(entry: LayoutEntry) -> dict[str, Any]:
    devices = [_written_wish(wish) for wish in entry.wishes]
    return {"devices": list(entry.cards or ()), "mig-enabled": entry.mig_enabled, "mig-devices": devices}


def write_parted(entry: LayoutEntry) -> dict[str, Any]:
    """An entry as mig-parted reads it; places are not part of that."""
    written: dict[str, Any] = {}
    if entry.device_filter:
        ids = [f"0x{number:08X}" for number in entry.device_filter]
        written["device-filter"] = ids[0] if len(ids) == 1 else ids
    written["devices"] = "all" if entry.cards is None else list(entry.cards)
    written["mig-enabled"] = entry.mig_enabled
    written["mig-devices"] = {str(profile): count for profile, count in counted(entry).items()}
    return written


def counted(entry: LayoutEntry) -> Counter[MigProfile]:
    """An entry's devices by profile, in the order in which they first stand there."""
    return Counter(wish.profile for wish in entry.wishes)


def repeated(counts: Mapping[MigProfile, int]) -> tuple[Wish, ...]:
    return tuple(wish for profile, count in counts.items() for wish in [Wish(profile)] * count)


def _written_wish(wish: Wish) -> Any:
    if wish.position is None and wish.size is None:
        return str(wish.profile)
    places = {"position": wish.position, "size": wish.size}
    return {"name": str(wish.profile), **{field: n for field, n in places.items() if n is not None}}


def _is_number(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shown(value: Any) -> str:
    """A value as it may stand in a message: short, and without control characters."""
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return escaped(text) or '""'
