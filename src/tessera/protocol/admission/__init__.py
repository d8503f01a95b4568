"""AdmissionReview and JSON Patch: request bytes to a pod, edits to response bytes.

`review` reads and answers; `patch` builds operations and applies them. What is decided about a pod is in
`core.admission`; HTTP is in `webhook`.
"""
