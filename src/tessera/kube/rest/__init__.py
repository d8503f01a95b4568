"""Calls to an API server: one connection, one client, one method per verb."""
