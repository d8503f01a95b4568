"""What decisions read of a cluster: the view (`view`), read-only by type, and the index behind it (`offers`, `groups`).

Who follows a cluster writes to the index (`kube.view`); who decides takes a `ClusterView`. Reading objects is in `protocol.kubernetes`.
"""
