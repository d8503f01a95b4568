"""The two ways in which a cluster does not come about."""


class ClusterError(RuntimeError):
    """Something that should work did not: a program that does not build, start or answer in time."""


class Unavailable(RuntimeError):
    """This machine cannot do what was asked (no root, no Go …): a test that needs it is skipped with this reason."""
