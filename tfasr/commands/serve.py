"""``tfasr serve``: a page to drop recordings on or to speak into."""

import argparse
import logging
from pathlib import Path

from tfasr.commands.transcribe import add_recogniser_arguments, recogniser_of
from tfasr.errors import UsageError

LOCAL = ("127.0.0.1", "::1", "localhost")

log = logging.getLogger("tfasr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run_dir", required=True, help="a folder that tfasr train or tfasr export wrote"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="where to listen; default: %(default)s, which this machine alone can reach",
    )
    parser.add_argument(
        "--port", type=int, default=8765, help="default: %(default)s; 0: any free one"
    )
    parser.add_argument(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers may ask for the page, beside localhost and addresses, such "
        "as a proxy's (NAME:PORT if it has a port of its own); repeatable",
    )
    add_recogniser_arguments(parser)
    limits = parser.add_argument_group("limits")
    for name, kind, default, meaning in (
        ("max_streams", int, 16, "streams at once, and as many files besides"),
        ("max_stream_s", float, 3600.0, "seconds of a stream, or until a file has come"),
        ("max_upload_mb", float, 500.0, "millions of bytes of a file"),
        ("max_upload_s", float, 14400.0, "seconds of audio in a file"),
        ("idle_s", float, 30.0, "seconds until a client is let go that sends or reads nothing"),
    ):
        limits.add_argument(
            f"--{name}", type=kind, default=default, help=f"{meaning}; default: %(default)g"
        )


def run(arguments: argparse.Namespace) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        UsageError: if the flags or the run do not fit, or aiohttp is not installed.
    """
    from tfasr.serving.limits import Limits

    limits = Limits(
        max_streams=arguments.max_streams,
        max_stream_s=arguments.max_stream_s,
        max_upload_mb=arguments.max_upload_mb,
        max_upload_s=arguments.max_upload_s,
        idle_s=arguments.idle_s,
    )
    try:
        from tfasr.serving.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "aiohttp":
            raise
        raise UsageError(
            "tfasr serve needs aiohttp, which is not installed: pip install 'tfasr[serve]', or pip "
            "install aiohttp."
        ) from error
    recogniser = recogniser_of(arguments)
    if arguments.host not in LOCAL:
        log.warning(
            "--host %s: whoever reaches this machine may use the page, without a password or "
            "encryption; a microphone works through https or localhost alone.",
            arguments.host,
        )

    def started(url: str) -> None:
        print(f"{arguments.run_dir} at {url} (Ctrl-C ends it)", flush=True)

    serve(
        recogniser,
        name=Path(arguments.run_dir).resolve().name,
        host=arguments.host,
        port=arguments.port,
        limits=limits,
        allowed_hosts=arguments.allow_host,
        started=started,
    )
