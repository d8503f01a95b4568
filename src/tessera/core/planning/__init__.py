"""Plans: how to cut cards so that they serve a demand, and how much room the cards still have.

Which pods wait and which cards may be cut is read from a cluster in `inventory`.
"""
