"""What every long-running part shares: logs, metrics, health, a small HTTP server, signals and how to end.

No subject of its own: what is counted or logged is said by `webhook`, `node`, `dashboard`.
"""
