"""The page that shows a cluster's GPUs: nodes as mosaics, admissions as they happen.

What belongs here: what the page knows of a cluster (followed by list and watch, never written to), how that is laid out as
cards and tiles, and the paths it is served under. What does not: decisions and explanations, which are asked for
through a function that the command hands in.
"""
