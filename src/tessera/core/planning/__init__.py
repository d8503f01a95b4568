"""Plans: how to cut cards so that they serve a demand, who waits for what, and how much room the cards still have.

`waiting` sorts out who waits for what, `kinds` groups cards that are alike, `planner` and `defragment` write their
questions down as a `program`, and `summary` says what came out. A solver is given to them (`tessera.solver`). Which pods
wait and which cards may be cut is read from a cluster in `inventory`.
"""
