"""Copies of a cluster's objects, kept right whatever the API server does.

What belongs here: reading a whole list (`listing`), following one collection by list and watch (`reflector`,
with its `health`), and following several together (`follow`). What does not: what is made of the
objects; that is in a sink, such as the view (`kube.view`).
"""
