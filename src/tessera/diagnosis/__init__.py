"""Why a pod waits, was changed or was never created, and what would make it run.

What belongs here: gathering what a cluster says about one pod or one workload (`gather`, read-only), and the diagnosis, which is a
pure function of that evidence (`nodes`: what each node lacks; `remedies`: what would help; `diagnosis`: the answer). What does not: anything
that prints, and anything that changes a cluster. What may not be read is part of the evidence, and is said.
"""
