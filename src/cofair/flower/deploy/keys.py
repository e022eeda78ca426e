"""Certificates and keys of a federation, in files that only their owner can read.

The organiser has an authority of its own. It signs the server's certificate and one for each participant that it
admits, which identifies the participant before anything it sends is read. A participant's key is made on its own
machine and stays there; the participant sends the organiser a request that holds the public half.
"""

import base64
import hashlib
import ipaddress
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cofair.errors import UsageError

DAYS = 365  # how long certificates are valid
_CURVE = ec.SECP384R1()


@contextmanager
def private() -> Iterator[None]:
    """Within this context, make files and folders that only their owner can read."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def restrict_to_owner(folder: Path) -> None:
    """Make a folder accessible to its owner only, wherever it came from; refuse one that belongs to somebody else."""
    if folder.stat().st_uid != os.getuid():
        raise UsageError(
            f"{folder} belongs to another user, who could change what runs here: make a copy and use that."
        )
    folder.chmod(0o700)


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read; an existing one is never overwritten."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists already, and keys are never overwritten: name another folder.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def random_secret(path: Path) -> None:
    """Write 64 random hexadecimal digits to a new file."""
    write_secret(path, secrets.token_hex(32).encode())


def certificates(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """Write an authority (ca.key, ca.crt) and a certificate for the server at these hosts (server.key, server.crt)."""
    authority, key = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    issuer = _name("cofair certificate authority")
    own = (
        _builder(issuer, issuer, authority.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    server = (
        _leaf(_name(hosts[0]), issuer, key.public_key(), authority, days, ExtendedKeyUsageOID.SERVER_AUTH)
        .add_extension(names, critical=False)
        .sign(authority, hashes.SHA384())
    )
    for name, secret in (("ca", authority), ("server", key)):
        write_secret(folder / f"{name}.key", _pem(secret))
    for name, certificate in (("ca", own), ("server", server)):
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def node_key(folder: Path) -> None:
    """Write a participant's key (node.key), and the certificate request that it sends to the organiser (node.csr)."""
    key = ec.generate_private_key(_CURVE)
    request = x509.CertificateSigningRequestBuilder().subject_name(_name("participant")).sign(key, hashes.SHA384())
    write_secret(folder / "node.key", _pem(key))
    (folder / "node.csr").write_bytes(request.public_bytes(serialization.Encoding.PEM))


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """Return the request in a file; refuse one that is not signed by its own key, or whose key is of another kind."""
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
        signed = request.is_signature_valid
    except (OSError, ValueError):
        raise UsageError(f"{path} holds no certificate request: 'cofair deploy key' writes one, node.csr.") from None
    key = request.public_key()
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
        raise UsageError(f"{path} is not a certificate request that 'cofair deploy key' has written.")
    return request


def issue_certificate(
    folder: Path, request: x509.CertificateSigningRequest, name: str, days: float = DAYS
) -> x509.Certificate:
    """Return a participant's certificate under a name, signed by the authority in a folder."""
    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = request.public_key()
    assert isinstance(authority, ec.EllipticCurvePrivateKey)  # written by `certificates`
    assert isinstance(key, ec.EllipticCurvePublicKey)  # checked by `read_request`
    builder = _leaf(_name(name), issuer.subject, key, authority, days, ExtendedKeyUsageOID.CLIENT_AUTH)
    return builder.sign(authority, hashes.SHA384())


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise UsageError(f"{path} holds no certificate: the organiser sends it after 'cofair deploy admit'.") from None


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate, which is not secret."""
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def flower_key(key: x509.CertificateSigningRequest | x509.Certificate) -> bytes:
    """Return a participant's public key as Flower registers it."""
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def flower_header(certificate: x509.Certificate) -> str:
    """Return the public key as a node sends it with every call of Flower's Fleet API."""
    return base64.b64encode(
        certificate.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    ).decode()


def flower_private_key(path: Path) -> bytes:
    """Return a participant's private key in the form that Flower reads."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def fingerprint(holder: x509.CertificateSigningRequest | x509.Certificate) -> str:
    """Return the hash of a public key in groups that two people can read to each other."""
    key = holder.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digits = hashlib.sha256(key).hexdigest()[:32]
    return " ".join(digits[k : k + 4] for k in range(0, 32, 4))


def certificate_fault(folder: Path) -> str | None:
    """Return what is wrong with a participant's certificate (node.crt, beside node.key and ca.crt), or None."""
    certificate, authority = read_certificate(folder / "node.crt"), read_certificate(folder / "ca.crt")
    key = serialization.load_pem_private_key((folder / "node.key").read_bytes(), None)
    if certificate.public_key() != key.public_key():
        return "it belongs to another key"
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return "it was not issued by the organiser whose ca.crt is here"
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return f"it has expired ({certificate.not_valid_after_utc:%Y-%m-%d})"
    return None


def _leaf(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, authority: ec.EllipticCurvePrivateKey,
    days: float, purpose: x509.ObjectIdentifier,
) -> x509.CertificateBuilder:  # fmt: skip
    return (
        _builder(subject, issuer, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))  # clocks of other machines may be behind
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
