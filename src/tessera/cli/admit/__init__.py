"""`tessera admit`: the command, and the explanation of a decision as text.

The decision itself is `tessera.webhook.offline`. What belongs here: options, files, colours, exit codes.
"""
