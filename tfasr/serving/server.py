"""The server: where it listens, what it answers, and how it ends."""

import asyncio
import contextlib
import errno
import functools
import logging
import signal
import socket
from collections.abc import Callable, Sequence

from aiohttp import web

from tfasr.errors import RunError, UsageError
from tfasr.recognising.recogniser import Recogniser
from tfasr.serving.conversation import converse
from tfasr.serving.guard import SAFE_HEADERS, guard
from tfasr.serving.limits import Limits
from tfasr.serving.page import page
from tfasr.serving.service import Service
from tfasr.serving.uploads import transcribe

# What the system keeps of answers to a client that does not read them; it doubles the number.
_UNREAD_BYTES = 1 << 16
_BACKLOG = 128
_ENDING_S = 10.0

log = logging.getLogger("tfasr")


def make_application(
    name: str, service: Service, allowed_hosts: Sequence[str] = ()
) -> web.Application:
    """Returns what answers requests: the page, files, streams; see `serve` for the arguments."""

    async def show(_: web.Request) -> web.Response:
        return page(name, service)

    async def no_icon(_: web.Request) -> web.Response:
        return web.Response(status=204)

    async def make_safe(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SAFE_HEADERS)

    application = web.Application(middlewares=[guard(allowed_hosts)])
    application.on_response_prepare.append(make_safe)
    application.router.add_get("/", show)
    application.router.add_get("/favicon.ico", no_icon)
    application.router.add_post("/transcribe", functools.partial(transcribe, service=service))
    application.router.add_get("/stream", functools.partial(converse, service=service))
    return application


def serve(
    recogniser: Recogniser,
    *,
    name: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    limits: Limits | None = None,
    allowed_hosts: Sequence[str] = (),
    started: Callable[[str], None] = print,
) -> None:
    """Serves a recogniser until SIGINT or SIGTERM: streams are then told what was heard.

    Args:
        recogniser: does the work.
        name: of it, for the page.
        host: an address, or a name of one, to listen at.
        port: to listen at; 0: any free one.
        limits: of what clients may ask.
        allowed_hosts: names by which the server is known beside localhost and its addresses.
        started: is called with the page's address once it can be opened.

    Raises:
        UsageError: if it cannot listen there.
    """
    listening = _listen(host, port)
    with contextlib.closing(listening):
        service = Service(recogniser, limits or Limits())
        service.warm_up()
        application = make_application(name, service, [*allowed_hosts, f"{host}:{port}"])
        asyncio.run(_run(application, service, listening, started))


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens, before the time is spent that a model takes to be ready."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be 0 (any free one) to 65535. Received: {port}.")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host must be an address of this machine, such as 127.0.0.1 (it alone) or 0.0.0.0 "
            f"(whoever reaches it). Received: {host!r}: {error}."
        ) from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise _not_listening(host, port, error) from error
    return listening


def _not_listening(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"--port must be free. Received: {port}, at which something listens already. Choose "
            "another, or 0 for any free one."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"--host must be an address of this machine. Received: {host!r}.")
    if error.errno == errno.EACCES:
        return UsageError(f"--port must be one this user may use, above 1023. Received: {port}.")
    return RunError(f"The server cannot listen at {host}, port {port}: {error}.")


async def _run(
    application: web.Application,
    service: Service,
    listening: socket.socket,
    started: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    ended_by = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        service.ending.set()
        for number in ended_by:  # the next one does not wait for anybody
            loop.remove_signal_handler(number)

    for number in ended_by:
        loop.add_signal_handler(number, end)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_ENDING_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        started(_url(listening))
        await service.ending.wait()
        log.info("The server ends: open streams are finished.")
    finally:
        await runner.cleanup()
        service.close()


def _url(listening: socket.socket) -> str:
    address, port = listening.getsockname()[:2]
    if address in ("0.0.0.0", "::"):
        address = "localhost"  # any would do; this one lets a browser use the microphone
    return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"
