"""List and watch: a copy of some of a cluster's objects, kept right whatever the API server does."""
