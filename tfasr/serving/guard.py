"""Who may speak with the server: no page of another site, by whatever name it calls itself."""

import ipaddress
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import urlsplit

from aiohttp import web

SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def check_sender(host: str | None, origin: str | None, allowed: Collection[str]) -> str | None:
    """Returns why a request is refused; None if it may pass.

    A page of another site can have a name that leads here (DNS rebinding), and then reads what it
    likes as if it were ours. It cannot have an address for its name: so addresses pass, and names
    only if they are known. A browser says in ``Origin`` whose page asks: that must be ours.

    Args:
        host: the request's header ``Host``.
        origin: its header ``Origin``; None if it has none, as from programs.
        allowed: names of the server in addition to localhost; with a port if a proxy has its own.
    """
    name = _part(f"//{host}", "hostname") if host else None
    names = ("localhost", *(one.partition(":")[0] for one in allowed))
    if name is None or not (_is_address(name) or name in names):
        return (
            f"The server must be asked for by its address, as localhost, or by a name that was "
            f"given with --allow_host. Received: Host {host!r}."
        )
    if origin is None:
        return None
    if _part(origin, "netloc") in (host, *allowed):
        return None
    return f"Only the server's own page may use it. Received: Origin {origin!r} at Host {host!r}."


def _part(url: str, part: str) -> str | None:
    try:
        return getattr(urlsplit(url), part)
    except ValueError:  # no URL
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def guard(allowed: Collection[str]) -> Callable:
    """Returns aiohttp's middleware that lets only requests pass that `check_sender` allows."""
    allowed = [name.lower() for name in allowed]

    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        headers = request.headers
        refused = check_sender(headers.get("Host"), headers.get("Origin"), allowed)
        if refused is not None:
            return web.json_response({"error": refused}, status=403)
        return await handler(request)

    return guarded
