"""Claims on this node: read (`objects`), prepared and ended (`preparing`), and what is on disk of them (`prepared`, `cdi_files`).

Nothing here knows gRPC; the kubelet's calls come in through `kubelet/service`.
"""
