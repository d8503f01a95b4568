"""The webhook put together: view, configuration, certificates, servers, and their common end.

Events on a pod's owner: its pods get something else, or are rejected. `kubectl describe` shows them there.

A pod that is created by hand has no owner, and no uid to be found by yet: its warning must do.
"""

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tessera import __version__
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput, of_system
from tessera.kube.access.kubeconfig import find_cluster, own_namespace
from tessera.kube.clock import SYSTEM_CLOCK, Clock, first_of
from tessera.kube.errors import InvalidKubeconfig, NoCluster
from tessera.kube.event_recorder import About, Event, Recorder
from tessera.kube.rest.client import Client
from tessera.kube.view.files import FileView
from tessera.kube.view.lease import CONTROLLER, LeaseFollower
from tessera.kube.view.live import LiveView
from tessera.kube.view.ticket_keys import TicketFollower
from tessera.protocol.admission.review import AdmissionRequest
from tessera.protocol.configuration import webhook as config
from tessera.serving.address import Address
from tessera.serving.ending import on_signals
from tessera.serving.logs import Log, forwarding
from tessera.serving.metrics import Family, gauge
from tessera.serving.reload import Followed
from tessera.webhook.certificates.files import CertificateFiles
from tessera.webhook.certificates.manager import CertificateManager, names_of_service
from tessera.webhook.certificates.rotation import RotationPolicy
from tessera.webhook.certificates.served import ServedCertificate
from tessera.webhook.certificates.signer import Signer, run_program
from tessera.webhook.certificates.store import KubeStore
from tessera.webhook.endpoint import Admission, CachedResponse, Endpoint
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits, Route
from tessera.webhook.metrics import (
    Metrics,
    Readiness,
    controller_metrics,
    event_metrics,
    free_metrics,
    log_metrics,
    memory_metrics,
    reload_metrics,
    server_metrics,
    view_metrics,
)

COMPONENT: Final = "gpu-webhook"


def report_to_owner(recorder: Recorder, request: AdmissionRequest, response: CachedResponse) -> None:
    """Record a fallback or a rejection of a pod that has an owner; nothing of a dry run, of which nothing may remain."""
    if request.dry_run or recorder.is_full():
        return
    owner = request.owner()
    if owner is None or not owner.uid:
        return
    about = About(owner.api_version, owner.kind, owner.name, request.namespace, owner.uid)
    would = response.observed  # reported, and not done
    reason = response.record.fields["reason"]
    if response.rejected is not None:
        word, text = ("GPUWouldReject", "would be rejected") if would else ("GPURejected", "is rejected")
        event = Event(about, word, f"a pod {text}: {reason}", "Warning")
    else:
        gets = ", ".join(f"{new} in place of {old}" for old, new in response.replaced)
        word, text = ("GPUWouldFallBack", "would get") if would else ("GPUFallback", "gets")
        event = Event(about, word, f"a pod {text} {gets}: {reason}")
    recorder.record(event)


_THREADS: Final = 2  # for files and log lines


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    listen: Address
    metrics_listen: Address | None
    config: Path | None
    nodes: tuple[Path, ...]
    tls_cert: Path | None
    tls_key: Path | None
    client_ca: Path | None
    kubeconfig: str | None
    context: str | None
    namespace: str | None
    service: str
    dns_names: tuple[str, ...]
    ca_secret: str
    webhook_configuration: str
    read_only_certificates: bool
    shutdown_delay: float
    drain_timeout: float
    limits: Limits
    certificate_policy: RotationPolicy = field(default_factory=RotationPolicy)  # quicker in tests
    certificate_clock: Clock = SYSTEM_CLOCK  # wrong in tests


class Webhook:
    """One process of the webhook."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._health = Readiness()
        self._metrics = Metrics(__version__)
        self._served = ServedCertificate(clients=_authorities(settings.client_ca))
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._exit_code = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Start every part, serve until a signal, end every part; the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_THREADS, "tessera"))
        loop.set_exception_handler(self._on_loop_error)
        self._log.attach(loop)
        async with AsyncExitStack() as parts:
            parts.enter_context(on_signals(self._stop))
            parts.enter_context(forwarding(self._log))
            client = self._client()
            if client is not None:
                await parts.enter_async_context(client)
            parts.push_async_callback(self._end_tasks)
            nodes = self._settings.nodes
            view = FileView(nodes) if nodes or client is None else LiveView(client)
            admission = Admission(view.offers, Policy())
            endpoint = Endpoint(admission, view.missing, self._metrics, self._log, self._events(client))
            self._configure(endpoint, view)
            self._health.require("shutdown", lambda: "ending" if self._stopping.is_set() else None)
            self._health.require("cluster", view.missing)
            self._certificates(client)
            self._start(view.run())
            self._follow_controller(client, view.offers)
            self._start(_prepare_when_complete(view))
            https = self._listeners(endpoint.route(), parts)
            self._metrics.add_source(lambda: self._shown(view, admission, https))
            await first_of(self._served.wait(), self._stopping.wait())
            if not self._stopping.is_set():
                address = https.start(self._settings.listen)
                self._log.info("serving", address=str(address), version=__version__)
                await self._stopping.wait()
                # Not ready first, and only some time later no longer there: load balancers learn late.
                await first_of(self._hurry.wait(), timeout=self._settings.shutdown_delay)
                await first_of(self._hurry.wait(), https.drain(self._settings.drain_timeout))
                https.abort()
                self._log.info("ended")
        return self._exit_code

    # What there is to serve with

    def _client(self) -> Client | None:
        """A cluster is needed for nodes, and for certificates of our own."""
        settings = self._settings
        if settings.nodes and settings.tls_cert:
            return None
        try:
            cluster = find_cluster(settings.kubeconfig, settings.context)
        except (InvalidKubeconfig, NoCluster) as error:
            if not settings.nodes:
                raise
            raise type(error)(
                f"without --tls-cert and --tls-key the webhook keeps its certificates in a cluster: {error}"
            ) from error
        return Client(cluster, user_agent=f"tessera-webhook/{__version__}")

    def _follow_controller(self, client: Client | None, offers: Offers) -> None:
        """Requests become claims only while there is a process that makes the claims' templates, and a key for their tickets."""
        offers.put_controller(at_work=False)
        if client is not None:
            namespace = self._settings.namespace or own_namespace(client.cluster)
            self._start(LeaseFollower(client, namespace, CONTROLLER, offers.put_controller).run())
            self._start(TicketFollower(client, namespace, offers).run())

    def _events(self, client: Client | None) -> Callable[[AdmissionRequest, CachedResponse], None] | None:
        """What records Events on the owners of pods; nothing where any client may call, or an invented owner would get one."""
        if client is None or self._settings.client_ca is None:
            return None
        recorder = Recorder(client, COMPONENT, instance=socket.gethostname(), counts_up=False)
        self._metrics.add_source(lambda: event_metrics(recorder))
        self._start(recorder.run())
        return partial(report_to_owner, recorder)

    def _configure(self, endpoint: Endpoint, view: LiveView | FileView) -> None:
        path = self._settings.config
        if path is None:
            return

        def use(configuration: config.Configuration) -> None:
            endpoint.configure(configuration)
            view.configure(configuration.policy.fallback)

        followed = Followed("configuration", [path], config.parse, use, self._report)
        followed.load()
        self._metrics.add_source(lambda: reload_metrics(followed))
        self._start(followed.follow())

    def _certificates(self, client: Client | None) -> None:
        settings = self._settings
        signer = Signer(run_program)
        keeper: CertificateFiles | CertificateManager
        if settings.tls_cert and settings.tls_key:
            keeper = CertificateFiles(settings.tls_cert, settings.tls_key, self._served, signer, self._report)
        else:
            assert client is not None  # noqa: S101 # `_client` needs one where there are no files
            namespace = settings.namespace or client.cluster.namespace
            store = KubeStore(client, namespace, settings.ca_secret, settings.webhook_configuration)
            names = [*names_of_service(settings.service, namespace), *settings.dns_names]
            keeper = CertificateManager(
                store,
                signer,
                self._served,
                names,
                self._log,
                settings.certificate_policy,
                settings.certificate_clock,
                keeps=not settings.read_only_certificates,
            )
        self._health.require("certificate", keeper.not_ready)
        self._metrics.add_source(keeper.metrics)
        self._start(keeper.run())

    def _listeners(self, mutate: Route, parts: AsyncExitStack) -> Listener:
        """The HTTPS listener, not started; one for metrics and probes beside it, if there is to be one."""
        settings = self._settings
        routes = {b"/mutate": mutate, **self._health.routes()}
        on_fault = partial(self._log.unexpected, "a request failed")
        if settings.metrics_listen is None:
            routes[b"/metrics"] = self._metrics.route()
        else:  # first, so that probes are answered while there is no certificate yet
            plain_routes = {**self._health.routes(), b"/metrics": self._metrics.route()}
            plain = Listener(plain_routes, settings.limits, on_fault=on_fault)
            self._log.info("metrics and probes", address=str(plain.start(settings.metrics_listen)))
            parts.callback(plain.abort)
        return Listener(routes, settings.limits, self._served.context, on_fault)

    def _shown(self, view: LiveView | FileView, admission: Admission, https: Listener) -> Iterable[Family]:
        """What the parts that are always there show of themselves at a scrape."""
        yield gauge("gpu_webhook_ready", "1 while the webhook is ready.", int(not self._health.missing()))
        yield from view_metrics(view)
        yield from free_metrics(view)
        yield from controller_metrics(view.offers, admission.policy)
        yield from log_metrics(self._log)
        yield from server_metrics(https)
        yield from memory_metrics(admission.memory.bytes, view.offers.label_bytes, https.header_cache.size)

    # The end

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._log.info("ending", signal=number.name)
        self._stopping.set()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run beside the listeners; if it fails, the process ends and the kubelet starts it again."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What goes wrong

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.unexpected("a part of the webhook has failed: ending", error)
            self._exit_code = 1
            self._stopping.set()

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, error = str(context.get("message")), context.get("exception")
        if isinstance(error, Exception):
            self._log.unexpected(message, error)
        else:
            self._log.warning(message)

    def _report(self, message: str, error: str | None) -> None:
        if error is None:
            self._log.info(message)
        else:
            self._log.error(message, error=error)


def _authorities(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text()
    except OSError as error:
        raise InvalidInput(f"--client-ca {path}: {of_system(error)}") from error
    except ValueError as error:
        raise InvalidInput(f"--client-ca {path}: no certificates in PEM") from error


async def _prepare_when_complete(view: LiveView | FileView) -> None:
    """Once the view is there, do beforehand what its first decisions would do, a piece in each turn of the loop.

    And spare the garbage collector from going through thousands of nodes again and again.
    """
    if isinstance(view, LiveView):
        await view.synced()
    for _ in view.offers.prepare():
        await asyncio.sleep(0)
    gc.collect()
    gc.freeze()
