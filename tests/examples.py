"""How many examples a property is tried with."""

from hypothesis import settings


def examples(number: int) -> int:
    """So many where the profile has Hypothesis' own 100, else as many more or fewer as the profile (tests/conftest) has."""
    return max(min(number, 10), number * settings().max_examples // 100)
