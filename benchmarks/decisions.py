"""Make some decisions and end: a process to count instructions of. `python -m benchmarks.decisions MODE PASSES NODES [SOURCE DRA]`."""

import json
import sys

from benchmarks import corpus
from tessera.core.admission.policy import Dra, FallbackPolicy, Policy
from tessera.webhook.endpoint import Admission


def main(mode: str, passes: int, nodes: int, source: str = "plugin", dra: str = "") -> None:
    """Answer one review of each template; then go over them so many times as the mode says.

    `source`: where the nodes' devices come from, `plugin` or `dra`; `dra`: what `fallback.dra` is.
    """
    policy = Policy(FallbackPolicy(dra=Dra(dra))) if dra else Policy()
    admission = Admission(corpus.offers(nodes, dra=source == "dra"), policy)
    bodies = corpus.reviews()
    for body in bodies:
        admission.answer(body)
        json.loads(body)
    for number in range(passes):
        for body in bodies:
            if mode == "json":
                json.loads(body)
                continue
            if mode == "first":
                admission.memory.forget()
            admission.answer(body.replace(corpus.NONCE.encode(), b"nonce-%010d" % number))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
