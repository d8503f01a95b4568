"""AdmissionReview and JSON Patch: request bytes to a pod, edits to response bytes.

`review` reads and answers; `patch` builds operations and applies them; `viewed_pod` reads the pods of a cluster for the view of what is
free. What is decided about a pod is in `core.admission`; HTTP is in `webhook`.
"""
