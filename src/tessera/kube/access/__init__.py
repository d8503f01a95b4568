"""Which cluster, and how to get in.

What belongs here: choosing a cluster as kubectl does (`choice`, `kubeconfig`, `context`), the values that this ends in
(`cluster`), and what proves us to the server and the server to us (`credentials`, `exec`, `tls`, `proxy`). What does not:
opening connections and speaking HTTP; that is `rest`.
"""
