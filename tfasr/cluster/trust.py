"""The secret that a cluster's workers share, and the certificates that follow from it.

`tfasr.cluster.stream` encrypts with these certificates whatever a chief and its workers
send each other. Synchronous training leaves sending to TensorFlow, which encrypts
nothing: `check_trusted` makes the user allow that.
"""

import datetime
import functools
import hashlib
import string
from collections.abc import Mapping
from typing import Any

from tfasr.cluster.description import Cluster, host_of
from tfasr.errors import UsageError

# Environment variables: the secret, and "1" if all machines that reach the ports are
# trusted.
SECRET = "TFASR_CLUSTER_SECRET"
TRUSTED = "TFASR_CLUSTER_TRUSTED"

# Any client can fetch a certificate from the port and try secrets against it, so the
# secret must be too long to be found.
_FEWEST_BITS = 128

# With fewer different characters, a secret of that length isn't random.
_FEWEST_DIFFERENT = 8

# All certificates carry this name, and clients expect it whatever the chief's address
# is.
CERTIFIED_NAME = "tfasr"

# A host's clock plays no part: only the secret makes a certificate valid.
_VALID_FROM = datetime.datetime(1970, 1, 1)
_VALID_UNTIL = datetime.datetime(9999, 12, 31)

# The number of private keys of the curve P-256, plus 1. Source: NIST SP 800-186,
# 3.2.1.3.
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def shared_secret(
    cluster: Cluster, environment: Mapping[str, str], *, needed: bool
) -> bytes:
    """Returns the secret that all workers of a cluster know; b"" without one.

    Args:
        cluster: the workers.
        environment: the process's environment variables.
        needed: whether workers on several hosts must have one.

    Raises:
        UsageError: if it is too short, or ``needed`` between several hosts and missing.
    """
    secret = environment.get(SECRET, "").strip()
    if not secret and (on_loopback(cluster) or not needed):
        return b""

    bits = _most_bits(secret)
    if bits < _FEWEST_BITS:
        raise UsageError(
            f"{SECRET} must hold a random secret of at least {_FEWEST_BITS} bits, the "
            f"same for workers on all hosts. Received: {len(secret)} characters, which "
            f"hold at most {bits} bits. Make one with: export {SECRET}=$(openssl rand "
            "-hex 32)"
        )

    return secret.encode(errors="surrogateescape")


def _most_bits(secret: str) -> int:
    """Returns the bits of a secret if its characters were drawn at random.

    They come from the 16 hex digits or else from the 64 characters of base64.
    """
    different = set(secret)
    bits_each = 6
    if len(different) < _FEWEST_DIFFERENT:
        bits_each = 1
    elif different <= set(string.hexdigits):
        bits_each = 4

    return bits_each * len(secret)


def check_trusted(cluster: Cluster, environment: Mapping[str, str]) -> None:
    """Checks that the user accepts synchronous training on several hosts.

    TensorFlow's servers ask for no password and encrypt nothing.

    Args:
        cluster: the workers.
        environment: the process's environment variables.

    Raises:
        UsageError: unless all workers are on one host or the variable `TRUSTED` is "1".
    """
    if environment.get(TRUSTED) == "1":
        return

    one_host = len(_hosts(cluster)) == 1
    if not one_host and not on_loopback(cluster):
        raise UsageError(
            "Synchronous training between hosts must be allowed, as it opens ports "
            f"without a password. Received: {cluster.size} workers without "
            f"{TRUSTED}=1. Set it for all workers if only machines that you trust reach "
            "these ports; otherwise train in rounds, encrypted: bind "
            f"TrainingConfig.exchange = 'local' and set {SECRET}."
        )


def on_loopback(cluster: Cluster) -> bool:
    """Whether all workers are on this machine and no other one can reach them."""
    return all(
        host == "localhost" or host.startswith("127.") for host in _hosts(cluster)
    )


def _hosts(cluster: Cluster) -> set[str]:
    return {host_of(address) for address in cluster.addresses}


@functools.cache
def identity(secret: bytes, cluster: Cluster) -> tuple[bytes, bytes, bytes]:
    """Makes a key and a certificate for this process's role, chief or worker.

    The certificate is signed by the cluster's authority, whose key follows from the
    secret and the workers' addresses: every process makes it for itself, and no process
    without the secret can.

    Returns:
        The key, the certificate, and the authority's own certificate, by which the
        other side's is checked; all in PEM.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key = ec.derive_private_key(_scalar(secret, cluster), ec.SECP256R1())
    authority_name = x509.Name.from_rfc4514_string("CN=tfasr cluster")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string(f"CN={CERTIFIED_NAME}")

    def signed(
        subject: x509.Name, public: Any, *extensions: x509.ExtensionType
    ) -> bytes:
        """Returns a certificate of the authority in PEM."""
        builder = x509.CertificateBuilder(
            issuer_name=authority_name,
            subject_name=subject,
            public_key=public,
            serial_number=x509.random_serial_number(),
            not_valid_before=_VALID_FROM,
            not_valid_after=_VALID_UNTIL,
        )
        # With the keys' identifiers, a wrong secret shows as an unknown authority and
        # not as a bad signature of a known one.
        for extension in (
            x509.SubjectKeyIdentifier.from_public_key(public),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                authority_key.public_key()
            ),
            *extensions,
        ):
            builder = builder.add_extension(extension, critical=False)

        certificate = builder.sign(authority_key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)

    usages = x509.ExtendedKeyUsageOID
    return (
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        signed(
            name,
            key.public_key(),
            x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]),
            x509.ExtendedKeyUsage(
                [usages.CLIENT_AUTH if cluster.rank else usages.SERVER_AUTH]
            ),
        ),
        signed(
            authority_name,
            authority_key.public_key(),
            x509.BasicConstraints(ca=True, path_length=0),
        ),
    )


def _scalar(secret: bytes, cluster: Cluster) -> int:
    """Derives a private key of the curve P-256 from the secret.

    From 384 bits, the remainder by the curve's order of 256 bits is almost uniform.
    Source: NIST SP 800-186, 3.2.1.3 (the order); FIPS 186-5, A.2.1 (extra random bits);
    RFC 7914 (scrypt).
    """
    derived = hashlib.scrypt(
        secret, salt=cluster.plan.encode(), n=2**14, r=8, p=1, dklen=48
    )
    return int.from_bytes(derived, "big") % (_P256_ORDER - 1) + 1
