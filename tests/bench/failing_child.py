"""Fails in a process of its own; loads no backend."""

from tfasr.errors import RunError, UsageError


def fail(request):
    raise {"usage": UsageError, "run": RunError}[request["error"]]("said so")
