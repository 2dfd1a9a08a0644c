"""Makes the parts of a gateway from its settings; `gateway.server` puts them together."""

from __future__ import annotations

import asyncio
from functools import partial

from structlog.typing import FilteringBoundLogger

from gateway.address import ListenError
from gateway.admission import Admission, AdmissionLimits
from gateway.back_off import BackOffLimits
from gateway.catalogue import Catalogue, stamp_of
from gateway.describe import Describer
from gateway.errors import ModelNotFound
from gateway.inventory import Found, Sources, configured_options
from gateway.one_shot import MAX_AT_ONCE
from gateway.process import Command
from gateway.sections.grpc import GrpcSettings
from gateway.sections.limits import LimitSettings
from gateway.settings import Settings, SettingsError
from gateway.sockets import PARENT, SocketFolder
from gateway.worker_starter import WorkerStarter, told_limits
from gateway.workers import Workers


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


def pull_refusal(settings: Settings) -> str:
    """Return why callers may not pull; empty where they may. Nobody but this machine reaches any address so far."""
    if settings.allow_pull is False:
        return "this server's setting allow_pull is off"
    return "" if settings.hub_models else "this server's setting hub_models is off, so nothing pulled would be served"


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


def make_workers(
    settings: Settings, catalogue: Catalogue, starter: WorkerStarter, log: FilteringBoundLogger
) -> Workers:
    """Make the keeper of all workers; none runs yet."""
    told = settings.supervision
    limits = BackOffLimits(
        first_s=told.back_off_first_s,
        longest_s=told.back_off_limit_s,
        budget_crashes=told.crash_budget,
        budget_window_s=told.crash_window_s,
    )
    return Workers(
        {model.name: partial(configured_options, catalogue, model.name) for model in catalogue.models},
        starter.start,
        partial(_stamp, catalogue),
        limits,
        log,
    )


def _stamp(catalogue: Catalogue, name: str) -> object:
    """Return what changes with a model's checkpoint; nothing of a model that is gone meanwhile."""
    try:
        return stamp_of(catalogue.resolve(name).checkpoint)
    except ModelNotFound:
        return ()


def make_admission(limits: LimitSettings) -> Admission:
    """Make what counts requests and says no at once."""
    return Admission(
        AdmissionLimits(
            limits.max_requests,
            limits.max_requests_per_model,
            limits.max_waiting,
            limits.max_wait_s,
            limits.max_held_bytes,
        )
    )


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
