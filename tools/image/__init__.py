"""Tessera's container image, made from Debian packages and wheels, without a container daemon.

Here belongs what the image consists of and how it becomes an archive: Debian's Python and the libraries that it needs
(`debian`), the package and what it depends on (`wheels`), deterministic layers and the archive around them
(`archive`), and what is kept from one build to the next (`layers`). The Dockerfile copies the very same layers, so there is one
layout and not two. Only the standard library is used: the Dockerfile's build stage has nothing else.

There is no shell in the image, no package manager and no compiler.
"""
