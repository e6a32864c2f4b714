"""Records: a track sets a target; a challenger that reaches it sooner becomes the new record.

A submission is a folder: ``submission.json`` with the SHA-256 of every other file,
``track.gin``, ``study.tar.xz`` (the study that trained the reigning record and its
challenger in turns, without checkpoints), ``plugins/``, ``code.diff``,
``environment.txt``, ``card.md`` and ``card.json``.
"""

import importlib.metadata
import io
import json
import lzma
import math
import re
import subprocess
import tarfile
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from types import NoneType
from typing import IO, Any

from tfasr._version import __version__
from tfasr.data.manifest import file_sha256, read_index, read_manifest
from tfasr.display.table import markdown_text
from tfasr.errors import UsageError, did_you_mean
from tfasr.kit.config import config_class, require
from tfasr.kit.files import (
    GIN_GIVEN_FILE,
    SUBMISSION_FILE,
    check_owned,
    make_folder,
    opened,
    read_bytes,
    read_object,
    read_text,
    write_whole,
)
from tfasr.kit.gin import fill, make, presets_folder, read_evidence, read_gin
from tfasr.kit.registry import plugins
from tfasr.ledger.declared import STARTS_FILE, canonical, check_study, code_hash, sha256
from tfasr.ledger.events import chain_of, read_events
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.write import CARD, CARD_JSON, report
from tfasr.scoring.errors import read_transcripts
from tfasr.studies.perform import decision, decision_text, study
from tfasr.studies.plan import Plan, StudyConfig, plan_of
from tfasr.studies.verify import verify_study
from tfasr.tta.comparison import LOOKS
from tfasr.tta.host import host_use, read_host_file
from tfasr.tta.policies import WINDOW
from tfasr.tta.run import Run, load_run
from tfasr.verifying.form import must
from tfasr.verifying.run import (
    Check,
    judged,
    plain_files,
    references_hash,
    shards_hash,
)

REIGNING = "reigning"
CHALLENGER = "challenger"
STUDY_FILE = "study.tar.xz"
TRACK_FILE = "track.gin"
_LEFT_OUT = (
    "checkpoints",
    "logs",
    "corpus",
    "shards",
    "report",
    "at_work",
    "lock",
    "cpu.csv",
)
_LEFT_OUT += ("gpu.csv", "heartbeat", "progress.json")
_SAME = (
    "host",
    "processor",
    "cores",
    "memory_bytes",
    "gpus",
    "python",
    "packages",
    "platform",
)
_SAME_CONDITIONS = (
    "environment",
    "affinity",
    "governors",
    "threads",
    "nice",
    "cpu_limit",
)
RULES = (
    "track",
    "rules",
    "seeds",
    "turns",
    "machine",
    "against",
    "verdict",
    "load",
    "leaks",
    "data",
)
UNCHECKED_OF_SUBMISSIONS = (
    "that the machine and its software are those that are named",
    "work of many races that were never published",
    "transcripts that the code holds in an encoded form",
    "how noisy evaluations are",
)
_NOT_COMPARED = ("hash", "batch_statistics", "division")
_NUMBER_OF_SEEDS = LOOKS[-1]
_TELLTALE_WORDS = 3  # validation transcripts of 3 or more words must not be in the code
# How much of a verdict's gap other load, pauses or starts may explain.
SHARE_OF_GAP = 0.25
# The largest part of a run for which samples of load may be missing.
_MOST_UNKNOWN = 0.2
_OURS = "# Written by tfasr record. "  # how the race's own gin files begin
_TABLE_BEGINS = "# Records\n\n`tfasr record --table` writes this page"
# Limits for files of a submission: many times what honest ones need.
_MOST_TEXT_BYTES = 4 << 20
_MOST_STUDY_BYTES = 1 << 30
_MOST_MEMBER_BYTES = 128 << 20
_MOST_RATIO = 200  # text is compressed to a tenth, at most to a fortieth
# Nor 30 of their words over 3 letters, if that is over half of them.
_VOCABULARY = (30, 0.5)


@config_class
class TrackConfig:
    """What the reigning record and its challenger share: data, target, and what is compared.

    Its fields are the rules of a race, which a track's gin file declares.
    """

    title: str = ""  # the heading in the table of records
    corpus: str = ""  # "synthetic" makes the demo's speech; "" needs ``--shard_dir``
    training: str = ""  # the hash of the training split's ids and transcripts
    validation: str = ""  # the hash of the validation split's ids and transcripts
    metric: str = "cer"  # the target's error rate
    target: float = 0.1  # a fraction
    window: int = WINDOW  # the number of evaluations whose median must meet the target
    decoder: str = "greedy"  # decodes the evaluations
    division: str = "open"  # "closed" allows only the paper's model and optimizer
    # what is compared: "seconds" (runs take turns on one machine) or "utterances" (any
    # machine)
    kind: str = "seconds"
    policy: str = "paper"  # how seconds are counted if the kind is "seconds"
    # The largest probability of a verdict between equally fast recipes.
    level: float = 0.01
    # The budget of every run: one that misses the target within it has failed.
    epochs: int = 60
    baseline: tuple[str, ...] = ()  # presets to beat until there is a record
    # Hash of their gin statements: shows whether a preset has changed.
    baseline_hash: str = ""

    def check(self) -> None:
        require(
            self.kind in ("seconds", "utterances"),
            self,
            "kind",
            "'seconds' or 'utterances'",
        )
        require(
            self.division in ("open", "closed"), self, "division", "'open' or 'closed'"
        )
        require(bool(self.baseline), self, "baseline", "at least one preset")

    @property
    def bindings(self) -> list[str]:
        """Bindings that both sides train with, after their own."""
        return [
            f"TrainingConfig.targets = [({self.metric!r}, {self.target!r})]",
            f"TrainingConfig.target_window = {self.window}",
            f"TrainingConfig.epochs = {self.epochs}",
            "TrainingConfig.stop_after_hours = 0.0",
            "TrainingConfig.give_up_after_hours = 0.0",
            "TrainingConfig.evaluation_utterances = 0",
            "TrainingConfig.stop_at_targets = True",
            "TrainingConfig.second_decoder = ''",
            f"DecoderConfig.name = {self.decoder!r}",
        ]

    @property
    def clock(self) -> str:
        return self.policy if self.kind == "seconds" else self.kind


def tracks(records: Path) -> dict[str, Path]:
    """Returns the files of tfasr's tracks, and of those that a folder of records adds."""
    added = {path.parent.name: path for path in records.glob(f"*/{TRACK_FILE}")}
    shipped = {path.stem: path for path in (presets_folder() / "track").glob("*.gin")}
    return dict(sorted({**added, **shipped}.items()))


def load_track(name: str, records: Path) -> TrackConfig:
    by_name = tracks(records)
    if name not in by_name:
        remedy = did_you_mean(name, by_name, f"Tracks: {', '.join(by_name)}.")
        raise UsageError(f"A record needs a track. Received: {name!r}.{remedy}")

    # Anyone may have written it: reading it imports nothing and includes no other file.
    text = read_evidence(by_name[name])
    config = fill(text, partial(make, TrackConfig), imports=False).configs
    for file in config.baseline:
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise UsageError(
                f"A track's baseline must name presets, or files in the track's folder. Received: "
                f"{file!r} in {by_name[name]}."
            )

    # A track in --records may have its baseline's presets in its own folder.
    near = (by_name[name].parent / file for file in config.baseline)
    files = zip(near, config.baseline, strict=True)
    return replace(
        config, baseline=tuple(str(n) if n.is_file() else f for n, f in files)
    )


def statements(files: Sequence[str], bindings: Sequence[str] = ()) -> list[str]:
    return [statement.text for statement in read_gin(files, bindings).statements]


def statements_hash(texts: Sequence[str]) -> str:
    return sha256(canonical(list(texts)))[:16]


def submissions(records: Path, track: str) -> list[dict[str, Any]]:
    """Returns a track's accepted submissions, oldest first, each with its folder's name.

    Raises UsageError if one of them states something else than `record` writes.
    """
    files = sorted((records / track).glob(f"*/{SUBMISSION_FILE}"))
    return [{**_stated(path), "folder": path.parent.name} for path in files]


_STATED = {
    "track": str,
    "tfasr": str,
    "against": str,
    "verdict": str,
    "decision": str,
    "runs": int,
    "ratio": (float, int, NoneType),
    "interval": (list, NoneType),
    "statements": list,
    "study": str,
    "files": dict,
}
_HASH = re.compile(r"[0-9a-f]{32}")  # a line's hash in a list of starts
_VERDICTS = ("record", "refuted", "undecided")


def _stated(path: Path) -> dict[str, Any]:
    stated = read_object(
        path, "Restore it from a copy.", tuple(_STATED), _MOST_TEXT_BYTES
    )
    for name, kinds in _STATED.items():
        value = stated[name]
        must(
            isinstance(value, kinds) and value is not True,
            f"{path} has {name} = {value!r:.60}",
        )

    ratio = stated["ratio"]
    interval = stated["interval"]
    must(ratio is None or _positive(ratio), f"{path} has the ratio {ratio!r:.60}")
    ends = interval is None or (len(interval) == 2 and all(map(_positive, interval)))
    must(ends, f"{path} has the interval {interval!r:.60}")
    texts = [*stated["statements"], *stated["files"].values()]
    must(
        all(isinstance(text, str) for text in texts),
        f"{path} has statements that are no text",
    )
    must(_HASH.fullmatch(stated["study"]) is not None, f"{path} has no hash of a study")
    must(
        stated["verdict"] in _VERDICTS,
        f"{path} has the verdict {stated['verdict']!r:.60}",
    )
    return stated


def _positive(number: Any) -> bool:
    return type(number) in (int, float) and 0 < number < math.inf


def _reigning(
    track: TrackConfig, earlier: Sequence[dict[str, Any]]
) -> tuple[str, list[str]]:
    """Returns the hash of the reigning submission, "" for the baseline, and its statements."""
    records = [each for each in earlier if each["verdict"] == "record"]
    if records:
        return records[-1]["study"], list(records[-1]["statements"])
    texts = statements(track.baseline)
    if statements_hash(texts) != track.baseline_hash:
        raise UsageError(
            f"The baseline {', '.join(track.baseline)} has the hash {statements_hash(texts)}, but "
            f"the track was declared with {track.baseline_hash}: the preset has changed since."
        )

    return "", texts


def record(
    name: str,
    gin_files: Sequence[str],
    *,
    run_dir: Path,
    shard_dir: Path | None = None,
    bindings: Sequence[str] = (),
    records: Path = Path("records"),
    resume: bool = False,
) -> Path:
    """Trains the reigning record and a challenger in turns; returns the submission's folder.

    The arguments are the flags of ``tfasr record``. Raises UsageError if the track, a
    preset or the folder is wrong; RunError if a training failed.
    """
    track = load_track(name, records)
    against, reigning = _reigning(track, submissions(records, name))
    folder = run_dir / "study"
    out = run_dir / "submission"
    own = statements(gin_files, bindings)
    race = run_dir / "race.gin"
    written = (folder.name, out.name, race.name, f"{REIGNING}.gin")
    owned = race.is_file() and read_bytes(race).startswith(_OURS.encode())
    check_owned(
        run_dir, "--run_dir", f"{race.name} of tfasr record", written, owned=owned
    )

    # The baseline stays in its own files: a binding that a later file leaves unused is
    # dropped, but in a single file it would be an error.
    files = {REIGNING: (f"{REIGNING}.gin",) if against else track.baseline}
    files[CHALLENGER], more = (
        tuple(gin_files),
        {REIGNING: (), CHALLENGER: tuple(bindings)},
    )
    plugged = [plugin.sha256 for plugin in plugins()]
    lines = [
        f"{_OURS}Track: {name}",
        f"StudyConfig.title = {track.title!r}",
        f"StudyConfig.experiments = ({REIGNING!r}, {CHALLENGER!r})",
        f"StudyConfig.seeds = {seeds_of(name, reigning, own, code_hash(), plugged)!r}",
        f"StudyConfig.corpus = {track.corpus if shard_dir is None else ''!r}",
        f"StudyConfig.policy = {track.clock!r}",
        f"StudyConfig.level = {track.level!r}",
    ]
    for side in (REIGNING, CHALLENGER):
        lines.append(f"{side}/ExperimentConfig.gin_files = {files[side]!r}")
        lines.append(
            f"{side}/ExperimentConfig.bindings = {(*more[side], *track.bindings)!r}"
        )

    content = "\n".join(lines) + "\n"
    begun = owned and (folder / STARTS_FILE).exists()
    if begun and (not resume or read_bytes(race) != content.encode()):
        raise UsageError(
            f"--run_dir must be a new folder, or that of this race with --resume. {run_dir} holds "
            "a race that was begun, and a changed recipe, track or code makes another race. "
            "Nothing in it was changed: choose another folder."
        )

    make_folder(run_dir)
    write_whole(race, content)
    write_whole(run_dir / f"{REIGNING}.gin", "\n".join([_OURS, *reigning]) + "\n")
    study(
        str(race), run_dir=folder, shard_dir=shard_dir, resume=resume, until="decided"
    )
    make_folder(out)
    write_whole(out / TRACK_FILE, tracks(records)[name].read_bytes())
    _write_submission(folder, out, name, track, against)
    return out


def seeds_of(
    track: str,
    reigning: Sequence[str],
    own: Sequence[str],
    code: str,
    plugged: Sequence[str],
) -> tuple[int, ...]:
    """Returns a race's seeds, which nobody knows before the recipe is final.

    They follow from a hash of both sides' gin statements, tfasr's code and the
    plug-ins. So a recipe can't hold values that were tried out for the seeds that it
    will be given.
    """
    sealed = [track, list(reigning), list(own), code, sorted(plugged)]
    seeds: list[int] = []
    number = 0
    while len(seeds) < _NUMBER_OF_SEEDS:
        digest = sha256(canonical([number, *sealed]))
        seed = int(digest[:8], 16) >> 1  # 31 bits: every library accepts such a seed
        if seed not in seeds:
            seeds.append(seed)
        number += 1

    return tuple(seeds)


def _write_submission(
    folder: Path, out: Path, name: str, track: TrackConfig, against: str
) -> None:
    plan = plan_of(list(check_study(folder).plans.values())[-1])
    make_folder(out / "plugins")
    write_whole(out / STUDY_FILE, pack(folder))
    for plugin in plugins():
        write_whole(
            out / "plugins" / Path(plugin.file).name, Path(plugin.file).read_bytes()
        )
    write_whole(out / "code.diff", _code_diff())
    installed = {f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}
    write_whole(out / "environment.txt", "\n".join(sorted(installed)) + "\n")
    for file, kind in (("card.md", CARD), ("card.json", CARD_JSON)):
        write_whole(out / file, report([folder], output_format=kind))
    files = sorted(
        p for p in out.rglob("*") if p.is_file() and p.name != SUBMISSION_FILE
    )
    content = {
        "track": name,
        "tfasr": __version__,
        "against": against,
        **stated_outcome(plan, folder, track),
        "files": {
            path.relative_to(out).as_posix(): file_sha256(path) for path in files
        },
    }
    write_whole(out / SUBMISSION_FILE, json.dumps(content, indent=1) + "\n")


def stated_outcome(plan: Plan, folder: Path, track: TrackConfig) -> dict[str, Any]:
    decided = decision(plan, folder)
    compared = decided.comparison
    run = next(run for run in plan.runs if run.experiment == CHALLENGER)
    # The challenger's statements that had an effect: the recipe to train again in the
    # next race.
    effective = statements([str(folder / run.folder / GIN_GIVEN_FILE)])[
        : -len(track.bindings) - 1
    ]
    return {
        "verdict": {"first": "refuted", "second": "record", None: "undecided"}[
            decided.sooner
        ],
        "decision": decision_text(plan, decided),
        "runs": decided.runs,
        "ratio": compared and compared.ratio,
        "interval": compared and compared.interval,
        "statements": effective,
        "study": chain_of(folder / STARTS_FILE)[-1],
    }


def _own_statements(plan: Plan, side: str, track: TrackConfig) -> list[str]:
    """Returns a side's statements without the track's and the seed's, which must come last."""
    per_seed = []
    for run in (run for run in plan.runs if run.experiment == side):
        texts = list(plan.identity["runs"][run.folder.as_posix()])
        last = [*track.bindings, f"TrainingConfig.seed = {run.seed}"]
        must(
            texts[-len(last) :] == last,
            f"{side}: its gin doesn't end with the track's bindings",
        )
        per_seed.append(texts[: -len(last)])

    must(
        all(texts == per_seed[0] for texts in per_seed),
        f"{side}: runs differ beyond the seed",
    )
    return per_seed[0]


def pack(folder: Path) -> bytes:
    """Returns the study as an archive; equal contents give equal bytes."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file())
    members = [p for p in paths if not {*p.relative_to(folder).parts} & {*_LEFT_OUT}]
    packed = io.BytesIO()
    options = {"format": tarfile.USTAR_FORMAT, "preset": 9}
    with tarfile.open(fileobj=packed, mode="w:xz", **options) as archive:
        for path in sorted(members, key=lambda p: (p.suffix, p.name, str(p))):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))

    return packed.getvalue()


def _code_diff() -> str:
    package = Path(__file__).parents[1]
    command = ["git", "-C", str(package), "diff", "HEAD", "--", str(package)]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (
            "tfasr is installed, not a git checkout: environment.txt has its version.\n"
        )


def verify_submission(
    folder: Path, shard_dir: Path | None = None, records: Path = Path("records")
) -> Iterator[Check]:
    """Checks a submission's files, its study, and the rules of its track."""
    with tempfile.TemporaryDirectory() as unpacked:
        race = _Race(folder, Path(unpacked), records, shard_dir)
        for name, check in (("files", race.files), ("study", race.unpack)):
            done = judged(name, check)
            yield done
            if not done.passed:
                return

        for name in RULES:
            yield judged(name, getattr(race, f"check_{name}"))
        for check in verify_study(race.place, shard_dir):
            needed = check.passed is None and check.name.endswith(
                (", scores", ", settings")
            )
            if needed:
                yield Check(check.name, False, "the data to check it is missing")
            elif check.name != "files":  # `unpack` wrote them
                yield check


def unpacked_study(archive: Path, place: Path) -> int:
    """Unpacks a study that anyone may have packed into the folder ``place``; returns
    its bytes.

    Only regular files of plain headers are accepted, as `pack` writes them: no links,
    and no extended headers, whose texts may have any size. Raises UsageError for
    anything else, and for more than 1 GiB in all.
    """
    with (
        opened(archive, _MOST_STUDY_BYTES) as packed,
        tempfile.TemporaryFile() as plain,
    ):
        most = min(_MOST_STUDY_BYTES, (1 << 20) + _MOST_RATIO * archive.stat().st_size)
        size = 0
        for block in _decompressed(packed):
            size += len(block)
            must(size <= most, f"{archive.name} unpacks to more than {most} bytes")
            plain.write(block)

        plain.seek(0)
        return sum(_member(header, plain, place) for header in _headers(plain))


def _decompressed(packed: IO[bytes]) -> Iterator[bytes]:
    decompressor = lzma.LZMADecompressor(memlimit=256 << 20)
    while not decompressor.eof:
        content = packed.read(1 << 16) if decompressor.needs_input else b""
        if decompressor.needs_input and not content:
            raise EOFError("it is cut off")
        yield decompressor.decompress(content, 1 << 20)


def _headers(plain: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    while any(block := plain.read(tarfile.BLOCKSIZE)):
        yield tarfile.TarInfo.frombuf(block, "utf-8", "strict")


def _member(header: tarfile.TarInfo, plain: IO[bytes], place: Path) -> int:
    """Writes a file of an archive, whose content follows in ``plain``; returns its size."""
    target = (place / header.name).resolve()
    size = header.size
    inside = target.is_relative_to(place.resolve()) and target != place.resolve()
    regular = header.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
    must(regular and inside, f"{header.name!r} is no regular file inside the study")
    must(0 <= size <= _MOST_MEMBER_BYTES, f"{header.name!r} has {size} bytes")
    content = plain.read(size)
    must(len(content) == size, f"{header.name!r} is cut off")
    plain.seek(-size % tarfile.BLOCKSIZE, io.SEEK_CUR)
    must(not target.exists(), f"{header.name!r} is there twice")
    make_folder(target.parent)
    target.write_bytes(content)
    return size


@dataclass
class _Race:
    """A submission and its study, which `unpack` writes to ``place``."""

    folder: Path
    place: Path
    records: Path
    shard_dir: Path | None

    @cached_property
    def stated(self) -> dict[str, Any]:
        return _stated(self.folder / SUBMISSION_FILE)

    @cached_property
    def track(self) -> TrackConfig:
        return load_track(self.stated["track"], self.records)

    @cached_property
    def sealed(self) -> dict[str, Any]:
        return list(check_study(self.place).plans.values())[-1]

    @cached_property
    def plan(self) -> Plan:
        return plan_of(self.sealed)

    @cached_property
    def runs(self) -> list[Run]:
        return [load_run(run_dir) for run_dir in check_study(self.place).runs.values()]

    def runs_of(self, side: str) -> list[Run]:
        found = check_study(self.place).runs
        return [
            load_run(run_dir) for (name, _), run_dir in found.items() if name == side
        ]

    def files(self) -> str:
        plain_files(self.folder)
        stated = self.stated["files"]
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        present = {path.relative_to(self.folder).as_posix() for path in paths} - {
            SUBMISSION_FILE
        }
        odd = sorted(present ^ stated.keys())
        must(not odd, f"files are missing or extra: {odd}")
        needed = {
            STUDY_FILE,
            TRACK_FILE,
            "code.diff",
            "environment.txt",
            "card.md",
            "card.json",
        }
        must(needed <= present, f"files are missing: {sorted(needed - present)}")
        changed = [
            name
            for name in stated
            if file_sha256(self.folder / name, _MOST_STUDY_BYTES) != stated[name]
        ]
        must(
            not changed,
            f"changed after the submission was written: {', '.join(changed)}",
        )
        return f"{len(stated)} files as they were written"

    def unpack(self) -> str:
        try:
            return f"{unpacked_study(self.folder / STUDY_FILE, self.place)} bytes"
        except (tarfile.TarError, EOFError, lzma.LZMAError, UnicodeError) as error:
            raise UsageError(f"{STUDY_FILE} can't be unpacked: {error}") from error

    def check_track(self) -> str:
        name = self.stated["track"]
        track_file = tracks(self.records).get(name)
        must(track_file is not None, f"there is no track {name!r}")
        same = read_bytes(self.folder / TRACK_FILE) == read_bytes(track_file)
        must(same, f"{TRACK_FILE} differs from the current track {name}")
        return name

    def check_rules(self) -> str:
        config = self.plan.config
        track = self.track
        sides = (REIGNING, CHALLENGER)
        must(
            config.experiments == sides,
            f"the experiments are not {' and '.join(sides)}",
        )
        must(self.sealed["until"] == "decided", "the study was not run until decided")
        same = (config.level, config.policy) == (track.level, track.clock)
        must(same, "level or clock are not the track's")
        usual = config.most_taken == StudyConfig.most_taken
        must(
            usual,
            f"the machine may take {config.most_taken}, not {StudyConfig.most_taken}",
        )
        for side, experiment in self.plan.experiments.items():
            must(
                not experiment.environment, f"{side} had its own environment variables"
            )
            must(not experiment.seeds, f"{side} had its own seeds")
            _own_statements(self.plan, side, track)

        division = self.sealed["trained"][CHALLENGER]["division"]
        must(
            track.division in ("open", division),
            f"the challenger's division is {division}",
        )
        facts = [
            {n: v for n, v in run.comparability.items() if n not in _NOT_COMPARED}
            for run in self.runs
        ]
        other = [
            fact for fact in facts if fact["validation_references"] != track.validation
        ]
        must(not other, "the validation set is not the track's")
        must(
            all(fact == facts[0] for fact in facts),
            "the runs are not comparable with each other",
        )
        return f"{len(facts)} runs by the rules of the track"

    def check_seeds(self) -> str:
        own = {
            side: _own_statements(self.plan, side, self.track)
            for side in self.plan.experiments
        }
        code = self.sealed["code"]["files"]
        plugged = list(self.sealed["plugins"].values())
        sides = own[REIGNING], own[CHALLENGER]
        drawn = seeds_of(self.stated["track"], *sides, code, plugged)
        must(
            self.plan.config.seeds == drawn,
            "the seeds don't follow from the recipes' hash",
        )
        trained = list(dict.fromkeys(run.seed for run in self.plan.runs))
        must(trained == list(drawn), "the runs have other seeds than the plan")
        return f"{len(drawn)} seeds follow from the sealed recipes"

    def check_turns(self) -> str:
        events = read_events(self.place / STARTS_FILE)
        starts = [event["value"] for event in events if event["key"] == "start"]
        order = list(
            dict.fromkeys((start["seed"], start["experiment"]) for start in starts)
        )
        sides = (REIGNING, CHALLENGER)
        wanted = []
        for number, seed in enumerate(self.plan.config.seeds):
            wanted += [(seed, side) for side in sides[:: -1 if number % 2 else 1]]
        must(
            order == wanted[: len(order)],
            "the two sides did not take turns, seed by seed",
        )
        return f"{len(order)} runs in turns"

    def check_machine(self) -> str:
        facts = [run.system["system"] for run in self.runs]
        other = [
            n for n in _SAME if any(fact.get(n) != facts[0].get(n) for fact in facts)
        ]
        must(not other, f"the runs' machines or software differ in {', '.join(other)}")
        sessions = [_conditions(run) for run in self.runs]
        conditions = [each for of_run in sessions for each in of_run]
        for name in _SAME_CONDITIONS:
            values = [each[name] for each in conditions]
            must(
                all(value == values[0] for value in values), f"the runs' {name} differ"
            )

        return f"{facts[0]['processor']}, {facts[0]['cores']} cores, the same threads"

    def check_against(self) -> str:
        earlier = submissions(self.records, self.stated["track"])
        places = [
            n for n, each in enumerate(earlier) if each["study"] == self.stated["study"]
        ]
        reigning, texts = _reigning(
            self.track, earlier[: places[0]] if places else earlier
        )
        must(self.stated["against"] == reigning, f"{reigning or 'the baseline'} reigned, but the "
             f"study raced {self.stated['against'] or 'the baseline'}: set --records")  # fmt: skip
        must(_own_statements(self.plan, REIGNING, self.track) == texts,
             "the reigning record was trained with other statements than its own")  # fmt: skip
        return reigning or "the baseline"

    def check_verdict(self) -> str:
        decided = decision(self.plan, self.place)
        must(decided.over, f"the race is not decided yet: {decided.verdict}")
        again = json.loads(
            json.dumps(stated_outcome(self.plan, self.place, self.track))
        )
        wrong = [name for name in again if self.stated.get(name) != again[name]]
        must(not wrong, f"{SUBMISSION_FILE} and the runs differ in {', '.join(wrong)}")
        stated = read_object(self.folder / "card.json", "Restore it from a copy.")
        again = json.loads(report([self.place], output_format=CARD_JSON))
        must(again == stated, "card.json has other numbers than the runs give")
        text = read_text(
            self.folder / "card.md", "Restore it from a copy.", _MOST_TEXT_BYTES
        )
        must(
            text == report([self.place], output_format=CARD),
            "card.md is not the runs' card",
        )
        return f"{self.stated['verdict']}: {self.stated['decision']}"

    def check_load(self) -> str | None:
        """Compares what slows a run down or shortens its clock between the two sides."""
        sides = (REIGNING, CHALLENGER)
        decided = decision(self.plan, self.place)
        if self.track.kind != "seconds" or decided.sooner is None:
            return None
        sooner, later = sides if decided.sooner == "first" else sides[::-1]
        fast = _mean_conditions(self.runs_of(sooner))
        slow = _mean_conditions(self.runs_of(later))
        gap_s = slow.seconds - fast.seconds

        allowed = SHARE_OF_GAP * gap_s / slow.seconds
        more = slow.lost - fast.lost
        must(
            more <= allowed,
            f"other work and stops took {100 * more:.1f} % more of {later}'s processors than of "
            f"{sooner}'s, and at most {100 * allowed:.1f} % is allowed. Race on a quiet machine.",
        )
        more_s = fast.start_s - slow.start_s
        must(
            more_s <= SHARE_OF_GAP * gap_s,
            f"before its clock starts, {sooner} takes {more_s:.1f} s longer than {later}, which is "
            f"too much of a gap of {gap_s:.1f} s",
        )
        return (
            f"other work and stops took {100 * fast.lost:.1f} % of {sooner}'s processors and "
            f"{100 * slow.lost:.1f} % of {later}'s; starts took {fast.start_s:.1f} and "
            f"{slow.start_s:.1f} s"
        )

    def check_leaks(self) -> str:
        code = sorted((self.folder / "plugins").glob("*"))
        same = sorted(map(file_sha256, code)) == sorted(self.sealed["plugins"].values())
        must(same, "the files in plugins/ are not those that the plan names")
        remedy = "A submission's code is text."
        files = (*code, self.folder / "code.diff")
        texts = [read_text(path, remedy, _MOST_TEXT_BYTES) for path in files]
        words = _words(" ".join([*texts, *self.stated["statements"]]))
        run = self.runs[0]
        references = {row.reference for row in read_transcripts(run.hypotheses[0])}
        copied = sorted(leaked_transcripts(references, words))
        must(
            not copied,
            f"the code contains the words of the validation transcript {copied[:1]}",
        )
        vocabulary = {
            word for text in references for word in _words(text) if len(word) > 3
        }
        leaked = vocabulary.intersection(words) | vocabulary.intersection(
            w[::-1] for w in words
        )
        many = len(leaked) >= _VOCABULARY[0] and len(leaked) > _VOCABULARY[1] * len(
            vocabulary
        )
        must(
            not many,
            f"the code contains {len(leaked)} of {len(vocabulary)} validation words",
        )
        shared = (run.fact("shared_with_training") or {}).get("utterances")
        must(not shared, f"{shared} recordings are in both training and validation")
        return f"{len(leaked)} of {len(vocabulary)} validation words are in the code"

    def check_data(self) -> str | None:
        if self.shard_dir is None:
            return None
        rows = []
        wanted_hashes = {
            "train": self.track.training,
            "validation": self.track.validation,
        }
        for split, wanted in wanted_hashes.items():
            folder = self.shard_dir / split
            shards_hash(folder)
            rows.append(list(read_manifest(folder, read_index(folder))))
            references = references_hash((row.id, row.text) for row in rows[-1])
            must(references == wanted, f"{split} has other utterances than the track's")

        shared = {}
        for name in ("content", "speaker", "text"):
            train, held_out = ({getattr(row, name) for row in split} for split in rows)
            shared[name] = len((train & held_out) - {""})

        must(
            not shared["content"], f"{shared['content']} recordings are in both splits"
        )
        return f"the splits share {shared['speaker']} speakers and {shared['text']} transcripts"


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def leaked_transcripts(references: Iterable[str], words: Sequence[str]) -> set[str]:
    """Returns the transcripts of 3 or more words that a text has side by side, in any
    order.
    """
    by_length: dict[int, dict[tuple[str, ...], str]] = {}
    for text in references:
        parts = _words(text)
        if len(parts) >= _TELLTALE_WORDS:
            by_length.setdefault(len(parts), {})[tuple(sorted(parts))] = text

    known = {word for texts in by_length.values() for parts in texts for word in parts}
    found = set()
    # Letters may be reversed too.
    plain = [word for word in words if not word.isdigit() or word in known]
    for spelled in (plain, [word[::-1] for word in plain]):
        for length, texts in by_length.items():
            for first in range(len(spelled) - length + 1):
                window = spelled[first : first + length]
                # Nearly all windows of code contain a word that no transcript has.
                if window[0] in known and window[-1] in known:
                    found |= {
                        texts[key] for key in [tuple(sorted(window))] if key in texts
                    }

    return found


@dataclass(frozen=True)
class _Conditions:
    """What may have made runs slower than their recipe is, or their clocks shorter; means."""

    seconds: float  # from the start of the clock to the end
    # The part of the processors' time that others took, or that the run was stopped.
    lost: float
    start_s: float  # from the process's creation to the start of the clock


def _mean_conditions(runs: Sequence[Run]) -> _Conditions:
    counted = [name for name in INTERVALS if name != "init"]
    seconds = []
    lost = []
    starts_s = []
    for run in runs:
        use = host_use(read_host_file(run.path), run.timeline, counted)
        must(use is not None, f"{run.name} has no samples of load")
        known = use.unknown_s <= _MOST_UNKNOWN * use.wall_s
        must(known, f"{run.name} has no samples of load for {use.unknown_s:.0f} s")
        start_s = run.timeline.zero_us / 1e6
        seconds.append(run.wall_s - start_s)
        lost.append(1 - use.share)
        starts_s.append(start_s)

    return _Conditions(fmean(seconds), fmean(lost), fmean(starts_s))


def _conditions(run: Run) -> list[dict[str, Any]]:
    """Returns what decided the speed of each process of a run."""
    found = [run.events[index]["value"] for index in run.timeline.of("conditions")]
    must(
        len(found) >= run.sessions,
        f"{run.name} doesn't say under which conditions it trained",
    )
    return found


# {confidence}: in percent; the intervals are those of the decisions, at the track's
# level
_TABLE = """
| submission | verdict | ratio, {confidence:.4g} % interval | runs each | hash |
|---|---|---|---:|---|"""


def write_table(records: Path) -> None:
    """Writes the table into a folder of records; UsageError if its README.md is someone
    else's.
    """
    page = records / "README.md"
    owned = page.is_file() and read_bytes(page).startswith(_TABLE_BEGINS.encode())
    claim = "page that tfasr record --table wrote"
    check_owned(records, "--records", claim, [page.name], owned=owned)
    must(records.is_dir(), f"--records must be a folder. Received: {records}.")
    write_whole(page, records_table(records))


def records_table(records: Path) -> str:
    """Returns the table of all submissions in a folder, ties and refuted ones included."""
    lines = [f"{_TABLE_BEGINS} from the submissions here."]
    for name in tracks(records):
        track = load_track(name, records)
        about = f"Track {markdown_text(name)}: {track.kind}, {track.division} division."
        lines.append(f"\n## {markdown_text(track.title)}\n\n{about}")
        lines.append(_TABLE.format(confidence=100 * (1 - track.level)))
        baseline = ", ".join(Path(file).stem for file in track.baseline)
        lines.append(f"| {markdown_text(baseline)} | baseline | | | |")
        for each in submissions(records, name):
            place = urllib.parse.quote(f"{name}/{each['folder']}/card.md")
            link = f"[{markdown_text(each['folder'])}]({place})"
            ends = each["interval"]
            ratio = "n/a" if each["ratio"] is None else f"{each['ratio']:.3f}"
            ratio += f", {ends[0]:.3f} to {ends[1]:.3f}" if ends else ""
            cells = (
                link,
                each["verdict"],
                ratio,
                str(each["runs"]),
                f"`{each['study'][:16]}`",
            )
            lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines) + "\n"
