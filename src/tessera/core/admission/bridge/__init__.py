"""The bridge: a pod's request for a profile becomes a claim (`conversion`), or stays what it is, for a reason that is told (`skipping`).

The text of a claim's alternatives is in `core.requests.alternatives`; the controller makes the claims' templates from it.
"""
