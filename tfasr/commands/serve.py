"""``tfasr serve``: opens a web page to drop recordings on or to speak into."""

import argparse
import importlib
import logging
from pathlib import Path

from tfasr import errors
from tfasr.commands.shared import add_recogniser_arguments, recogniser_of

EXAMPLE = "serve --run_dir runs/a"
log = logging.getLogger("tfasr")

# Flag, default and meaning of each limit. `tfasr.serving.service.Limits` has the same
# names and defaults, but importing it needs aiohttp.
LIMITS = (
    ("max_streams", 16, "simultaneous streams, and simultaneous files"),
    ("max_stream_s", 3600.0, "seconds of a stream, or of a file's upload"),
    ("max_upload_mb", 500.0, "millions of bytes of a file"),
    ("max_upload_s", 14400.0, "seconds of audio in a file"),
    ("idle_s", 30.0, "seconds after which an inactive client is disconnected"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: the model and its decoder, the address, and the limits."""
    add = parser.add_argument
    add(
        "--run_dir",
        required=True,
        help="a folder that tfasr train or tfasr export wrote",
    )
    add(
        "--host",
        default="127.0.0.1",
        help="default: %(default)s, only for this machine",
    )
    add("--port", type=int, default=8765, help="default: %(default)s; 0: any free one")

    add(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            "another name under which browsers may open the page, such as a proxy's "
            "(NAME:PORT if its port differs); repeatable"
        ),
    )

    add_recogniser_arguments(add)

    # Of what clients may take from the machine.
    limits = parser.add_argument_group("limits")
    for name, default, meaning in LIMITS:
        text = f"{meaning}; default: %(default)g"
        limits.add_argument(f"--{name}", type=type(default), default=default, help=text)


def run(arguments: argparse.Namespace) -> None:
    """Loads the recogniser and serves it until Ctrl-C."""
    with errors.optional_package(
        "aiohttp", "tfasr serve", "'tfasr[serve]', or pip install aiohttp"
    ):
        importlib.import_module("aiohttp")

    from tfasr.serving.server import serve
    from tfasr.serving.service import Limits

    # The flags have the names of its fields.
    limits = Limits(**{name: getattr(arguments, name) for name, _, _ in LIMITS})
    recogniser = recogniser_of(arguments)

    if arguments.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning(
            "--host %s: everyone who can reach this machine can use the page, without "
            "a password or encryption; a microphone works only through https or on "
            "localhost.",
            arguments.host,
        )

    serve(
        recogniser,
        name=Path(arguments.run_dir).resolve().name,
        host=arguments.host,
        port=arguments.port,
        limits=limits,
        allowed_hosts=arguments.allow_host,
        started=lambda url: print(
            f"{arguments.run_dir} at {url} (Ctrl-C ends it)", flush=True
        ),
    )
