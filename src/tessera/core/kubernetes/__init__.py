"""Kubernetes values that decisions need: quantities, pods and edits to them, nodes, and where a pod may go.

Only the fields that a decision reads. How they look on the wire is in `protocol.kubernetes`.
"""
