"""`tessera why`: the command, and the answers about pods and about MigLayouts as text and as documents.

The answers themselves are `tessera.diagnosis`. What belongs here: options, colours, tables.
"""
