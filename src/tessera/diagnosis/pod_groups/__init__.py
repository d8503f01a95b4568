"""Why all pods of a cluster wait: they are sorted into groups, and one pod of each group is diagnosed.

The answer about a single pod belongs in `diagnosis.waiting`; here are only the groups.
"""
