"""MIG layouts as documents: run.ai's annotation, mig-parted's file, plain counts, and what Node objects say about their GPUs."""
