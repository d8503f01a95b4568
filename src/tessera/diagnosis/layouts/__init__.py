"""How far a MigLayout is, why, and what to do next: the one answer, for `tessera why` and the dashboard.

What belongs here: its status and its nodes' rollouts as people may be shown them (`status`), the status in words
(`words`), reading what an answer needs (`gather`: read-only), and the answer, which is a pure function of that
(`layout_diagnosis`). What does not: what is to be done for a MigLayout, which `controller/layouts` decides, and anything
that prints. Whoever may write to a status, or to a node's annotations, may have written anything: no text gets out of
here that a terminal would obey, and lists have an end.
"""
