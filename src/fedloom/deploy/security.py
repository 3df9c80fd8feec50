"""Certificates for the server, a key for every node, a token for its owner: who is spoken to, and who may speak."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedloom.errors import ConfigError, RunError
from fedloom.storage.files import guarded

LOOPBACK = ("localhost", "127.0.0.1")
OWNER_ONLY = 0o077
"""The umask of everything that belongs to a fleet: other users of the machine read, enter and change nothing."""
_DAYS = 825  # what clients of TLS accept at the most
_PEM = serialization.Encoding.PEM
_EARLIER = datetime.timedelta(hours=1)  # clocks differ


class Certificates(NamedTuple):
    """The files of a certificate authority of our own and of the server's certificate that it signed."""

    authority: Path
    """What everybody who is to trust the server needs, and the apps that it sends; it is no secret."""
    certificate: Path
    """The server's certificate."""
    key: Path
    """The server's secret."""
    authority_key: Path
    """With this secret more servers can be signed, and apps; it belongs on no node."""


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> Certificates:
    """An authority, and a certificate for a server that is called by these names or addresses, or on this machine."""
    made = Certificates(*(folder / name for name in ("ca.crt", "server.pem", "server.key", "ca.key")))
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedloom authority")])
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: x509.Name, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> bytes:
        root = not hosts
        usage = {"key_cert_sign": root, "crl_sign": root, "digital_signature": not root}
        other = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        never = dict.fromkeys((*other, "encipher_only", "decipher_only"), False)
        builder = (
            x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=root, path_length=0 if root else None), critical=True)
            .add_extension(x509.KeyUsage(**usage, **never), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return builder.sign(authority, hashes.SHA384()).public_bytes(_PEM)

    names = tuple(dict.fromkeys((*hosts, *LOOPBACK)))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
    _write(made.authority, signed(issuer, authority, ()))
    _write(made.certificate, signed(subject, server, names))
    _write(made.key, _private(server))
    _write(made.authority_key, _private(authority))
    return made


def make_token(path: Path) -> Path:
    """A new secret in a file of its own: who can read it may use what asks for it."""
    _write(path, secrets.token_urlsafe(32).encode())
    return path


def private_folder(path: Path) -> None:
    """Makes a folder that its owner alone can enter; RunError when somebody else has put something in its place."""
    with guarded(path):
        path.mkdir(0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if os.name == "posix" and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid()):
            raise RunError(
                f"{path} is another user's, or a link: what is secret does not go there; choose another place"
            )
        path.chmod(0o700)


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A key for a node: the file of the secret, which goes to the node alone, and the public one for the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    openssh = serialization.PrivateFormat.OpenSSH
    _write(private, key.private_bytes(_PEM, openssh, serialization.NoEncryption()))
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    _write(public, key.public_key().public_bytes(encoding, form))
    return private, public


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is no name or address of a host: {error}") from None


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """A new file that others can never read, not even for a moment; who needs a certificate gets a copy."""
    private_folder(path.parent)
    with guarded(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(content)
