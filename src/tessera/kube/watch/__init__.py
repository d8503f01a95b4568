"""A cluster's objects on their way into memory.

What belongs here: what is read and how a consumer takes it (`table`), and the three feeders of such a table: every
collection listed once (`listing`), followed by list and watch (`follow`), and objects from files (`file_feed`). Each
collection that is followed has a `reflector` with its `health`; the entries of several tables share it (`shared_entries`).
What does not: what is made of the objects; that is in a table, such as the one of the view (`kube.view`).
"""
