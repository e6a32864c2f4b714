"""The workload's side of ``tfasr bench --gin_file``: from JSON to JSON, in whatever process."""

import math
from pathlib import Path
from typing import Any

from tfasr.bench.workload import Context, Result, find_workload, table_to_json
from tfasr.telemetry.system import describe_system


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a workload.

    Args:
        request: ``workload`` (its name), ``configs`` (one dict a config, in the workload's order)
            and ``context`` (of `Context`).

    Returns:
        ``tables`` (as JSON) and ``values``: the workload's, beside what tells what they were
        measured on.
    """
    workload = find_workload(request["workload"])
    classes = workload.config_types
    configs = [cls(**values) for cls, values in zip(classes, request["configs"], strict=True)]
    context = _context(request["context"])
    result: Result = workload.run(*configs, context)
    if context.out is not None:
        _draw(result, context.out)
    values = {
        "workload": request["workload"],
        "system": describe_system(),
        "backend": _backend(bool(workload.backends)),
        "fraction": context.fraction,
        "configs": {
            cls.__name__: values for cls, values in zip(classes, request["configs"], strict=True)
        },
        "warmup_steps": result.warmup_steps,
        "results": _finite(result.values),
    }
    return {"tables": [table_to_json(table) for table in result.tables], "values": values}


def _context(values: dict[str, Any]) -> Context:
    names = ("corpus_dir", "out", "run_dir", "shard_dir")
    paths = {name: values[name] and Path(values[name]) for name in names if name in values}
    return Context(**{**values, **paths})


def _backend(in_child: bool) -> dict[str, Any] | None:
    """Returns the backend, or None where the workload compares several and names them itself."""
    if not in_child:
        return None
    from tfasr.bench.child import describe_backend

    return describe_backend()


def _draw(result: Result, folder: Path) -> None:
    from tfasr.display.style import write_png

    for name, draw in result.figures.items():
        write_png(draw(), folder / f"{name}.png")


def _finite(value: Any) -> Any:
    """Returns JSON values with None for what is no finite number."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
