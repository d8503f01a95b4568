"""The cluster as decisions see it.

What belongs here: the view that admissions read, kept by watches (`live`) or read from files (`files`): nodes with what
they offered a moment ago (`grace`), the pods where it matters what is free (`pods`), what DRA offers (`dra`), whether a Lease's holder is at work (`lease`), and the
configuration that is installed (`policy`). What does not: how objects are followed (`kube.watch`), and what is decided (`core.admission`).
"""
