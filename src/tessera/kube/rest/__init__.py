"""Calls to an API server.

What belongs here: opening a connection, through a proxy or with TLS, and one HTTP/1.1 exchange after the other on
it (`connection`), a method per verb with bodies as bytes and the eviction of a pod (`client`), and where objects live
(`paths`).
What does not: what the bytes mean.
"""
