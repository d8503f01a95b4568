"""The templates of bridged pods' claims, and the record of what the scheduler chose.

`objects` reads what the cluster has, `plan` says what is to be done about it (pure), `reconciler` follows the one and
has `writes` carry out the other; what fails waits in `retries`.
"""
