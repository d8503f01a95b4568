"""The HTTP/1.1 server of the webhook: listening, TLS, parsing, limits. It knows routes, not admissions.

Bytes go one way: socket → `tls` → `connection` → `parser`, which answers with events and calls nothing; a route's handler
makes a `Response` of a request's body, and the connection writes it. `listener` accepts, limits, sweeps and drains.
"""
