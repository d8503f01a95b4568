"""The checks: pure functions from what was seen of a cluster to findings.

A check says what is wrong and what to type, that it could not run, or that there is nothing to check; silence means that
it ran and all is well. What does not belong here: reading the cluster (`gather`) and the order of the checks
(`examination`). No check asks an operator to delete something that may be of use.
"""
