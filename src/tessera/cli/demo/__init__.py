"""`tessera demo`: what Tessera does, story by story, on an embedded cluster."""
