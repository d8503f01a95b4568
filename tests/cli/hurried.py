"""`tessera webhook` in a hurry: it waits tenths of seconds where an operator would not notice seconds.

Files are read again sooner, API servers are thought to learn of a new bundle sooner, and each scrape is new.
"""

from functools import partial, partialmethod

from tessera.cli import main
from tessera.serving.reload import Followed
from tessera.webhook import metrics, process
from tessera.webhook.certificates.files import CertificateFiles
from tessera.webhook.certificates.rotation import RotationPolicy

Followed.follow = partialmethod(Followed.follow, 0.1)  # type: ignore[assignment]
CertificateFiles.run = partialmethod(CertificateFiles.run, 0.1)  # type: ignore[assignment]
process.Settings = partial(  # type: ignore[assignment, misc]
    process.Settings, certificate_policy=RotationPolicy(lag=0.1, interval=0.2)
)
metrics._TEXT_SECONDS = 0.0  # type: ignore[misc]

main()
