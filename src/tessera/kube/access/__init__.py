"""Which cluster, and how to get in.

What belongs here: choosing a cluster as kubectl does (`choice`, `kubeconfig`), the values that this ends in (`cluster`), and
what proves us to the server (`credentials`, `exec`). What does not: opening connections and speaking HTTP; that is `rest`.
"""
