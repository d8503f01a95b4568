"""The webhook's certificates: made, kept in a Secret, rotated by every replica for itself, or read from files.

`rotation` decides what to do next and does nothing; `manager` does it, through `objects` (in a cluster: `store`) and `signer`
(a short-lived program, `pki`). `controller` runs a manager that keeps the authorities for replicas that may only read them.
`files` follows a pair that others renew; `given` looks at it from outside. What is served is in `served`, which the
listener reads.
"""
