"""AdmissionReview and JSON Patch: request bytes to a pod, edits to response bytes."""
