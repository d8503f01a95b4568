"""MIG profiles: reading, writing, order."""

import pytest

from tessera.core.mig.profile import InvalidProfile, MigProfile


@pytest.mark.parametrize(
    ("text", "written", "resource"),
    [
        ("1g.10gb", "1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("1g.10gb+me", "1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.5gb.me", "1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("4g.71gb", "4g.71gb", "nvidia.com/mig-4g.71gb"),
        ("1g.24gb+me.all", "1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("1g.24gb-me", "1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ],
)
def test_spellings_of_a_profile(text, written, resource):
    """A profile is read in each of its spellings and found again behind its resource name."""
    profile = MigProfile.parse(text)
    assert str(profile) == written
    assert profile.resource == resource
    assert MigProfile.of_resource(resource) == profile
    assert MigProfile.parse(written) == profile


def test_order_of_profiles():
    """Profiles are ordered by memory, then compute, then extra engines."""
    ordered = [
        "1g.10gb-me",
        "1g.10gb",
        "1g.10gb+me",
        "1g.10gb+gfx",
        "1g.10gb+me.all",
        "1g.20gb",
        "2g.20gb",
        "3g.30gb",
        "7g.80gb",
    ]
    assert [str(p) for p in sorted(map(MigProfile.parse, reversed(ordered)))] == ordered


@pytest.mark.parametrize(
    "text",
    [
        "1g.10gb.shared",
        "1g.10gb+me.shared",
        "",
        "1g",
        "g.10gb",
        "1g.10GB",
        "1g.10gb+",
        "01g.10gb",
        "1g.10gb/../x",
        "1g.١0gb",
        "1g.10gb\n",
    ],
)
def test_no_profile(text):
    """Anything else is refused in one sentence."""
    with pytest.raises(InvalidProfile, match="is not a MIG profile such as"):
        MigProfile.parse(text)
    assert MigProfile.of_resource("nvidia.com/mig-" + text) is None


def test_a_plus_stands_in_no_resource():
    """It is how NVIDIA's tools write engines; the resource has a dot there."""
    assert MigProfile.of_resource("nvidia.com/mig-1g.10gb+me") is None


@pytest.mark.parametrize(
    ("text", "engines"),
    [("1g.24gb", set()), ("1g.24gb-me", set()), ("1g.24gb+me", {"me"}), ("1g.24gb+me.all", {"me", "me.all"}), ("1g.24gb+gfx", {"gfx"})],
)  # fmt: skip
def test_engines(text, engines):
    """All media engines are media engines too."""
    assert MigProfile.parse(text).engines == engines


def test_other_resources():
    """A resource that is no MIG resource has no profile."""
    assert MigProfile.of_resource("nvidia.com/gpu") is None
