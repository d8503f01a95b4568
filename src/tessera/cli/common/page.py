"""The page of `tessera dashboard` and of `tessera demo --serve`, put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tessera.cli.admit.explanation import explain
from tessera.cli.common.terminal import Style
from tessera.core.admission.decision import Policy
from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.dashboard.board import Board
from tessera.dashboard.following import following
from tessera.dashboard.site import Explain, Page
from tessera.kube.rest.client import Client
from tessera.protocol import yaml
from tessera.protocol.kubernetes import objects
from tessera.webhook.offline import admit


def explainer(offers: Offers, policy: Policy) -> Explain:
    """`tessera admit -o explain`, for whatever somebody writes into the page."""

    def answer(text: str) -> str:
        given = objects.items(yaml.load_all(text, "YAML"))
        results = [admit(one, offers, policy, "default") for one in given]
        told = [explain(one, offers, policy, Style(enabled=False)) for one in results if one.judgement]
        if not told:
            raise InvalidInput("there is no pod in this, and nothing that makes pods")
        return "\n\n".join(told) + "\n"

    return answer


@asynccontextmanager
async def serving(
    client: Client, board: Board, explain: Explain, port: int, *, denials: bool = True
) -> AsyncIterator[str]:
    """Serve a cluster's page; its address."""
    page = Page(board, explain)
    url = await page.server.start(port)
    try:
        async with following(client, board, denials=denials), asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(page.run())
            try:
                yield url
            finally:
                telling.cancel()
    finally:
        await page.server.stop()
