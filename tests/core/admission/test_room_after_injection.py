"""What injection adds is computed before the search, choice by choice: compared with injecting into the pod of every choice."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission import injection
from tessera.core.admission.fallback.asking import _ANOTHER, InjectedSums, ask
from tessera.core.admission.fallback.found import Replace
from tessera.core.admission.fallback.search import FallbackSearch
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION, InjectionPolicy, InjectionRule
from tessera.core.admission.limits import Work
from tessera.core.admission.policy import NO_CONSTRAINTS, FallbackPolicy, Policy
from tessera.core.admission.view.usable import COMING
from tessera.core.kubernetes.node import is_other
from tessera.core.kubernetes.pod import Container, moments, needs
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.asking import asked_profiles
from tessera.core.requests.record import apply
from tests.build import amounts, node, offers, pod, resource
from tests.examples import examples

PROFILES = ["1g.10gb", "2g.20gb", "3g.30gb", "7g.80gb"]
GPUS = [*PROFILES, "gpu"]
EXTRA = "example.com/nic"


class InjectingSearch(FallbackSearch):
    """Injects into the pod of each choice when it comes to it."""

    def __init__(self, pod, view, policy):
        self.written = policy.injection.resources(pod.namespace, "V100")
        self.given = pod, view, policy
        super().__init__(pod, view, policy.fallback, NO_CONSTRAINTS, wanted=self.wanted_by(pod))

    def wanted_by(self, one):
        _, view, _ = self.given
        every = needs(one, is_other).items()
        return {name: n for name, n in every if name not in self.written or view.has_anywhere(name)}

    def _has_room_injected(self, by, fitting):
        pod, view, policy = self.given
        changes = {old: new for old, new in by.items() if old != new}
        outcome = injection.inject(apply(pod, changes), policy.injection)
        if not isinstance(outcome, injection.Injected):
            return True
        holding = view.large_enough(
            view.for_pod(pod, policy.fallback.transient_taints), self.wanted_by(outcome.pod)
        )
        return bool(fitting & (holding | COMING)) or view.columns.share(fitting, holding)


def _container(gpus, cpu, extra, sections, restartable):
    has = amounts({**gpus, **({"cpu": cpu} if cpu else {})})
    has |= {EXTRA: Quantity.parse(str(extra))} if extra else {}
    return Container("c", has if "r" in sections else {}, has if "l" in sections else {}, bool(restartable))


def _containers(restartable):
    gpus = st.dictionaries(st.sampled_from(GPUS), st.integers(0, 2), max_size=2)
    return st.builds(
        _container,
        gpus,
        st.sampled_from([0, 0, 1, 3, "2m", "3999m", "-1"]),
        st.sampled_from([0, 0, 1]),
        st.sampled_from(["rl", "rl", "l", "r"]),
        restartable,
    )


rules = st.dictionaries(
    st.sampled_from(GPUS).map(resource),
    st.builds(
        lambda cpu, extra: InjectionRule(
            tuple((name, Quantity.parse(text)) for name, text in (("cpu", cpu), (EXTRA, extra)) if text)
        ),
        st.sampled_from(["", "1", "3", "3", "6", "1m", "500u", "2"]),
        st.sampled_from(["", "", "1", "500m"]),
    ),
    max_size=4,
)
clusters = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(GPUS), st.integers(1, 4), max_size=3),
        st.sampled_from([2, 4, 8, 32]),
        st.sampled_from([0, 0, 2]),
    ),
    min_size=1,
    max_size=4,
)


def _node(number, gpus, cpu, extra):
    return node(f"n{number}", cpu=cpu, **gpus, **({EXTRA: extra} if extra else {}))


@settings(max_examples=examples(400))
@given(
    st.lists(_containers(st.none()), min_size=1, max_size=3),
    st.lists(_containers(st.booleans()), max_size=2),
    rules,
    clusters,
    st.frozensets(st.sampled_from(PROFILES).map(resource), max_size=1),
    st.sampled_from([{}, {}, {"pod_requests": amounts({"cpu": 4})}, {"overhead": amounts({"cpu": 1})}]),
)
def test_a_choice_has_room_for_what_is_injected_with_it(regular, init, ruled, cluster, autoscaled, more):
    """Whatever runs in a pod and whatever the rules are: the same choice, trials and alternatives as by injecting each time."""
    asker = pod(*regular, init=tuple(init), annotations={GPU_TYPE_ANNOTATION: "V100"}, **more)
    policy = Policy(FallbackPolicy(autoscaled=autoscaled), InjectionPolicy({"V100": ruled}))
    view = offers(*(_node(number, *one) for number, one in enumerate(cluster)))
    asked = asked_profiles(asker)
    search, each_time = ask(asker, asked, view, policy), InjectingSearch(asker, view, policy)
    chosen = search.choose()
    assert chosen == each_time.choose()
    by = chosen.by if isinstance(chosen, Replace) else {}
    assert list(search.trials(by)) == list(each_time.trials(by))
    for profile in asked:
        assert search.alternatives(profile) == each_time.alternatives(profile)


@settings(max_examples=examples(400))
@given(
    st.lists(_containers(st.none()), min_size=1, max_size=4),
    st.lists(_containers(st.booleans()), max_size=2),
    rules,
    st.data(),
)
def test_sums_say_what_injecting_says(regular, init, ruled, data):
    """What sums say of a choice is what injection makes of it; of a pod that asks alike in both sections they say something.

    And what is needed at least, whatever else is chosen, is needed with all larger choices.
    """
    asker = pod(*regular, init=tuple(init), annotations={GPU_TYPE_ANNOTATION: "V100"})
    asked, policy = asked_profiles(asker), InjectionPolicy({"V100": ruled})
    counted = [one for one in asked if any(c.asked(one) for c in injection.running_containers(asker))]
    if not counted or not ruled:
        return
    sums = InjectedSums(asker, moments(asker), asked, ruled)
    to = data.draw(st.sampled_from(sorted(ruled)))
    some = data.draw(st.lists(st.sampled_from(counted), min_size=1, unique=True))

    def injected(chosen):
        by = dict.fromkeys(asked, _ANOTHER) | dict.fromkeys(chosen, to)
        outcome = injection.inject(apply(asker, by), policy)
        return needs(outcome.pod, is_other) if isinstance(outcome, injection.Injected) else {}

    assert sums.needs_with(frozenset((one, to) for one in some), Work()) in (None, injected(some))
    least = sums.at_least(to, some)
    for number in range(len(counted) - len(some) + 1) if least else ():
        for more in combinations([one for one in counted if one not in some], number):
            after = injected([*some, *more])
            assert all(after[name] >= amount for name, amount in least.items() if amount > 0)


def test_sums_speak_of_usual_pods():
    """A pod whose containers request what they limit: injection need not be tried for it, with or without containers that start first."""
    rule = InjectionRule((("cpu", Quantity.parse("4")), (EXTRA, Quantity.parse("1"))))
    one = Container("c", amounts({"2g.20gb": 2, "cpu": 1}), amounts({"2g.20gb": 2, "cpu": 1}))
    other = Container("o", amounts({"cpu": 3}), {})
    for init in ((), (other,)):
        asker = pod(one, one, other, init=init, annotations={GPU_TYPE_ANNOTATION: "V100"})
        sums = InjectedSums(asker, moments(asker), asked_profiles(asker), {resource("1g.10gb"): rule})
        choice = frozenset({(resource("2g.20gb"), resource("1g.10gb"))})
        assert sums.needs_with(choice, Work()) == {"cpu": 16, EXTRA: 4}
        assert sums.at_least(resource("1g.10gb"), [resource("2g.20gb")]) == {"cpu": 16, EXTRA: 4}
