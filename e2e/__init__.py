"""Every promise, proven on a real Kubernetes that `e2e.cluster` starts."""
