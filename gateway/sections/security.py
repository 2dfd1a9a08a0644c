"""What the settings say of who may call, and how they are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gateway.sections.section import Section, absolute

File = Annotated[Path, AfterValidator(absolute)]


class SecuritySettings(Section):
    """Certificates and tokens."""

    tls_cert: Annotated[
        File | None,
        Field(
            description="The server's certificate, PEM, those between it and its authority behind it; read again when"
            " it changes. Default: no TLS."
        ),
    ] = None
    tls_key: Annotated[File | None, Field(description="Its key, PEM, not encrypted. Default: none.")] = None
    client_ca: Annotated[
        File | None,
        Field(
            description="PEM with the authorities of clients' certificates; with it every client needs one."
            " Default: clients need none."
        ),
    ] = None
    tokens: Annotated[
        File | None,
        Field(
            description="The file of `pomona token`; with it every call needs a token, or a certificate that an entry"
            " names. Default: no tokens, and every caller may do everything."
        ),
    ] = None
    allow_plaintext: Annotated[
        bool,
        Field(
            description="Whether other machines may reach the server without TLS, or without tokens. Default: false."
        ),
    ] = False

    @model_validator(mode="after")
    def _check(self) -> SecuritySettings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.client_ca is not None and self.tls_cert is None:
            raise ValueError("client_ca needs tls_cert and tls_key")
        return self
