"""Makes the parts of a gateway from its settings; `gateway.core` and `gateway.front` put them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from structlog.typing import FilteringBoundLogger

from gateway.address import ListenError
from gateway.admission import Admission, AdmissionLimits, OwnLimits
from gateway.attempts import Retries
from gateway.back_off import BackOffLimits
from gateway.catalogue import Catalogue, stamp_of
from gateway.chances import Chances
from gateway.describe import Describer
from gateway.errors import ModelNotFound
from gateway.estimate import Fits
from gateway.inventory import Found, Sources, configured_options
from gateway.live_settings import LiveSettings
from gateway.loads import MemoryLimits, Terms
from gateway.memory import machine_memory
from gateway.model_status import Keeping
from gateway.one_shot import MAX_AT_ONCE, OneShot
from gateway.onlooker import Onlooker
from gateway.pressure import Marks
from gateway.process import Command
from gateway.quarantine import Quarantine, QuarantineLimits
from gateway.sections.grpc import GrpcSettings
from gateway.sections.limits import LimitSettings
from gateway.sections.retries import RetrySettings
from gateway.sections.turns import TurnSettings
from gateway.settings import Settings, SettingsError
from gateway.sockets import PARENT, SocketFolder
from gateway.state_file import StateFile, state_folder, state_path
from gateway.turn_table import TurnTable
from gateway.turns import TurnLimits
from gateway.worker_starter import WorkerStarter, told_limits, worker_settings
from gateway.workers import Workers

ADMISSION_KEYS = ("max_requests", "max_requests_per_model", "max_waiting", "max_wait_s", "max_held_bytes")


def socket_folder() -> SocketFolder:
    """Make the folder in which workers listen.

    Raises:
        ListenError: there is no place for one.
    """
    try:
        return SocketFolder()
    except OSError as error:
        raise ListenError(f"{PARENT}: no folder for the workers' sockets can be made: {error.strerror}") from error


def found_models(sources: Sources) -> Found:
    """Find the models of the settings and of the hub's cache.

    Raises:
        SettingsError: two models of the settings share a name.
    """
    try:
        return sources.find()
    except ValueError as error:
        raise SettingsError(f"models: {error}") from error


def make_catalogue(settings: Settings, found: Found, command: Command, log: FilteringBoundLogger) -> Catalogue:
    """Make the catalogue of the models that were found.

    Raises:
        SettingsError: the models' names contradict each other.
    """
    describer = Describer(
        Command((*command.argv, "describe"), command.environment),
        settings.limits.describe_s,
        log,
        asyncio.Semaphore(MAX_AT_ONCE),
        settings.allow_mlx_lm,
        told_limits(settings),
    )
    try:
        return Catalogue(found.models.values(), describer.describe)
    except ValueError as error:
        raise SettingsError(f"models: {error}") from error


def make_fits(now: Callable[[], Settings], catalogue: Catalogue, command: Command, log: FilteringBoundLogger) -> Fits:
    """Make what says how much memory models take; `now` returns the settings as they were read last."""
    settings = now()
    one_shot = OneShot(
        Command((*command.argv, "fit"), command.environment),
        settings.limits.describe_s,
        log,
        asyncio.Semaphore(MAX_AT_ONCE),
    )
    return Fits(
        catalogue,
        one_shot,
        lambda model, options: worker_settings(model, options, now()),
        partial(machine_memory, settings.memory.budget),
    )


def make_workers(
    settings: Settings,
    catalogue: Catalogue,
    starter: WorkerStarter,
    fits: Fits,
    log: FilteringBoundLogger,
    onlooker: Onlooker,
) -> Workers:
    """Make the keeper of all workers; none runs yet."""
    told = settings.supervision
    back_off = BackOffLimits(
        first_s=told.back_off_first_s,
        longest_s=told.back_off_limit_s,
        budget_crashes=told.crash_budget,
        budget_window_s=told.crash_window_s,
    )
    keeping = partial(_keeping, catalogue, settings.memory.idle_ttl_s)
    return Workers(
        {model.name: partial(configured_options, catalogue, model.name) for model in catalogue.models},
        starter.start,
        partial(_stamp, catalogue),
        Terms(back_off, _memory_limits(settings), fits.size, keeping, onlooker),
        log,
        Chances(sample_s=settings.memory.sample_s),
    )


def _memory_limits(settings: Settings) -> MemoryLimits:
    told = settings.memory
    return MemoryLimits(
        machine_memory(told.budget).budget_bytes,
        Marks(told.soft_share, told.hard_share),
        told.min_residence_s,
        told.settle_s,
    )


def _keeping(catalogue: Catalogue, idle_ttl_s: float | None, name: str) -> Keeping:
    """Return how long a model stays where LoadModel chose nothing; nothing of one that is gone meanwhile."""
    try:
        model = catalogue.resolve(name)
    except ModelNotFound:
        return Keeping()
    return Keeping(model.pinned, idle_ttl_s if model.idle_ttl_s is None else model.idle_ttl_s)


def _stamp(catalogue: Catalogue, name: str) -> object:
    """Return what changes with a model's checkpoint; nothing of a model that is gone meanwhile."""
    try:
        return stamp_of(catalogue.resolve(name).checkpoint)
    except ModelNotFound:
        return ()


def make_turns(settings: TurnSettings, log: FilteringBoundLogger) -> TurnTable | None:
    """Make the place where workers take turns on their device; None where they take none."""
    if settings.gpu_turns == "off":
        return None
    return TurnTable(TurnLimits(burst_s=settings.burst_s, hold_s=settings.hold_s), log)


def make_admission(limits: LimitSettings, catalogue: Catalogue) -> Admission:
    """Make what counts requests and says no at once."""
    return Admission(admission_limits(limits), partial(_own_limits, catalogue))


def admission_limits(limits: LimitSettings) -> AdmissionLimits:
    """Return how many requests may run and wait."""
    return AdmissionLimits(
        limits.max_requests,
        limits.max_requests_per_model,
        limits.max_waiting,
        limits.max_wait_s,
        limits.max_held_bytes,
        limits.queue_share,
    )


def _own_limits(catalogue: Catalogue, name: str) -> OwnLimits:
    """Return what the settings of a model say instead; nothing of one that is gone meanwhile."""
    try:
        model = catalogue.resolve(name)
    except ModelNotFound:
        return OwnLimits()
    return OwnLimits(model.max_requests, model.max_waiting)


def take_state(settings: Settings, environment: Mapping[str, str]) -> StateFile | None:
    """Take the file for what callers choose; None where nothing is kept.

    Raises:
        StateInUse: another server has it.
        OSError: there is no place for it.
    """
    if settings.state_folder == "none":
        return None
    path = state_path(settings.state_folder or state_folder(environment), settings.listen)
    return StateFile(path) if path is not None else None


def make_retries(settings: RetrySettings) -> Retries:
    """Make what is done about workers that go away under a request."""
    return Retries(Quarantine(quarantine_limits(settings)), settings.lost_requests)


def quarantine_limits(settings: RetrySettings) -> QuarantineLimits:
    """Return when a request is refused that workers died with."""
    return QuarantineLimits(settings.quarantine_deaths, settings.quarantine_s)


def follow_settings(live: LiveSettings, admission: Admission, retries: Retries) -> None:
    """Have everybody hold to settings that are read again, as far as that goes without a start."""
    live.follow("models", "models_folder", "hub_models")  # the inventory's
    live.follow("worker", "supervision", "cpu_kernels")  # workers are told when they start
    live.follow("limits.drain_notice_s", "limits.drain_grace_s", "limits.short_grace_s")  # the drain's
    live.follow(
        *(f"limits.{name}" for name in ADMISSION_KEYS),
        apply=lambda settings: admission.change(admission_limits(settings.limits)),
    )

    def retry(settings: Settings) -> None:
        retries.is_on = settings.retries.lost_requests
        retries.quarantine.limits = quarantine_limits(settings.retries)

    live.follow("retries", apply=retry)


def library_options(settings: GrpcSettings) -> tuple[tuple[str, int], ...]:
    """Return the library's options: what clients may send, and one port for one server."""
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_send_message_length", settings.max_response_bytes),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        ("grpc.max_metadata_size", settings.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", 2 * settings.max_metadata_bytes),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(settings.min_ping_interval_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", round(settings.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_ping_strikes", 3),
    )
