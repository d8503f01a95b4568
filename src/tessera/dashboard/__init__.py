"""The page that shows the cluster.

What belongs here: the page, its server and its stream of events. What does not: any change to the cluster; the
dashboard only reads.
"""
