"""Coverage-guided fuzzing of the review path: bytes in, an answer or one clear sentence out.

    make fuzz                                  a minute of it
    python -m stress.fuzz_review -runs=100000  libFuzzer's own options

Whatever comes, the handler answers or raises `InvalidInput` or `BeyondLimits`; nothing else may escape. It begins with the
hostile pods (`stress.hostile`).
"""

import sys

import atheris

with atheris.instrument_imports(include=["tessera"]):
    from stress.hostile import CORPUS
    from tessera.core.admission.limits import BeyondLimits
    from tessera.core.admission.policy import Policy
    from tessera.core.admission.view.offers import Offers
    from tessera.core.errors import InvalidInput
    from tessera.core.kubernetes.node import Node
    from tessera.core.kubernetes.quantity import Quantity
    from tessera.webhook.endpoint import Admission

SEED = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"","kind":"Pod"},'
    b'"operation":"CREATE","namespace":"d","object":{"metadata":{"annotations":{"gpu-webhook.k8s.io/min-memory":"20Gi"}},'
    b'"spec":{"nodeSelector":{"a":"b"},"containers":[{"name":"c","resources":{"limits":{"nvidia.com/mig-2g.20gb":"1"}}}]}}}}'
)
admission = Admission(
    Offers([Node("n", {"a": "b"}, (), {"nvidia.com/mig-1g.10gb": Quantity.parse("7")})]), Policy()
)


def one(data: bytes) -> None:
    """One input: the bytes as they are, and spliced into a review that is right but for them."""
    for body in (
        data,
        SEED.replace(b"2g.20gb", data[:64]),
        SEED.replace(b'"1"', data[:64]),
        SEED.replace(b'{"a":"b"}', data),
    ):
        try:
            answer = admission.answer(body)
        except (InvalidInput, BeyondLimits) as error:
            if "\n" in str(error) or "Traceback" in str(error):
                raise AssertionError("not one sentence") from error
        else:
            assert answer.startswith(b'{"apiVersion":"admission.k8s.io/v1"')


if __name__ == "__main__":
    for make in CORPUS.values():
        one(make())
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
