"""Kubernetes objects as JSON or YAML, read into core values. One reading for every reader."""
