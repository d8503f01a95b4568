"""The choice against brute force: every combination of candidates on every node, by rules written down a second time."""

from fractions import Fraction
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.fallback.found import AsAsked, Replace
from tessera.core.admission.fallback.search import FallbackSearch
from tessera.core.admission.policy import NO_CONSTRAINTS, FallbackPolicy, Minimum, Permission
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Node, why_excluded
from tessera.core.kubernetes.pod import requested
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.quota import Allowance, Quota
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint
from tests.build import amounts, container, pod, resource
from tests.examples import examples

PROFILES = ["1g.10gb", "1g.10gb.me", "1g.20gb", "2g.20gb", "2g.20gb.gfx", "3g.30gb", "4g.24gb", "7g.80gb"]
SHARES = ["1g.10gb.shared"]
GPUS = [*PROFILES, *SHARES, "gpu"]
GPU = resource("gpu")

labels = st.fixed_dictionaries(
    {"zone": st.sampled_from("ab")},
    optional={
        "nvidia.com/gpu.memory": st.sampled_from(["16160", "24576", "81559"]),
        "nvidia.com/gpu.product": st.sampled_from(["Tesla-V100", "T4-SHARED", "A100-MIG-1g.10gb"]),
        "nvidia.com/gpu.replicas": st.sampled_from(["1", "4"]),
    },
)
counts = st.dictionaries(st.sampled_from(GPUS), st.integers(0, 3), max_size=4)
nodes = st.lists(
    st.builds(
        lambda i, labels, tainted, has, away, cpu: Node(
            f"n{i}",
            labels,
            (Taint(tainted),) if tainted else (),
            amounts({**has, **({"cpu": cpu} if cpu else {})}),
            amounts({name: count for name, count in away.items() if count and not has.get(name)}),
        ),
        st.integers(0, 9),
        labels,
        st.sampled_from(["", "", "dedicated", "karpenter.sh/disrupted", "mine/x"]),
        counts,
        st.dictionaries(st.sampled_from(GPUS), st.integers(0, 2), max_size=1),
        st.sampled_from([0, 2, 8]),
    ),
    max_size=4,
    unique_by=lambda one: one.name,
)
policies = st.builds(
    FallbackPolicy,
    downgrades=st.booleans(),
    upgrades=st.booleans(),
    whole_gpu=st.booleans(),
    max_whole_gpus=st.integers(0, 3),
    min_memory=st.none() | st.sampled_from(["11Gi", "25Gi"]).map(Quantity.parse),
    min_memory_fraction=st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1)]),
    chains=st.dictionaries(
        st.sampled_from(PROFILES).map(resource),
        st.lists(st.sampled_from(GPUS).map(resource), max_size=3, unique=True).map(tuple),
        max_size=2,
    ),
    autoscaled=st.frozensets(st.sampled_from(PROFILES).map(resource), max_size=1),
    transient_taints=st.sampled_from([(), ("mine/*",)]),
)


def wished(said, least):
    found = NO_CONSTRAINTS.also(Permission(said), "the pod's")
    return found.at_least(Minimum(Quantity.parse(least), "the pod's min-memory")) if least else found


wishes = st.builds(
    wished,
    st.sampled_from(["any", "any", "smaller", "larger", "never"]),
    st.sampled_from(["", "", "15Gi", "25Gi"]),
)
containers = st.builds(
    lambda has, cpu: container(**{name: n for name, n in has.items() if n}, **({"cpu": cpu} if cpu else {})),
    st.dictionaries(st.sampled_from([*PROFILES, "gpu"]), st.integers(0, 2), max_size=2),
    st.sampled_from([0, 0, 1, 4]),
)
quotas = st.lists(
    st.builds(
        lambda name, hard, used: Quota(
            "default",
            name,
            {resource(r): n for r, n in hard.items()},
            {resource(r): n for r, n in used.items()},
        ),
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from(GPUS), st.integers(0, 3), min_size=1, max_size=4),
        st.dictionaries(st.sampled_from(GPUS), st.integers(0, 1), max_size=2),
    ),
    max_size=2,
    unique_by=lambda one: one.name,
)
places = st.sampled_from(
    [
        {},
        {"node_selector": {"zone": "a"}},
        {"required_terms": (NodeSelectorTerm((Requirement("zone", "In", ("b",)),)),)},
        {"node_name": "n1"},
        {"required_terms": (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("n2",)),)),)},
    ]
)
pods = st.builds(
    lambda some, init, place: pod(*some, init=tuple(init), **place),
    st.lists(containers, min_size=1, max_size=2),
    st.lists(containers, max_size=1),
    places,
)


def parsed(name):
    """Compute, memory and engines of a resource; None for what is no profile."""
    text = name.removeprefix("nvidia.com/mig-")
    if text == name or text.endswith(".shared"):
        return None
    compute, memory, *engines = text.split(".")
    return int(memory.removesuffix("gb")), int(compute.removesuffix("g")), set(engines)


def is_whole_card(name):
    return parsed(name)[1] == 7 or name == resource("4g.24gb")


def has(node, name):
    there = node.allocatable.get(name)
    there = there or node.unavailable.get(name)
    return int(there.value) if there else 0


def is_whole(node):
    label = node.labels.get("nvidia.com/gpu.product", "")
    return "MIG" not in label and "SHARED" not in label and node.labels.get("nvidia.com/gpu.replicas") != "4"


def place(r):
    """Where a profile stands in the order."""
    memory, compute, engines = parsed(r)
    return memory, compute, ["", "me", "gfx"].index("".join(engines))


class Oracle:
    """One pod before some nodes."""

    def __init__(self, asker, cluster, policy, wish, quotas=()):
        self.asker, self.policy, self.wish, self.quotas = asker, policy, wish, quotas
        every = [r for c in asker.all_containers() for r in c.resources() if parsed(r) and c.asked(r)]
        self.asked = list(dict.fromkeys(every))
        cpu = requested(asker).get("cpu", Quantity.parse("0"))
        self.usable = [
            one
            for one in cluster
            if why_excluded(asker, one, policy.transient_taints) is None
            and not one.allocatable.get("cpu", cpu) < cpu
        ]
        bound = asker.node_name or any(term.fields for term in asker.required_terms or ())
        self.autoscaled = set() if bound else policy.autoscaled
        self.offered = {
            r for one in self.usable for r in map(resource, GPUS) if has(one, r)
        } | self.autoscaled
        self.with_gpus = [one for one in self.usable if has(one, GPU)]
        cards = [int(one.labels.get("nvidia.com/gpu.memory", "999999")) for one in self.with_gpus]
        self.smallest = min((-(-mib // 1024) for mib in cards), default=999)

    def allowed(self, own, to):
        """Whether settings and wishes let it be chosen."""
        policy, wish = self.policy, self.wish
        minimum = max(
            wish.minimum.amount.value if wish.minimum else 0,
            policy.min_memory.value if policy.min_memory else 0,
            policy.min_memory_fraction * parsed(own)[0] * 2**30,
        )
        if wish.never:
            return False
        if to == GPU:
            return (
                policy.whole_gpu and all(map(is_whole, self.with_gpus)) and self.smallest * 2**30 >= minimum
            )
        if parsed(to) is None or place(to) < place(own):
            directed = policy.downgrades and not wish.no_smaller
        else:
            directed = policy.upgrades and not wish.no_larger
        return directed and (not minimum or (parsed(to) is not None and parsed(to)[0] * 2**30 >= minimum))

    def ladder(self, own):
        """Resource, step and whether it is a whole GPU that counts against the most."""
        equal = is_whole_card(own) and self.smallest >= parsed(own)[0]
        if own in self.policy.chains:
            rungs = [(r, 2, r == GPU and not equal) for r in self.policy.chains[own] if r != own]
        else:
            kept = (r for r in self.offered if parsed(r) and r != own and parsed(r)[2] >= parsed(own)[2])
            others = sorted(kept, key=place)
            rungs = [(GPU, 1, False)] if equal else []
            rungs += [(r, 2, False) for r in reversed(others) if place(r) < place(own)]
            rungs += [(r, 3, False) for r in others if place(r) > place(own)]
            rungs += [] if equal else [(GPU, 4, True)]
        return [(own, 0, False), *(rung for rung in rungs if self.allowed(own, rung[0]))]

    def need(self, sources):
        def amount(container):
            return sum(asked.value for s in sources if (asked := container.asked(s)))

        sidecars = most = 0
        for one in self.asker.init_containers:
            most = max(most, sidecars + amount(one))
            sidecars += amount(one) if one.restartable else 0
        return max(most, sidecars + sum(map(amount, self.asker.containers)))

    def fits(self, combination):
        """Whether one node has all of it."""
        becomes = dict(zip(self.asked, (r for r, _, _ in combination), strict=True))
        counted = [own for own, (_, _, counts) in zip(self.asked, combination, strict=True) if counts]
        if counted and self.need(counted) > self.policy.max_whole_gpus:
            return False
        targets = {to: [own for own in self.asked if becomes[own] == to] for to in becomes.values()}
        for to, sources in targets.items():
            if sources != [to] and not self.is_within_quotas(to, sources):
                return False
        targets[GPU] = [*targets.get(GPU, []), GPU]
        needs = {to: self.need(sources) for to, sources in targets.items()}
        if all(to in self.autoscaled or not n for to, n in needs.items()):
            return True
        return any(all(has(one, to) >= n for to, n in needs.items()) for one in self.usable)

    def is_within_quotas(self, to, sources):
        """Whether some quota names what replaces others, and none has too little left."""
        need = self.need([*sources, to] if to == GPU else sources)
        return not self.quotas or (
            any(to in one.hard for one in self.quotas)
            and all(one.used.get(to, 0) + need <= one.hard.get(to, 999) for one in self.quotas)
        )

    def choice(self):
        """What each profile becomes, or None."""
        best = None
        for numbered in product(*(list(enumerate(self.ladder(own))) for own in self.asked)):
            combination = [rung for _, rung in numbered]
            steps = [step for _, step, _ in combination]
            rank = (max(steps, default=0), sum(map(bool, steps)), [number for number, _ in numbered])
            if self.fits(combination) and (best is None or rank < best[0]):
                chosen = zip(self.asked, combination, strict=True)
                best = rank, {own: to for own, (to, _, _) in chosen if own != to}
        return best[1] if best else None


@given(pods, nodes, policies, wishes, st.just([]) | quotas)
@settings(max_examples=examples(500))
def test_the_choice_is_what_brute_force_chooses(asker, cluster, policy, wish, some):
    """Capacity, shares, minimums, equals, engines, room, chains, autoscaler, quotas: the first of all that fits, and nothing else."""
    allowance = Allowance(some, asker) if some else None
    outcome = FallbackSearch(asker, Offers(cluster), policy, wish, allowance=allowance).choose()
    ours = {} if isinstance(outcome, AsAsked) else dict(outcome.by) if isinstance(outcome, Replace) else None
    oracle = Oracle(asker, cluster, policy, wish, some)
    assert ours == (oracle.choice() if oracle.asked else {})
