"""Claims on this node: read (`objects`), prepared and ended (`preparing`), on disk (`prepared`), repaired and cleaned up (`upkeep`).

Nothing here knows gRPC; the kubelet's calls come in through `kubelet`.
"""
