"""What is wrong with an installation, and what to type.

Here belongs reading a cluster once, and on a node its files (`gather`), what was seen
(`observations`), the checks, which are pure functions from what was seen to findings (`checks/`), and making them in the order that matters (`examination`). What does not:
why a single pod waits (`diagnosis`), changing anything, and following a cluster. The one thing that is tried is the creation of a
pod with a dry run, which leaves nothing behind.
"""
