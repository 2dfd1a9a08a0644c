"""Certificates of an authority of our own, for servers with TLS under test."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority's certificate, and the certificate and key of a server at `localhost`, or a client."""

    authority: Path
    certificate: Path
    key: Path

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])


def write_certificates(folder: Path, name: str = "localhost") -> Certificates:
    """Make an authority and what it signed for `name` and 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    signed = authority.issue_cert(name, "127.0.0.1")
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(str(made.authority))
    signed.private_key_pem.write_to_path(str(made.key))
    made.certificate.write_bytes(b"".join(each.bytes() for each in signed.cert_chain_pems))
    return made
