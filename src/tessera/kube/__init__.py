"""A Kubernetes API server, seen from Tessera.

What belongs here: finding the server and proving who we are (kubeconfig, in-cluster), REST calls, list and watch,
and the live view of the cluster that decisions read. What does not: what is decided from that view.
"""
