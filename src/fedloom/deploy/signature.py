"""The signature of an app: server and nodes run what the project's own authority has signed, and nothing else."""

from __future__ import annotations

import hashlib
import json
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedloom.errors import RunError
from fedloom.storage.files import guarded, replacing

SIGNATURE = "signature.json"
"""The file beside the app, in its bundle too, that has the signature of all others."""
_MANIFEST = ".info/CONTENT"  # Flower's own list of what is in a bundle; it is checked, and never installed
_LARGEST = 2**26  # bytes of all files; Flower takes bundles of 10 MB


def sign_app(folder: Path, key: Path) -> None:
    """Signs what Flower bundles of a folder with the authority's secret; after any change it has to be done again."""
    from flwr.cli.build import build_fab_from_disk

    with guarded(key):
        secret = load_pem_private_key(key.read_bytes(), None)
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise RunError(f"{key} is no secret of a project's authority: give the ca.key that `fedloom deploy init` made")
    with ZipFile(BytesIO(build_fab_from_disk(folder))) as bundle:
        signature = secret.sign(_signed(bundle), ec.ECDSA(SHA384()))
    with replacing(folder / SIGNATURE) as file:
        file.write(json.dumps({"signature": signature.hex()}).encode() + b"\n")
    (folder / SIGNATURE).chmod(0o600)


def check_app(content: bytes, authority: Path) -> None:
    """RunError unless every file of a bundle is as the authority of this certificate has signed it."""
    key = x509.load_pem_x509_certificate(authority.read_bytes()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        with ZipFile(BytesIO(content)) as bundle:
            signed = _signed(bundle)
            signature = bytes.fromhex(json.loads(bundle.read(SIGNATURE))["signature"])
        key.verify(signature, signed, ec.ECDSA(SHA384()))
    except Exception as error:  # whatever is wrong with a stranger's bundle, it is not run
        raise RunError(
            f"this app is not as the authority of {authority} has signed it ({type(error).__name__}), so nothing of it "
            "was run: sign it with certificates/ca.key, as run.sh does where that file is"
        ) from error


def _signed(bundle: ZipFile) -> bytes:
    """What is signed: the name of each file that is installed, and the hash of what is in it."""
    names = [entry.filename for entry in bundle.infolist()]
    if len(set(names)) < len(names) or sum(entry.file_size for entry in bundle.infolist()) > _LARGEST:
        raise ValueError("a file that is there twice, or too much of them")
    found = {
        name: hashlib.sha256(bundle.read(name)).hexdigest()
        for name in sorted(names)
        if name not in (SIGNATURE, _MANIFEST)
    }
    return b"fedloom app\n" + json.dumps(found).encode()
