"""A Dask scheduler and workers in processes of their own, encrypted, for tests of studies."""

import contextlib
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tfasr.kit.scheduler import Tls, scheduler_client

PATIENCE_S = 120


def certificates(folder: Path, name: str) -> Tls:
    """Writes an authority, and a certificate that it signed, into a folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    now = datetime.datetime.now(datetime.timezone.utc)
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    subject = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name}'s host")]
    )
    for file, owner, key in (("ca", authority, keys[0]), ("cert", subject, keys[1])):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(owner)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(
                x509.BasicConstraints(ca=file == "ca", path_length=None), critical=True
            )
            .sign(keys[0], hashes.SHA256())
        )
        path = folder / f"{name}-{file}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    key_file = folder / f"{name}-key.pem"
    key_file.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Tls(
        str(folder / f"{name}-ca.pem"), str(folder / f"{name}-cert.pem"), str(key_file)
    )


@dataclass
class Hosts:
    """Addresses of this machine that pass for hosts: 127.0.0.2, 127.0.0.3 and so on."""

    folder: Path
    tls: Tls
    address: str = ""
    scheduler: subprocess.Popen | None = None
    workers: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """Returns the flags of ``tfasr``."""
        files = [f"--tls_ca_file={self.tls.ca_file}", f"--tls_cert={self.tls.cert}"]
        return ["--scheduler", self.address, *files, f"--tls_key={self.tls.key}"]

    def start_scheduler(self, port: int = 0) -> None:
        told = self.folder / "scheduler.json"
        told.unlink(missing_ok=True)
        words = ["--protocol", "tls", "--host", "127.0.0.1", "--port", str(port)]
        self.scheduler = self._start("scheduler", *words, "--scheduler-file", str(told))
        began = time.monotonic()
        while not told.exists() or '"address"' not in told.read_text():
            assert time.monotonic() - began < PATIENCE_S
            time.sleep(0.1)

        (line,) = [
            line for line in told.read_text().splitlines() if '"address"' in line
        ]
        self.address = line.split('"')[3]

    def start_worker(self, name: str, *more: str) -> None:
        words = [self.address, "--host", f"tls://{name}", "--nthreads", "1"]
        self.workers[name] = self._start("worker", *words, *more)

    def _start(self, kind: str, *words: str) -> subprocess.Popen:
        tls = ["--tls-ca-file", self.tls.ca_file, "--tls-cert", self.tls.cert]
        command = [
            sys.executable,
            "-m",
            "dask",
            kind,
            *words,
            *tls,
            "--tls-key",
            self.tls.key,
        ]
        with (self.folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--no-dashboard"],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait_for(self, *names: str) -> None:
        with scheduler_client(self.address, self.tls) as client:
            began = time.monotonic()
            while not all(
                any(f"//{n}:" in a for a in client.nthreads()) for n in names
            ):
                assert time.monotonic() - began < PATIENCE_S
                time.sleep(0.1)

    def kill(self, name: str) -> None:
        kill_group(self.workers.pop(name))

    def close(self) -> None:
        for name in list(self.workers):
            self.kill(name)
        if self.scheduler is not None:
            kill_group(self.scheduler)


def kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def dask_hosts(folder: Path, *names: str) -> Iterator[Hosts]:
    hosts = Hosts(folder, certificates(folder, "mine"))
    try:
        hosts.start_scheduler()
        for name in names:
            hosts.start_worker(name)
        hosts.wait_for(*names)
        yield hosts
    finally:
        hosts.close()
