"""What every test shares: the same examples every time, on slow machines too."""

import os

from hypothesis import HealthCheck, settings

# A worker of pytest-xdist has the terminal's width in its environment; the commands under test find none.
os.environ.pop("COLUMNS", None)

settings.register_profile(
    "tessera", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tessera")
