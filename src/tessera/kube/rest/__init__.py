"""Calls to an API server.

What belongs here: opening a connection, through a proxy or with TLS, and one HTTP/1.1 exchange after the other on
it (`connection`); where objects live, a method per verb with bodies as bytes, and the eviction of a pod (`client`).
What does not: what the bytes mean.
"""
