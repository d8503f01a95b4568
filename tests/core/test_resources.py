"""Names of resources."""

import pytest

from tessera.core.resources import (
    is_any_gpu,
    is_extended,
    is_of_containers,
    is_qualified_name,
    is_whole_or_mig,
    of_short,
    short,
)


@pytest.mark.parametrize(
    ("resource", "whole_or_mig", "any_gpu", "extended", "of_containers"),
    [
        ("nvidia.com/gpu", True, True, True, True),
        ("nvidia.com/mig-1g.10gb", True, True, True, True),
        ("nvidia.com/mig-1g.10gb.me", True, True, True, True),
        ("nvidia.com/gpu.shared", False, True, True, True),
        ("nvidia.com/mig-3g30gb", False, False, True, True),
        ("amd.com/gpu", False, False, True, True),
        ("cpu", False, False, False, True),
        ("hugepages-2Mi", False, False, False, True),
        ("pods", False, False, False, False),
        ("kubernetes.io/x", False, False, False, True),
        ("requests.cpu", False, False, False, False),
        ("requests.nvidia.com/gpu", False, False, True, False),
        ("nvidia.com/", False, False, True, False),
    ],
)
def test_what_a_name_means(resource, whole_or_mig, any_gpu, extended, of_containers):
    """Fallback chooses whole GPUs and profiles; capacity counts shared ones too; the API server takes some in containers."""
    assert is_whole_or_mig(resource) is whole_or_mig
    assert is_any_gpu(resource) is any_gpu
    assert is_extended(resource) is extended
    assert is_of_containers(resource) is of_containers


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("nvidia.com/gpu", "gpu"),
        ("nvidia.com/mig-2g.20gb", "2g.20gb"),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb.me"),
    ],
)
def test_short_names(resource, name):
    """A short name leads back to its resource, and so does the resource itself."""
    assert short(resource) == name
    assert of_short(name) == of_short(resource) == resource
    assert short("amd.com/gpu") == "amd.com/gpu"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True), ("a.b/C_d.e-f", True), ("x" * 63, True), ("x" * 64, False), ("y." * 126 + "z/a", True),
        ("y." * 127 + "z/a", False), ("", False), ("/a", False), ("a/", False), ("a/b/c", False), ("A.io/a", False),
        ("-a", False), ("a b", False), ("a\n", False), ("é", False),
    ],
)  # fmt: skip
def test_qualified_names(text, valid):
    """An optional DNS subdomain, a slash, up to 63 letters, digits, - _ and dots."""
    assert is_qualified_name(text) is valid
