"""The dashboard: a page that shows a cluster's GPUs: all nodes at a glance, those in view as mosaics, admissions as they happen.

What belongs here: what the dashboard knows of a cluster (followed by list and watch, never written to), how that is summed up,
remembered and laid out as cards and tiles (`mosaics`), and the paths it is served under; the page itself, in plain modules of
JavaScript, is in `page`. What does not: which devices pods hold, which the inventory reads; decisions and explanations,
which are asked for through a function that the command hands in.
"""
