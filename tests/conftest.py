"""What every test shares: the same examples every time, on slow machines too."""

import os

from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # a worker of pytest-xdist has its terminal's width; commands under test find none

settings.register_profile(
    "tessera", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tessera")
