"""Kubernetes objects as JSON or YAML: the only structs for them, and how they become core values.

Each object's bytes are decoded once, into a struct that has what any reader needs (`pod`, `objects` for nodes, namespaces and
quotas, `controllers`, `dra`, `webhook`); a reader takes its part from there. `lean_pod` is the part of a pod that the webhook
reads for every review; `pod_use` is a pod as capacity counts it; `selector` reads label selectors; `workloads` finds pods in
any document. A field that no reader needs is not decoded. Talking to an API server is in `kube`.
"""
