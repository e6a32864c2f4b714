"""The steps of a study: a command for each, and whether it is done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfasr.corpora.utterance import SPLITS
from tfasr.data.manifest import INDEX_FILE
from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE, read_object
from tfasr.kit.registry import loaded_plugins
from tfasr.studies.plan import SYNTHETIC, Plan, PlannedRun
from tfasr.tta.run import load_run

_LARGEST = 1e100  # the largest number that a row may contain
SCORES_FILE = "scores.json"
WIDTHS_FOLDER = "beam_widths"
WIDTHS_FILE = "results.json"


@dataclass(frozen=True)
class Step:
    kind: str  # "corpus", "train", "score" or "widths"; steps of a kind take similar times
    name: str  # shown in progress lines, such as "train sys1"
    words: Callable[[], Sequence[str | Path]]  # returns the arguments of ``tfasr``
    done: Callable[[], bool]  # returns whether its result exists
    log: Path  # gets what the command prints
    needs: Path | None = None  # the run that must be finished before
    run_dir: Path | None = None  # a training's run folder, in which its progress is watched
    alike: str = ""  # the experiment; its steps of one kind take similar times
    environment: tuple[str, ...] = ()  # environment variables of its process: NAME=VALUE
    seed: int | None = None  # the training's


def study_steps(plan: Plan, folder: Path, shard_dir: Path | None) -> list[Step]:
    """Returns all steps of a study, in their order; raises `UsageError` without shards."""
    shards = shard_dir or folder / "shards"
    if shard_dir is None and plan.config.corpus != SYNTHETIC:
        raise UsageError(
            "A study of recordings must be given their prepared splits with --shard_dir, as "
            "tfasr train is. Received: none, and StudyConfig.corpus makes none."
        )
    steps = [] if shard_dir else [_prepare(folder, shards)]
    steps += [_train(run, folder, shards) for run in plan.runs]
    if plan.config.final_splits:
        steps += [_score(plan, run, folder, shards) for run in plan.runs]
    if plan.config.beam_widths:
        steps.append(_widths(plan, folder, shards))
    return steps


def finished(run_dir: Path) -> bool:
    if not (run_dir / EVENTS_FILE).is_file():
        return False
    try:
        return load_run(run_dir).status == "success"
    except UsageError:
        return False


def scores_path(folder: Path, run: PlannedRun) -> Path:
    return folder / "scores" / run.name / SCORES_FILE


def widths_path(folder: Path) -> Path:
    return folder / WIDTHS_FOLDER / WIDTHS_FILE


def widths_run(plan: Plan) -> PlannedRun:
    name = plan.config.beam_widths_of or plan.config.experiments[0]
    return next(run for run in plan.runs if run.experiment == name)


def _prepare(folder: Path, shards: Path) -> Step:
    corpus = folder / "corpus"

    def words() -> list[str | Path]:
        # Imported here: making speech needs a pip extra that other studies do without.
        from tfasr.corpora.synthetic import make_synthetic_corpus

        make_synthetic_corpus(corpus)
        return [*("prepare", "--corpus", SYNTHETIC), "--corpus_dir", corpus, "--shard_dir", shards]

    def done() -> bool:
        return all((shards / split / INDEX_FILE).is_file() for split in SPLITS)

    return Step("corpus", "corpus", words, done, folder / "logs" / "corpus.log")


def _train(run: PlannedRun, folder: Path, shards: Path) -> Step:
    run_dir, log = folder / run.folder, folder / "logs" / f"{run.name}.log"

    def words() -> list[str | Path]:
        files = [word for file in run.gin_files for word in ("--gin_file", file)]
        bindings = [word for line in run.bindings for word in ("--gin_binding", line)]
        resume = ["--resume"] if (run_dir / EVENTS_FILE).is_file() else []
        folders = ["--shard_dir", shards, "--run_dir", run_dir]
        return ["train", *_imports(), *files, *bindings, *folders, *resume]

    done, name = partial(finished, run_dir), f"train {run.name}"
    more = {"alike": run.experiment, "environment": run.environment, "seed": run.seed}
    return Step("train", name, words, done, log, run_dir=run_dir, **more)


def _score(plan: Plan, run: PlannedRun, folder: Path, shards: Path) -> Step:
    config, path = plan.config, scores_path(folder, run)
    splits = [word for split in config.final_splits for word in ("--split", split)]
    words = [
        *("evaluate", *_imports(), "--run_dir", folder / run.folder, "--shard_dir", shards),
        *(*splits, "--decoder", "word_beam", "--beam_width", str(config.final_beam_width)),
        *("--out", path.parent),
    ]
    wanted = [(split, config.final_beam_width) for split in config.final_splits]

    def done() -> bool:
        rows = rows_of(path, "split", "decoder", "beam_width")
        return all(any((r["split"], r["beam_width"]) == cell for r in rows) for cell in wanted)

    log = folder / "logs" / f"{run.name}-scores.log"
    more = {"needs": folder / run.folder, "alike": run.experiment}
    return Step("score", f"score {run.name}", lambda: words, done, log, **more)


def _widths(plan: Plan, folder: Path, shards: Path) -> Step:
    config, path, run = plan.config, widths_path(folder), widths_run(plan)
    words = [
        *("bench", "decoder", *_imports(), "--run_dir", folder / run.folder),
        *("--shard_dir", shards, "--split", config.beam_widths_split, "--decoders", "word_beam"),
        *("--beam_widths", ",".join(map(str, config.beam_widths)), "--out", path.parent),
    ]

    def done() -> bool:
        rows = rows_of(path, "beam_width", "evaluation_s")
        return {row["beam_width"] for row in rows} == set(config.beam_widths)

    log = folder / "logs" / "beam_widths.log"
    needs, name = folder / run.folder, f"beam widths of {run.name}"
    return Step("widths", name, lambda: words, done, log, needs)


def rows_of(path: Path, *names: str) -> list[dict[str, Any]]:
    """Returns the rows of a command's JSON, [] if the file is missing.

    Raises UsageError if there are no rows, or if a row lacks error rates or a value of ``names``.
    """
    if not path.exists():
        return []
    remedy = "Another program wrote it: move it away, and --resume computes it again."
    rows = read_object(path, remedy, ("rows",))["rows"]
    needed = {"wer", "cer", *names}
    if not isinstance(rows, list) or not all(_is_row(row, needed) for row in rows):
        names_needed = ", ".join(sorted(needed))
        raise UsageError(f"Every row of {path} must have {names_needed}. {remedy}")
    return rows


def _is_row(row: Any, names: set[str]) -> bool:
    if not isinstance(row, dict) or not names <= {*row}:
        return False
    texts = {"split", "decoder"}
    return all(
        isinstance(row[name], str if name in texts else int | float)
        and (name in texts or abs(row[name]) < _LARGEST)
        for name in names
        if name != "beam_width" or row[name] is not None
    )


def _imports() -> list[str]:
    return [word for plugin in loaded_plugins() for word in ("--import", plugin)]
