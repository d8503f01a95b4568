"""`tessera admit`: the webhook's decision, offline, and its explanation."""
