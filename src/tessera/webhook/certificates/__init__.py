"""The webhook's certificates: made, kept in a Secret, rotated; or given in files that an operator or cert-manager renews.

Self-managed, each reconciliation goes one way:

- read: `store` reads the Secret and the webhook configuration, and compares this machine's clock with the API server's;
  `authorities` understands what is in them.
- decided: `rotation.plan`, a pure function, says the one next step. It does nothing.
- done: `manager` takes that step. `signer` makes keys and certificates in a short-lived program (`pki`), `store` writes
  the Secret and the bundle, `served` holds what the listener shows to the next client.

The webhook's own manager reads and serves; `controller` (`tessera certs run`) runs one that writes. `files` is the other
mode: it follows the files that are given. Not here: the listener (`webhook.http`) and the commands (`cli.certs`).
"""
