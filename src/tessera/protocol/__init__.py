"""Bytes and documents on one side, core values on the other; still no I/O.

What belongs here: everything that knows what a format looks like: admission reviews, JSON patches, pod and node
JSON, watch events, CDI documents, MIG annotations, the configuration file, device plugin messages. What does not:
decisions (they are in `core`) and sockets, files, clocks (they are further up).
"""
