"""`tessera mig`: check, convert, draw, plan and apply MIG layouts."""
