"""Which cluster, and how to get in.

What belongs here: choosing a cluster as kubectl does (`kubeconfig`), the values that this ends in and
what proves us to the server (`cluster`, `exec`). What does not: opening connections and speaking HTTP; that is `rest`.
"""
