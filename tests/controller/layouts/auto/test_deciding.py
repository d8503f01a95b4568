"""One look of the autopilot, at several MigLayouts."""

from tessera.controller.layouts.auto.deciding import Question
from tessera.core.autopilot.values import CardSupply, Past, Want
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.inventory.wants import Situation
from tests.controller.layouts.test_plan import NOW, read, seen

H100 = product_named("H100-80GB")
SMALL, LARGE = MigProfile.parse("1g.10gb"), MigProfile.parse("7g.80gb")


def test_what_one_serves_the_next_need_not() -> None:
    """A pod that wants two devices is served once, and one that wants one is not forgotten for it."""
    layouts = tuple(
        read(name, mode="Auto", nodeSelector={"nvidia.com/pool": name}, autopilot={"dryRun": False})
        for name in ("a", "b")
    )
    idle, queues = CardLayout.cut(H100, [SMALL] * 7), frozenset({1})
    cards = {
        name: tuple(CardSupply(name, number, idle, queues=queues) for number in (0, 1)) for name in ("a", "b")
    }
    wants = Want(LARGE, "team", 0.0, 1), Want(LARGE, "team", 1.0, 1, number=2, together=2)
    nodes = {name: seen(name, pool=name) for name in cards}
    question = Question(layouts, layouts, nodes, {one.uid: Past() for one in layouts}, NOW)
    looks = question.decide(Situation(wants, cards, {}, dict.fromkeys(cards, queues)))
    served = {name: [one.serves for one in looks[f"uid-{name}"].proposal.recuts] for name in cards}
    assert served == {"a": [{LARGE: 1}, {LARGE: 1}], "b": [{LARGE: 1}]}
