"""A Kubernetes API server, seen from Tessera.

What belongs here: finding the server and proving who we are (`access`), REST calls (`rest`), copies of the cluster's
objects that are kept right (`watch`), what decisions read of them (`view`), Events that we write (`event_recorder`), and
what these share: errors, a `clock` and what goes by it, files that change. What does not: what is decided from all this.
"""
