"""Kubernetes values that decisions need: quantities, pods, nodes, and the scheduler's rules of where a pod may go.

Only the fields that a decision reads. How they look on the wire is in `protocol.kubernetes`.
"""
