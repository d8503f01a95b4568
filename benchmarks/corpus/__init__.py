"""What is measured with: reviews as an API server sends them, nodes as a large cluster has them.

Sizes are those of real objects: a pod of a Deployment with two containers is about 4 KB once it is defaulted and
wrapped in a review, one of a platform that adds sidecars and fills in environments about 40 KB, a node about 7 KB.
Everything is made from its number alone, so that two runs, and every program in a run, see the same bytes.
"""

from benchmarks.corpus.cluster import NODES, namespaces, node, nodes, offers, running_pods
from benchmarks.corpus.reviews import NONCE, SIZES, Kind, pod, review, reviews
from benchmarks.corpus.taken import pods_on
from benchmarks.corpus.templates import TEMPLATES, TWO_PROFILES, Template

__all__ = [
    "NODES",
    "NONCE",
    "SIZES",
    "TEMPLATES",
    "TWO_PROFILES",
    "Kind",
    "Template",
    "namespaces",
    "node",
    "nodes",
    "offers",
    "pod",
    "pods_on",
    "review",
    "reviews",
    "running_pods",
]
