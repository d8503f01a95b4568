"""Kubernetes objects as JSON or YAML, read into core values. One reading for every reader.

`objects` has what all of them share, nodes and namespaces; `pod` reads pods as decisions see them, `pod_use` as capacity
counts them; `selector` reads label selectors. Only fields that a reader needs are decoded. Talking to an API server is in
`kube`.
"""
