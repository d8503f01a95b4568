"""Copies of a cluster's objects, kept right whatever the API server does.

What belongs here: reading a whole list (`listing`), following one collection by list and watch (`reflector`, with its
`events`, `remedies` and `health`), following several together (`follow`), whether a Lease's holder is at work (`lease`), and the view that admissions read (`view`, or
`file_view` from files). What does not: what a command or the page makes of the objects; that is in its own sink.
"""
