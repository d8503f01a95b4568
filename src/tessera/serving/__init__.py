"""What every long-running part shares: where to listen (`address`), a small HTTP server (`http_server`, `http_messages`), the log (`logs`), metrics in
Prometheus' format (`metrics`), probes and scrapes (`http_server`), files that are followed
(`reload`), signals and how to end (`ending`).

What is served, counted and logged is said by `webhook`, `node`, `controller`, `dashboard` and `simulation`. The webhook's own HTTPS server is
not here: it is made for one kind of request, and for many of them.
"""
