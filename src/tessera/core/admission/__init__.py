"""One pod, one decision: which offers count, fallback, injection, and the explanation of it for people.

`decision.decide` is the entry. Bytes, patches and reviews are in `protocol.admission`.
"""
