"""An embedded cluster for demos and quick tests.

What belongs here: small stand-ins for the API server, the scheduler and the kubelet. What does not: anything that
Tessera itself does; the production code runs against these stand-ins unchanged.
"""
