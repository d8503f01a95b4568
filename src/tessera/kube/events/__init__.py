"""Events: what an operator ought to know about an object, where `kubectl describe` shows it.

What belongs here: which of many events are written, and how (`correlator`, pure), and writing them (`recorder`). What does not: what is
worth an event, which is its sender's to know. Events are a courtesy: they are dropped rather than delayed, and never in
the way of anything else.
"""
