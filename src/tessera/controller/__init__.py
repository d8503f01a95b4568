"""What changes a cluster over time. Today: giving nodes a layout, a few at a time, and seeing that they take it.

What belongs here: what would change, how it is written, when it holds, and what is done when it does not. What does not: asking a person, and
printing; progress goes to a function that the caller gives.
"""
