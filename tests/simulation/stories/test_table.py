"""The pods that the served demo cluster has, beside those that people apply."""

from pathlib import Path

from tessera.protocol import yaml
from tessera.simulation.stories.table import SOME_PODS

EXAMPLES = Path(__file__).parents[3] / "examples" / "pods"


def test_examples_are_new_pods():
    """No example has the name of a pod that is there already: applying it makes a pod, and admission is seen."""
    found = [
        one for file in sorted(EXAMPLES.glob("*.yaml")) for one in yaml.load_all(file.read_text(), file.name)
    ]
    examples = {one["metadata"]["name"] for one in found}
    residents = [one["metadata"]["name"] for one in SOME_PODS]
    assert len(examples) == len(found) > 0
    assert len(set(residents)) == len(residents)
    assert not examples & set(residents)
