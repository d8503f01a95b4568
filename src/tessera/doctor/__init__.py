"""What is wrong with an installation, and what to type.

Here belongs looking at a cluster once (`gather`, `trial`; on a node `node_files`), what was seen (`evidence`, `wire/`), the
checks, which are pure functions from what was seen to findings (`checks/`), and making them in the order that matters
(`examination`). What does not: changing anything, and following a cluster. The one thing that is tried is the creation of a
pod with a dry run, which leaves nothing behind.
"""
