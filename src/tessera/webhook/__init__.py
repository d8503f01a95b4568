"""The admission webhook: HTTPS in front of the admission core.

What belongs here: the handler from request bytes to response bytes, the HTTP server and its limits, certificates,
reloading, metrics and the log of what was decided. What does not: the decision itself (`core.admission`) and the
formats (`protocol`).
"""
