"""Tessera: GPUs on Kubernetes, cut into slices."""
