"""A small HTTP/1.1 server: whole requests in, responses or streams out, within limits.

It serves the page, the device plugin's probes and metrics, and the simulated API server. What a path means is the
handler's business. The webhook has a faster server of its own (`webhook.http`).
"""
