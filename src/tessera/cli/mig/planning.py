"""What `tessera mig plan`, `fit` and `defragment` share: a demand as an argument, the limits of a plan, and what it changes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click

from tessera.cli.common import completing
from tessera.cli.common.options import WholeNumber, gathered, option
from tessera.cli.common.output import warn
from tessera.cli.common.reading import mig_parted_option
from tessera.cli.mig.sources import read_text
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import PRODUCTS
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.configurations import PlanChanges, changes_of
from tessera.core.planning.kinds import CardToCut, NodeCards, QueuedProfile
from tessera.core.planning.planner import Objective, Plan, Question, plan
from tessera.inventory.pending import Pending, pending_inventory
from tessera.kube.object_files import objects_in_documents
from tessera.protocol import yaml
from tessera.protocol.configuration.schema import shown
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.entries import counts_of, looks_like_counts, read_counts
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.solver import highs

demand_argument: Final = click.argument(
    "demand", metavar="COUNTS|FILE", shell_complete=completing.counts_or_files
)


def read_demand(argument: str, lookback: float, most: int) -> dict[MigProfile, int]:
    """Read counts of profiles, a file with such counts, or what the saved pods in a file wait for.

    `most` is the highest count of one profile. Fallbacks of pods older than `lookback` seconds are no demand.
    """
    where, text = read_text(argument)
    if looks_like_counts(text):
        demand = read_counts(text, where, most)
    else:
        documents = yaml.load_all(text, where)
        if any(isinstance(document, dict) and "kind" in document for document in documents):
            demand = _read_pending(documents, where, lookback)
        else:
            demand = _read_map(documents, where, most)
    known = {profile for product in PRODUCTS for profile in product.profiles}
    if unknown := ", ".join(str(profile) for profile in demand if profile not in known):
        raise InvalidInput(f"{where}: no known card has {unknown}; `tessera mig products` lists the profiles")
    if not demand:
        warn("the demand is empty: no layout is needed")
    return demand


def _read_pending(documents: Iterable[object], where: str, lookback: float) -> dict[MigProfile, int]:
    inventory = pending_inventory()
    inventory.take(objects_in_documents(documents, where))
    now = time.time()
    pending = Pending(inventory, moment(now - lookback), now=now)
    warn(*pending.words())
    return dict(pending.demand.all)


def _read_map(documents: Sequence[object], where: str, most: int) -> dict[MigProfile, int]:
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise InvalidInput(f"{where}: expected counts such as 2g.20gb=5,3g.40gb=2, or a map of them")
    counts = {name: count if isinstance(count, str) else shown(count) for name, count in documents[0].items()}
    return counts_of([f"{name}={count}" for name, count in counts.items()], where, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """How much a plan may change, what it maximizes, and what it does with the rest of a card."""

    objective: str
    max_nodes: int | None
    max_cards: int | None
    leave_rest: bool
    mig_manager: MigManagerConfig | None

    def solve(
        self,
        demand: Mapping[QueuedProfile, int],
        cards: Sequence[CardToCut],
        places: Sequence[NodeCards],
        needed: tuple[MigProfile, ...],
    ) -> Plan:
        """Compute the best plan within these limits; `needed` has what fills the rest of cards, first of all."""
        question = Question(
            demand,
            cards,
            places,
            objective=Objective(self.objective),
            most_nodes=self.max_nodes,
            most_cards=self.max_cards,
            fill=None if self.leave_rest else needed,
        )
        return plan(question, highs)

    def changes(
        self,
        solution: Plan,
        places: Sequence[NodeCards],
        configs: MigManagerConfig | None,
        needed: Sequence[MigProfile],
    ) -> PlanChanges:
        """What the plan changes on each node; the configurations that mig-manager has already go before new ones."""
        existing = configs.document.configs if configs and configs.document else {}
        changes = changes_of(solution, places, existing, needed, as_planned=self.max_cards is not None)
        if changes.new and configs and configs.error:
            warn(f"mig-manager's configurations are not known: {configs.error}")
        return changes


plan_options: Final = gathered(
    "limits",
    PlanLimits,
    option(
        "--objective",
        "What to maximize if not all of the demand fits.",
        type=click.Choice([objective.value for objective in Objective]),
        default="devices",
        group="Plan",
    ),
    option("--max-nodes N", "Change at most this many nodes.", type=WholeNumber(1), group="Plan"),
    option("--max-cards N", "Cut at most this many cards.", type=WholeNumber(1), group="Plan"),
    option(
        "--leave-rest",
        "Do not fill the rest of a card that is cut with what is most in demand.",
        group="Plan",
    ),
    mig_parted_option(group="Cards"),
)
