"""What decisions read of a cluster: the view (`view`), read-only by type, and the index behind it (`offers`).

In the index each node is one bit of a number: what nodes offer, and what of it a pod can use (`usable`), and their labels (`labels`). Who follows a cluster writes to the index (`kube.view`); who decides takes a `ClusterView`. Reading objects is in
`protocol.kubernetes`.
"""
