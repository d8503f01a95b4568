"""The webhook's certificates: made, kept in a Secret, rotated by every replica for itself, or read from files.

`rotation` decides what to do next and does nothing; `manager` does it, through `store` (the cluster) and `signer` (a short-lived
program, `pki`). `files` follows a pair that others renew. Both put what they have into `served`, which the listener reads.
"""
