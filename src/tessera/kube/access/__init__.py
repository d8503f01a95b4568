"""Which cluster, and how to get in: kubeconfig files, contexts, credentials, exec plugins, proxies, TLS."""
