"""Tessera: GPUs on Kubernetes, cut into slices."""

__version__ = "0.1.0"  # as in pyproject.toml: reading it from there would cost the webhook 3 MiB of memory
