"""The admission webhook: HTTPS in front of the admission core.

What belongs here: the endpoint from request bytes to response bytes (`endpoint`), a decision with its patch (`reviewed`), about pod
templates of workloads too, and about objects that no API server sent (`offline`), the server in front of it (`http`), the
certificates that it serves with (`certificates`), what is counted, and `process`, which puts them together. What does
not: the decision itself (`core.admission`), the formats (`protocol`), and what other processes serve with, too (`serving`).
"""
