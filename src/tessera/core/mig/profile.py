"""MIG profiles: `1g.10gb`, `1g.10gb+me`, `4g.71gb`.

A profile says how many compute slices and how much memory a MIG device has, and which extra engines. On a node it
is the resource `nvidia.com/mig-1g.10gb`; a `+` is a `.` there, since `+` may not stand in a resource name.
`+me` adds the media engines, `+me.all` all of them, `+gfx` graphics; `-me` is a slice that goes without. A name that
ends in `.shared` is no profile: it is a share of one, which several containers use in turns.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache, total_ordering
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.resources import MIG_PREFIX, profile_name
from tessera.core.text import quoted

_LONGEST: Final = 31  # characters of a profile's name; longer texts are not even remembered
_ENGINES: Final = {"": 0, "+me": 1, "+gfx": 2, "+me.all": 3}  # the more, the later


class InvalidProfile(InvalidInput):
    """A text that is no MIG profile."""


@total_ordering
@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile, ordered by memory, then compute, then extra engines."""

    compute: int
    memory_gb: int
    extras: str = ""  # "+me", "+me.all", "-me"; empty for a plain slice
    # worked out once: there are few profiles, and every decision asks for these
    label: str = field(init=False, repr=False, compare=False)  # in names of resources: `1g.10gb.me`
    resource: str = field(init=False, repr=False, compare=False)  # of nodes: `nvidia.com/mig-1g.10gb.me`
    rank: tuple[int, int, int, str] = field(init=False, repr=False, compare=False)  # the place in the order
    hashed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        label = str(self).replace("+", ".")
        engines = -1 if self.extras.startswith("-") else _ENGINES.get(self.extras, len(_ENGINES))
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "resource", MIG_PREFIX + label)
        object.__setattr__(self, "rank", (self.memory_gb, self.compute, engines, self.extras))
        object.__setattr__(self, "hashed", hash(self.rank))

    def __hash__(self) -> int:
        return self.hashed

    @classmethod
    def parse(cls, text: str) -> "MigProfile":
        """Read `1g.10gb`, `1g.10gb+me` or, as resource names have it, `1g.10gb.me`."""
        profile = _parse(text) if len(text) <= _LONGEST else None
        if profile is None:
            raise InvalidProfile(f"{quoted(text)} is not a MIG profile such as 1g.10gb or 1g.10gb+me")
        return profile

    @classmethod
    def of_resource(cls, resource: str) -> "MigProfile | None":
        """The profile behind `nvidia.com/mig-<profile>`; None for any other resource, and for what cannot be one."""
        if not resource.startswith(MIG_PREFIX) or "+" in resource:
            return None
        text = resource[len(MIG_PREFIX) :]
        return _parse(text) if len(text) <= _LONGEST else None

    def __str__(self) -> str:
        """The profile as NVIDIA's tools write it: `1g.10gb+me`."""
        return f"{self.compute}g.{self.memory_gb}gb{self.extras}"

    def __lt__(self, other: "MigProfile") -> bool:
        return self.rank < other.rank

    @property
    def plain(self) -> "MigProfile":
        """The same without extra engines."""
        return replace(self, extras="") if self.extras else self

    @property
    def engines(self) -> frozenset[str]:
        """The extra engines that it has: `me.all` are all media engines, and so `me` too."""
        return _engines(self.extras)


@lru_cache(maxsize=256)
def _engines(extras: str) -> frozenset[str]:
    if not extras.startswith("+"):
        return frozenset()
    parts = extras[1:].split(".")
    return frozenset(".".join(parts[: length + 1]) for length in range(len(parts)))


@lru_cache(maxsize=1024)
def _parse(text: str) -> MigProfile | None:
    name = profile_name(text)
    return None if name is None else MigProfile(*name)
