"""Runs the workload that a preset names, and writes what it measured."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfasr.bench.child import check_backend, run_in_child
from tfasr.bench.perform import perform
from tfasr.bench.workload import Context, find_workload
from tfasr.config import to_json
from tfasr.display.table import Table
from tfasr.errors import UsageError


def bench_workload(
    gin_file: str,
    *,
    bindings: Sequence[str] = (),
    backend: str | None = None,
    fraction: float | None = None,
    corpus_dir: str | Path | None = None,
    out: str | Path | None = None,
    run_dir: str | Path | None = None,
    split: str = "validation",
    shard_dir: str | Path | None = None,
    output_format: str = "table",
) -> str:
    """Runs a workload and returns its tables as text.

    Args:
        gin_file: a preset or a file that binds ``BenchConfig.workload``.
        bindings: lines of gin that override it.
        backend: overrides ``BenchConfig.backend``.
        fraction: overrides ``BenchConfig.fraction``.
        corpus_dir: recordings, where the workload can use them instead of synthetic data.
        out: a folder for ``results.json``, ``table.md`` and a PNG for each figure, made where
            missing, or a file ``*.json`` for the first alone.
        run_dir: a trained run to evaluate, where the workload can.
        split: the prepared split to evaluate it on.
        shard_dir: where that is; the run's own by default.
        output_format: "table", "markdown" or "json".

    Raises:
        UsageError: if the preset, a value or the backend is wrong.
        RunError: if the workload fails.
        OSError: if a file cannot be written.
    """
    from tfasr.bench.from_gin import load_bench

    loaded = load_bench(gin_file, bindings)
    workload = find_workload(loaded.bench.workload)
    if backend is not None and not workload.backends:
        raise UsageError(
            f"--backend must be left out for the workload {loaded.bench.workload!r}, which starts "
            f"the backends that its preset names. Received: {backend!r}."
        )
    bench = _overridden(loaded.bench, backend=backend, fraction=fraction)
    check_backend(bench.backend)
    folder = None if out is None or str(out).endswith(".json") else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    context = Context(
        backend=bench.backend,
        fraction=bench.fraction,
        corpus_dir=None if corpus_dir is None else Path(corpus_dir).resolve(),
        out=None if folder is None else folder.resolve(),
        run_dir=None if run_dir is None else Path(run_dir).resolve(),
        split=split,
        shard_dir=None if shard_dir is None else Path(shard_dir).resolve(),
    )
    request = {
        "workload": bench.workload,
        "configs": [to_json(config) for config in loaded.configs],
        "context": _plain(context),
    }
    if workload.backends:
        function = "tfasr.bench.perform:perform"
        answer = run_in_child(function, request, backend=bench.backend)
    else:
        answer = perform(request)
    return _written(answer, out, folder, output_format)


def _overridden(config: Any, **values: Any) -> Any:
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return dataclasses.replace(config, **given)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _plain(context: Context) -> dict[str, Any]:
    values = dataclasses.asdict(context)
    return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}


def _written(
    answer: dict[str, Any], out: str | Path | None, folder: Path | None, output_format: str
) -> str:
    from tfasr.display.text import to_markdown, to_text

    tables = [Table(**values) for values in answer["tables"]]
    text = json.dumps(answer["values"], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if folder is not None:
        (folder / "results.json").write_text(text, encoding="utf-8")
        (folder / "table.md").write_text(to_markdown(tables), encoding="utf-8")
    elif out is not None:
        Path(out).write_text(text, encoding="utf-8")
    if output_format == "json":
        return text
    return to_markdown(tables) if output_format == "markdown" else to_text(tables)
