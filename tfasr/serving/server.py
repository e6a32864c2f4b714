"""The HTTP server of ``tfasr serve``: how it listens, answers and ends.

It routes requests to handlers in `service` (streams) and `uploads` (files), and rejects
those that another site's page sends. Everything that a client could do to fill memory,
disk or connections has a limit.
"""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import json
import logging
import os
import re
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from importlib import resources
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpProcessingError

from tfasr.corpora.audio_header import AUDIO_SUFFIXES
from tfasr.errors import RunError, UsageError, printable
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.spec import STREAMING_PRESET
from tfasr.serving.service import Limits, Service, client_may_leave, converse
from tfasr.serving.uploads import (
    OPENAI_PREFIX,
    models,
    openai_error,
    transcribe,
    transcriptions,
)

# Bytes that the system buffers for a client that doesn't read. Linux doubles the
# number.
_UNREAD_BYTES = 1 << 16
# Connections that wait to be accepted.
_BACKLOG = 1024
# How long requests may take that are being answered when the server ends.
_ENDING_S = 10.0

# Connections that may be open in addition to streams and files. If there are more, the
# oldest one that is idle, for at least `_REQUEST_S`, is closed to make room.
_MOST_WAITING = 256
_REQUEST_S = 0.25
# Between two looks for such a connection.
_LOOK_S = 0.01

# Open files of each upload, and others that are opened later.
_FILES_EACH = 6
_FILES_MORE = 16
# Until the next attempt to accept a connection, if no more files can be opened.
_NO_FILES_S = 0.2

# A value of ``--allow_host``.
_ALLOWED = re.compile(r"[\w.-]+(:\d{1,5})?")
# nginx's status for a client that left.
_CLIENT_LEFT = 499

# Limits of the log about requests: lines in so many seconds, and characters of a line.
_MOST_LINES = 20
_LINES_S = 60.0
_MOST_CHARACTERS = 200

log = logging.getLogger("tfasr")
requests_log = logging.getLogger("tfasr.requests")
# Headers of every answer: browsers must neither guess types nor show the page in
# another one.
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def check_sender(
    host: str | None,
    origin: str | None,
    allowed: Collection[str],
) -> str | None:
    """Returns why a request is rejected, or None if it is allowed.

    Another site can let its host name resolve to this server (DNS rebinding); its page
    could then read everything, like this server's own page. A site can't do that with
    an IP address, so addresses are allowed, and names only if they are known. A
    browser's ``Origin`` names the page that sends the request, which must be this
    server's; other programs send none.

    Args:
        host: of the request's header.
        origin: of the request's header; None if it is missing.
        allowed: names in addition to localhost, with a port if a proxy listens at
            another one.
    """
    # Without the port, and without the brackets of an IPv6 address.
    name = _part(f"//{host}", "hostname") if host else None
    names = ("localhost", *(entry.partition(":")[0] for entry in allowed))
    if name is None or not (_is_address(name) or name in names):
        return (
            f"The Host of a request must be an IP address, localhost, or a name that was given "
            f"with --allow_host. Received: Host {host!r}."
        )

    if origin is None:
        return None

    if _part(origin, "netloc") in (host, *allowed):
        return None

    return f"Only the server's own page may use it. Received: Origin {origin!r} at Host {host!r}."


def _part(url: str, part: str) -> str | None:
    """Returns a part of a URL; None if it isn't a URL.

    Args:
        url: the URL.
        part: the attribute of `urllib.parse.urlsplit`'s result, such as "netloc".
    """
    try:
        return getattr(urlsplit(url), part)
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False

    return True


def page(name: str, service: Service) -> web.Response:
    """Returns the page for browsers, with what it must know of the server.

    Its policy allows only the page's own script and style, by a number used once.

    Args:
        name: of the recogniser, as users see it.
        service: has the recogniser and the limits.
    """
    limits = service.limits
    facts = {
        "name": name,
        "model": service.recogniser.spec.model,
        "whyNoStreams": service.why_no_streams,
        "streamingPreset": STREAMING_PRESET,
        "suffixes": sorted(AUDIO_SUFFIXES),
        "mostUploadMb": limits.max_upload_mb,
        "mostUploadS": limits.max_upload_s,
    }
    # Within a script, only "<" could end it.
    text = json.dumps(facts).replace("<", "\\u003c")
    nonce = secrets.token_urlsafe(16)
    template = (
        resources.files("tfasr.serving")
        .joinpath("page.html")
        .read_text(encoding="utf-8")
    )
    body = template.replace("NONCE", nonce).replace('"FACTS"', text)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}' blob:; worker-src blob:; "
        f"style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )

    return web.Response(
        text=body, content_type="text/html", headers={"Content-Security-Policy": policy}
    )


def make_application(
    name: str,
    service: Service,
    allowed_hosts: Sequence[str] = (),
) -> web.Application:
    """Returns the application with all routes.

    Args:
        name: of the recogniser, as clients see it.
        service: what handles requests.
        allowed_hosts: see `check_sender`.
    """
    allowed = [name.lower() for name in allowed_hosts]

    @web.middleware
    async def guard(request: web.Request, handler: Callable) -> web.StreamResponse:
        """Rejects other sites' requests, and answers all others within a time limit."""
        headers = request.headers
        refused = check_sender(headers.get("Host"), headers.get("Origin"), allowed)
        if refused is not None:
            if request.path.startswith(OPENAI_PREFIX):
                return openai_error(refused, 403)

            return web.json_response({"error": refused}, status=403)

        # Kept here, because the request drops it when the client is gone.
        transport = request.transport
        service.busy.add(transport)

        try:
            response = await handler(request)
            # Sent here, and not by aiohttp, within a time limit.
            if isinstance(response, web.Response):
                with client_may_leave(request):
                    await asyncio.wait_for(
                        _sent(request, response), service.limits.idle_s
                    )

            return response
        except web.HTTPException as error:
            if request.path.startswith(OPENAI_PREFIX):
                return openai_error(
                    f"{request.method} {request.path}: {error}", error.status
                )

            raise
        except ConnectionError:
            # The client left before a stream began.
            return web.Response(status=_CLIENT_LEFT)
        finally:
            service.busy.discard(transport)

    async def show(_: web.Request) -> web.Response:
        """Answers browsers with the page."""
        return page(name, service)

    async def health(_: web.Request) -> web.Response:
        """Answers load balancers, which send no more clients once this is 503."""
        ending = service.ending.is_set()
        content = {"status": "ending" if ending else "ok", "name": name}
        return web.json_response(content, status=503 if ending else 200)

    async def no_icon(_: web.Request) -> web.Response:
        """Answers browsers that ask for an icon, or the log would have an error each."""
        return web.Response(status=204)

    async def make_safe(_: web.Request, response: web.StreamResponse) -> None:
        """Adds `SAFE_HEADERS` to a response of any kind, before it is sent."""
        response.headers.update(SAFE_HEADERS)

    application = web.Application(middlewares=[guard])
    application.on_response_prepare.append(make_safe)
    application.router.add_get("/", show)
    application.router.add_get("/favicon.ico", no_icon)
    application.router.add_get("/health", health)

    # Tfasr's own interfaces, then that of OpenAI's API.
    application.router.add_get("/stream", functools.partial(converse, service=service))
    application.router.add_post(
        "/transcribe", functools.partial(transcribe, service=service)
    )

    form = functools.partial(transcriptions, service=service)
    application.router.add_get(f"{OPENAI_PREFIX}models", models(name))
    application.router.add_get(f"{OPENAI_PREFIX}models/{{model}}", models(name))
    application.router.add_post(f"{OPENAI_PREFIX}audio/transcriptions", form)

    return application


async def _sent(request: web.Request, response: web.Response) -> None:
    """Sends a response within the time limit of its caller."""
    await response.prepare(request)
    await response.write_eof()


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
    """Serves a recogniser until SIGINT or SIGTERM.

    Open streams then receive their final text.

    Args:
        recogniser: what recognises.
        name: shown on the page.
        host: address to listen at; the default is open to this machine only.
        port: 0 for any free one.
        limits: None for the defaults.
        allowed_hosts: names of the server in addition to localhost and its addresses.
        started: receives the page's address once clients can connect.

    Raises:
        UsageError: if the server can't listen at ``host`` and ``port``.
    """
    for allowed in allowed_hosts:
        if not _ALLOWED.fullmatch(allowed):
            message = (
                "--allow_host must be NAME or NAME:PORT, such as speech.example.org."
            )
            raise UsageError(f"{message} Received: {allowed!r}.")

    listening = _listen(host, port)
    with contextlib.closing(listening):
        service = Service(recogniser, limits or Limits())

        # Only after the port is taken, because this may take a minute.
        service.warm_up()
        application = make_application(
            name, service, [*allowed_hosts, f"{host}:{port}"]
        )
        asyncio.run(_run(application, service, listening, started))


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket.

    It is opened before anything else, so that a wrong address is reported before a
    model is loaded. Raises UsageError for an address that can't be used.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be 0 (any free one) to 65535. Received: {port}.")

    try:
        addresses = socket.getaddrinfo(
            host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        family, _, _, _, address = addresses[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host must be an address of this machine, such as 127.0.0.1 (only this machine can "
            f"connect) or 0.0.0.0 (other machines too). Received: {host!r}: {error}."
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
    """Returns the error for an address at which the server can't listen.

    Args:
        host: the address.
        port: the port.
        error: why not.
    """
    wrong_use = {
        errno.EADDRINUSE: f"--port must be free. Received: {port}, which another program uses "
        "already. Choose another, or 0 for any free one.",
        errno.EADDRNOTAVAIL: f"--host must be an address of this machine. Received: {host!r}.",
        errno.EACCES: f"--port must be one that you may use, above 1023. Received: {port}.",
    }
    if error.errno in wrong_use:
        return UsageError(wrong_use[error.errno])

    return RunError(f"The server cannot listen at {host}, port {port}: {error}.")


async def _run(
    application: web.Application,
    service: Service,
    listening: socket.socket,
    started: Callable,
) -> None:
    """Runs the server in the event loop, until a signal ends it or accepting fails.

    Args:
        application: answers requests.
        service: recognises; closed at the end.
        listening: the socket to accept connections from.
        started: called with the page's address once clients can connect.
    """
    loop = asyncio.get_running_loop()
    # Ctrl-C, and what service managers and containers send.
    ended_by = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        service.ending.set()
        # A second signal ends the process at once.
        for number in ended_by:
            loop.remove_signal_handler(number)

    for number in ended_by:
        loop.add_signal_handler(number, end)

    requests_log.addFilter(few_lines := FewLines())
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=requests_log,
        shutdown_timeout=_ENDING_S,
        # The first request must be complete by then, too.
        keepalive_timeout=service.limits.idle_s,
    )
    await runner.setup()

    # Not aiohttp's own site, which accepts any number of connections.
    accepting = asyncio.ensure_future(_accept(runner.server, listening, service))
    ending = asyncio.ensure_future(service.ending.wait())

    try:
        started(_url(listening))
        done, _ = await asyncio.wait(
            {accepting, ending}, return_when=asyncio.FIRST_COMPLETED
        )
        if accepting in done:
            # Raises what ended it.
            accepting.result()

        log.info("The server is shutting down: finishing open streams.")
    finally:
        requests_log.removeFilter(few_lines)
        for task in (accepting, ending):
            task.cancel()

        await asyncio.wait({accepting, ending})
        await runner.cleanup()
        service.close()


async def _accept(
    server: web.Server,
    listening: socket.socket,
    service: Service,
) -> None:
    """Accepts connections; if too many are open, makes room by closing an idle one.

    That way, clients that connect and send nothing can't keep others out.

    Args:
        server: aiohttp's, which handles accepted connections.
        listening: the socket to accept them from.
        service: has the limits, and knows which connections are busy.
    """
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    most = _most_connections(service.limits.max_streams)
    # When each open connection was first seen, the oldest first.
    since_s: dict[asyncio.BaseTransport, float] = {}

    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError as error:
            requests_log.error("A connection could not be accepted: %s", error)
            await asyncio.sleep(_NO_FILES_S)
            continue

        # Waits until there is room for it.
        while True:
            now_s = time.monotonic()
            transports = [handler.transport for handler in server.connections]
            # Keeps the times of those that are still open.
            since_s = {
                transport: since_s.get(transport, now_s)
                for transport in transports
                if transport is not None
            }
            if len(since_s) < most:
                break

            # Dictionaries keep their order, so the first one is the oldest.
            oldest = next((it for it in since_s if it not in service.busy), None)
            if oldest is None or now_s - since_s[oldest] < _REQUEST_S:
                await asyncio.sleep(_LOOK_S)
                continue

            oldest.abort()
            # Lets the event loop close it.
            await asyncio.sleep(0)

        try:
            await loop.connect_accepted_socket(server, connection)
        except OSError as error:
            # Such as for a client that is gone already.
            requests_log.error("A connection could not be accepted: %s", error)
            connection.close()


def _most_connections(max_streams: int) -> int:
    """Returns how many connections may be open at once.

    A system that allows fewer open files than wanted lowers the number, and a warning
    is logged if streams will have to wait.

    Args:
        max_streams: see `Limits`.
    """
    wanted = 2 * max_streams + _MOST_WAITING
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted

    # A new file's number counts the files that are open.
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)

    # Of the files that remain, each connection needs one.
    spare = limit - probe - _FILES_EACH * max_streams - _FILES_MORE
    if spare < max_streams:
        log.warning(
            "ulimit -n is %d, too few for --max_streams %d: clients will have to wait. Raise it "
            "to %d.",
            limit,
            max_streams,
            limit + max_streams - spare,
        )

    return max(min(wanted, spare), 1)


class FewLines(logging.Filter):
    """Logs each malformed request as one line, and only a few requests in a minute.

    Otherwise a client could fill the disk with the server's log.
    """

    def __init__(self):
        super().__init__()
        # When the present minute began, and the lines in it.
        self._began_s = -_LINES_S
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is logged, after shortening it."""
        error = record.exc_info[1] if record.exc_info else None

        # What aiohttp raises for malformed requests, with a traceback of aiohttp's
        # code.
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            reason = " ".join(str(error).split())[:_MOST_CHARACTERS]
            record.msg = "A request was refused: %s"
            record.args = (printable(reason),)
            record.exc_info = None

        # A new minute begins with the first line after the last one.
        now_s = time.monotonic()
        if now_s - self._began_s > _LINES_S:
            self._began_s = now_s
            self._count = 0

        self._count += 1
        if self._count == _MOST_LINES:
            log.warning("Many requests fail: no more lines about them for a minute.")

        return self._count < _MOST_LINES


def _url(listening: socket.socket) -> str:
    """Returns the address of the page, as a browser on this machine opens it.

    Args:
        listening: the server's socket; its port may have been chosen by the system.
    """
    address, port = listening.getsockname()[:2]
    # Browsers let pages of localhost use the microphone.
    if address in ("0.0.0.0", "::"):
        address = "localhost"

    if ":" in address:
        return f"http://[{address}]:{port}/"

    return f"http://{address}:{port}/"
