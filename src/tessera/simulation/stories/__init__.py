"""The stories of the demo: what they are and how they are played (`story`, `table`), where (`stage`), what came of each step
(`scenes`), and what is wrong about a pod (`pods`).

They are played on the embedded cluster and on a real one. `cli.demo` shows them.
"""
