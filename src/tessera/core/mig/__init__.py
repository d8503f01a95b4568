"""MIG: profiles, products, their geometry, where instances lie on a card, and the layouts that cards are cut into.

How layouts are written in files and annotations is in `protocol.mig`; which layout would serve a demand in `core.planning`.
"""
