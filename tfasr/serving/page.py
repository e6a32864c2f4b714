"""The page that browsers get: one file, to which nothing is loaded from anywhere."""

import functools
import json
import secrets
from importlib import resources

from aiohttp import web

from tfasr.corpora.reading.audio_header import AUDIO_SUFFIXES
from tfasr.recognising.spec import STREAMING_PRESET
from tfasr.serving.service import Service


def page(name: str, service: Service) -> web.Response:
    """Returns the page, with the limits of a service that is called ``name``."""
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
    # Within a script, nothing but "<" could end it.
    text = json.dumps(facts).replace("<", "\\u003c")
    nonce = secrets.token_urlsafe(16)
    body = _template().replace("NONCE", nonce).replace('"FACTS"', text)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}' blob:; worker-src blob:; "
        f"style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy}
    return web.Response(text=body, content_type="text/html", headers=headers)


@functools.cache
def _template() -> str:
    return resources.files("tfasr.serving").joinpath("page.html").read_text(encoding="utf-8")
