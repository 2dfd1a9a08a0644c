"""The options of `serve` about who may call."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

_PANEL = "Who may call"


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """What the section `security` of the settings says too; None: what that says."""

    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The server's certificate, PEM, read again if changed.", rich_help_panel=_PANEL
        ),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its key, PEM, not encrypted.", rich_help_panel=_PANEL)
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Clients need a certificate of an authority in this PEM file.", rich_help_panel=_PANEL
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Calls need a token of this file: see pomona token.", rich_help_panel=_PANEL),
    ] = None
    allow_plaintext: Annotated[
        bool | None,
        typer.Option(
            "--allow-plaintext",
            help="Let other machines reach the server without TLS, or without tokens.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def as_settings(self) -> dict[str, Any]:
        """Return what was given, by the keys of the section."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in given if value is not None}
