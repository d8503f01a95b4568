"""What the page of `tessera dashboard` and of `tessera demo --serve` says about a pod."""

from tessera.cli.admit.explanation import explain
from tessera.cli.common.terminal import Style
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.dashboard.server import Explain
from tessera.protocol import yaml
from tessera.protocol.kubernetes.workloads import items
from tessera.webhook.offline import admit


def explainer(offers: Offers, policy: Policy) -> Explain:
    """`tessera admit -o explain`, for the YAML that is written into the page."""

    def answer(text: str) -> str:
        given = items(yaml.load_all(text, "YAML"))
        results = [admit(one, offers, policy, "default") for one in given]
        explained = [explain(one, offers, policy, Style(enabled=False)) for one in results if one.reviewed]
        if not explained:
            raise InvalidInput("there is no pod in this, and nothing that makes pods")
        if any(one.claims for one in results):
            explained.append("tessera controller is taken to be running: requests become claims")
        return "\n\n".join(explained) + "\n"

    return answer
