"""Configuration files, read into values: the webhook's file (`webhook`, with a module for each large section) and the device
plugin's (`devices`).

A document is a table of fields (`schema` has the kinds of values); the reader, the JSON Schema and the reference in the
documentation come from it. Watching files and reloading them is not done here.
"""
