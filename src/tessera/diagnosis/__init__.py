"""Why a pod waits, was changed or was never created, and what would make it run: the one answer, for `why`, `doctor` and the dashboard.

What belongs here: what can be asked about, and reading what a cluster says about it (`reading`, `gather`: read-only),
what was seen (`evidence`), and the diagnosis, which is a pure function of that: what each node lacks
(`nodes`), what DRA has (`devices`), why a pod without a node waits (`waiting`), admission's part (`admission`), what
would help (`remedies`, in the words of `remedy`), and the whole answer (`diagnosis`). The same for MigLayouts is in
`layouts`, for a node in `node_state`. What does not: anything that prints, and anything that changes a cluster. What may not be read is part of the
evidence, and is said.
"""
