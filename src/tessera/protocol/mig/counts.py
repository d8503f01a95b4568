"""Plain counts: `2g.20gb=2,3g.40gb=1`, what is wanted on each card, or of a whole cluster."""

import re
from collections.abc import Mapping
from typing import Final

from tessera.core.errors import InvalidInputs
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.core.text import quoted

_SEPARATOR: Final = re.compile(r"[\s,]+")
_COUNT: Final = re.compile(r"\d{1,9}", re.ASCII)


def looks_like_counts(text: str) -> bool:
    """Whether a text is meant to be counts rather than YAML."""
    return "=" in text and ":" not in text


def read_counts(text: str, source: str = "counts", most: int = 999_999) -> dict[MigProfile, int]:
    """Counts per profile, in the order of the text; separated by commas, spaces or lines."""
    counts: dict[MigProfile, int] = {}
    complaints = []
    for item in filter(None, _SEPARATOR.split(text)):
        name, _, number = item.partition("=")
        try:
            profile = MigProfile.parse(name)
        except InvalidProfile as error:
            complaints.append(f"{source}: {error}")
            continue
        if profile in counts:
            complaints.append(f"{source}: {profile} appears twice")
        elif not _COUNT.fullmatch(number) or int(number) > most:
            complaints.append(
                f"{source}: {quoted(item)}: expected a count from 0 to {most}, such as {profile}=2"
            )
        else:
            counts[profile] = int(number)
    if complaints:
        raise InvalidInputs(complaints)
    if not counts:
        raise InvalidInputs([f"{source}: empty; expected counts such as 2g.20gb=2,3g.40gb=1"])
    return {profile: count for profile, count in counts.items() if count}


def write_counts(counts: Mapping[MigProfile, int]) -> str:
    """The text that `read_counts` reads."""
    return ",".join(f"{profile}={count}" for profile, count in counts.items())
