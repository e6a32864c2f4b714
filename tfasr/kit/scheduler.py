"""Connects to a Dask scheduler, by TLS or without, or says why it can't.

``tfasr study``, ``tfasr prepare`` and their Python functions use it. Dask raises dozens
of errors for a wrong address or certificate; `_cause` turns each into what to do.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.errors import UsageError, optional_package

if TYPE_CHECKING:
    from distributed import Client, Security

# How long a scheduler may take to answer, in seconds.
_CONNECT_WITHIN_S = 10

# How encrypted addresses begin.
_ENCRYPTED = ("tls://", "wss://")

# What to do if no scheduler answers.
_REMEDY = "Start one with dask scheduler, and workers with dask worker ADDRESS."

# The warning of a scheduler without encryption.
_OPEN = (
    "%s is not encrypted: whoever reaches it can run any code on its workers, as their "
    "user. Use a tls:// address outside a private network; see docs/studies.md."
)
log = logging.getLogger("tfasr")

# asyncio, ssl and Dask are imported within functions: most commands have flags of a
# scheduler and use none, and their imports would take a tenth of such a command's time.


@dataclass(frozen=True)
class Tls:
    """Files in PEM format that prove who is who, named as Dask's own commands name them.

    A file that is None is looked up in Dask's configuration (``distributed.comm.tls``).

    Attributes:
        ca_file: the authority that signed the certificates of all three sides.
        cert: this process's certificate.
        key: the private key of that certificate.
    """

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None

    def security(self, address: str) -> "Security":
        """Returns Dask's settings for connecting to an address.

        Args:
            address: the scheduler's, such as "tls://host:8786".

        Raises:
            UsageError: if a file is missing, or the address takes no files.
        """
        from distributed import Security

        encrypted = address.startswith(_ENCRYPTED)
        by_name = {
            "tls_ca_file": self.ca_file,
            "tls_client_cert": self.cert,
            "tls_client_key": self.key,
        }
        # Dask looks up those that it isn't given.
        tls_files = {name: file for name, file in by_name.items() if file is not None}

        if tls_files and not encrypted:
            raise UsageError(
                "--tls_ca_file, --tls_cert and --tls_key need an encrypted address. "
                f"Received: {address}. Start scheduler and workers with the same "
                "files, and use tls://."
            )

        if not encrypted:
            return Security()

        for file in tls_files.values():
            if not Path(file).is_file():
                raise UsageError(
                    "--tls_ca_file, --tls_cert and --tls_key must be files. "
                    f"Received: {file}, which does not exist."
                )

        return Security(require_encryption=True, **tls_files)


@contextlib.contextmanager
def scheduler_client(address: str, tls: Tls) -> Iterator["Client"]:
    """Connects to a Dask scheduler during the block, in which Dask's own log is silent.

    An address without encryption is warned about.

    Args:
        address: of the scheduler, such as "tls://host:8786".
        tls: the certificates; all None for an address without encryption.

    Raises:
        UsageError: if Dask isn't installed, no scheduler answers, or the certificates
            don't match.
    """
    with optional_package("Dask distributed", "--scheduler", "'tfasr[cluster]'"):
        import distributed  # noqa: F401

    security = tls.security(address)
    logger = logging.getLogger("distributed")
    level = logger.level
    # The caller's sentences are enough.
    logger.setLevel(logging.CRITICAL)
    try:
        with _connected(address, security) as client:
            if not address.startswith(_ENCRYPTED):
                log.warning(_OPEN, address)

            yield client
    finally:
        logger.setLevel(level)


def _connected(address: str, security: "Security") -> "Client":
    """Returns a client, or raises UsageError within `_CONNECT_WITHIN_S`."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from distributed import Client

    try:
        # In a thread, since a notebook already runs an event loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _shake_hands(address, security)).result()

        return Client(address, timeout=_CONNECT_WITHIN_S, security=security)
    # If another program answers, anything can be raised.
    except Exception as error:
        raise UsageError(
            "--scheduler must be the address of a running Dask scheduler, such as "
            f"tls://host:8786. Received: {address}, {_cause(error)}"
        ) from error


async def _shake_hands(address: str, security: "Security") -> None:
    """Connects and hangs up again, with a time limit.

    Dask's client would wait forever for an answer.
    """
    import asyncio

    from distributed.comm import connect

    options = security.get_connection_args("client")
    connecting = connect(address, _CONNECT_WITHIN_S, **options)
    comm = await asyncio.wait_for(connecting, _CONNECT_WITHIN_S)
    comm.abort()


def _cause(error: Exception) -> str:
    """Returns the cause of an error and its remedy, as the end of a sentence."""
    import ssl

    # Errors may be their own cause.
    chain: list[BaseException] = []
    cause: BaseException | None = error

    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__

    text = " ".join(str(each) for each in chain)
    of_tls = [each for each in chain if isinstance(each, ssl.SSLError)]
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "whose certificate is not signed by --tls_ca_file. Give the file of the "
            "authority that signed the scheduler's certificate."
        )

    # The scheduler ends the connection at once, or says UNKNOWN_CA before.
    names = {type(each).__name__ for each in chain}
    if "UNKNOWN_CA" in text or names & {"SSLEOFError", "FatalCommClosedError"}:
        return (
            "which refused this certificate. Give a --tls_cert with its --tls_key, "
            "signed by the authority that the scheduler trusts."
        )

    if of_tls:
        return f"but the --tls_ files can't be used: {of_tls[-1]}. Check which file is which."

    if "ssl_context" in text:
        return (
            "an encrypted address, for which certificates are missing. Give "
            "--tls_ca_file, --tls_cert and --tls_key, or name them in Dask's "
            "configuration."
        )

    return f"where no scheduler answers ({type(error).__name__}). {_REMEDY}"
