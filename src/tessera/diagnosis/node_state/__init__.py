"""What a node offers, who holds it, who cuts its cards, and why a pod with GPUs finds no room there.

What belongs here: the answer about a node as a whole, without any pod that asks. What does not: what a node lacks for one
pod, and what would mend it (`tessera.diagnosis`); how far a MigLayout is (`tessera.diagnosis.layouts`).
"""
