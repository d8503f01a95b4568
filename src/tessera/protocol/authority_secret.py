"""The Secret with the webhook's certificate authorities: the names of its keys, and what happens to one that is damaged."""

from collections.abc import Mapping
from typing import Final

from tessera.core.text import first_of

CURRENT, CURRENT_KEY = "ca.crt", "ca.key"
FOLLOWING, FOLLOWING_KEY = "next.crt", "next.key"
RETIRING, RETIRING_SINCE = "retiring.crt", "retiring-since"  # the latter as Unix time
ASIDE: Final = "damaged-"  # before the name of a key whose value is kept for a person to look at
_OURS: Final = frozenset({CURRENT, CURRENT_KEY, FOLLOWING, FOLLOWING_KEY, RETIRING, RETIRING_SINCE})


def is_empty(data: Mapping[str, bytes]) -> bool:
    """Whether it holds nothing but what was set aside, as a chart may have made it."""
    return not any(value for name, value in data.items() if not name.startswith(ASIDE))


def foreign_keys(data: Mapping[str, bytes]) -> list[str]:
    """The keys that are not Tessera's."""
    return sorted(name for name in data.keys() - _OURS if not name.startswith(ASIDE))


def set_aside(data: Mapping[str, bytes]) -> dict[str, bytes | None] | None:
    """What empties a damaged Secret and keeps everything under other names, so that a new authority can be made.

    None where that is for a person to decide: the Secret also holds what is not ours, or was damaged before.
    """
    if not data.keys() <= _OURS:
        return None
    return {**{ASIDE + name: value for name, value in data.items()}, **dict.fromkeys(data, None)}


def remedy(data: Mapping[str, bytes]) -> str:
    """What happens next with a damaged Secret."""
    if foreign := foreign_keys(data):
        return (
            f"it also holds {first_of(foreign, 3)}, so it may belong to another program and is not changed: "
            "use a separate Secret for the authority (--ca-secret; the chart's certificates.secretName)"
        )
    if set_aside(data) is not None:
        return (
            f"after some minutes Tessera saves all of it as {ASIDE}… in the same Secret "
            "and makes a new authority"
        )
    return (
        f"it was damaged before, and the contents saved then ({ASIDE}…) are not overwritten; check them, then empty "
        "the Secret and Tessera makes a new authority"
    )


def emptied_by(namespace: str, name: str) -> str:
    """What to type to empty it."""
    return f'kubectl patch secret {name} -n {namespace} --type=json -p \'[{{"op":"remove","path":"/data"}}]\''
