"""The HTTP/1.1 server of the webhook: listening, TLS, parsing, limits. It knows routes, not admissions."""
