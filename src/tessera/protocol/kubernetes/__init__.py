"""Kubernetes objects as JSON or YAML: the only structs for them, and how they become core values.

Each object's bytes are decoded once, into a struct that has what any reader needs (`pod`, `nodes` with namespaces and
quotas, `controllers`, `dra`, `lease`, `webhook`); a reader takes its part from there. `objects` has what all of them share, `lean_pod` the
part of a pod that the webhook reads for every review. `workloads` finds pods in any document. A field that no reader needs is not decoded. Talking to an API server is in `kube`.
"""
