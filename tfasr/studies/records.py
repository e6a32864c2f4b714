"""Records: a track sets a target; a challenger that reaches it sooner becomes the new record.

A submission is a folder: ``submission.json`` with the SHA-256 of every other file, ``track.gin``,
``study.tar.xz`` (the study that trained the reigning record and its challenger in turns, without
checkpoints), ``plugins/``, ``code.diff``, ``environment.txt``, ``card.md`` and ``card.json``.
"""

import importlib.metadata
import io
import json
import lzma
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tfasr._version import __version__
from tfasr.data.manifest import file_sha256, read_index, read_manifest
from tfasr.errors import UsageError, did_you_mean
from tfasr.kit.config import config_class, require
from tfasr.kit.files import (
    GIN_GIVEN_FILE,
    MOST_BYTES,
    check_owned,
    make_folder,
    read_object,
    write_whole,
)
from tfasr.kit.gin import fill, make, presets_folder, read_gin
from tfasr.kit.registry import plugins
from tfasr.ledger.declared import STARTS_FILE, canonical, check_study, sha256
from tfasr.ledger.events import chain_of, read_events
from tfasr.reports.write import CARD, CARD_JSON, report
from tfasr.scoring.errors import read_transcripts
from tfasr.studies.perform import decision, decision_text, study
from tfasr.studies.plan import Plan, plan_of
from tfasr.studies.verify import Check, judged, must, references_hash, shards_hash, verify_study
from tfasr.tta.comparison import LOOKS
from tfasr.tta.policies import WINDOW
from tfasr.tta.run import Run, load_run

REIGNING, CHALLENGER = "reigning", "challenger"
SUBMISSION_FILE, STUDY_FILE, TRACK_FILE = "submission.json", "study.tar.xz", "track.gin"
_LEFT_OUT = ("checkpoints", "logs", "corpus", "shards", "report", "at_work", "lock", "cpu.csv")
_LEFT_OUT += ("gpu.csv", "heartbeat", "progress.json")
_SAME = ("host", "processor", "cores", "memory_bytes", "gpus", "python", "packages", "platform")
RULES = ("track", "rules", "turns", "machine", "against", "verdict", "leaks", "data")
_NOT_COMPARED = ("hash", "batch_statistics", "division")
_SEEDS = tuple(range(1, LOOKS[-1] + 1))
_TELLTALE_WORDS = 3  # validation transcripts of 3 or more words must not be in the code
_VOCABULARY = (30, 0.5)  # nor 30 of their words over 3 letters, if that is over half of them


@config_class
class TrackConfig:
    """What the reigning record and its challenger share: data, target, and what is compared."""

    title: str = ""  # the heading in the table of records
    corpus: str = ""  # "synthetic" makes the demo's speech; "" needs ``--shard_dir``
    training: str = ""  # the hash of the training split's ids and transcripts
    validation: str = ""  # the hash of the validation split's ids and transcripts
    metric: str = "cer"  # the target's error rate
    target: float = 0.1  # a fraction
    window: int = WINDOW  # the number of evaluations whose median must meet the target
    decoder: str = "greedy"  # decodes the evaluations
    division: str = "open"  # "closed" allows only the paper's model and optimizer
    # what is compared: "seconds" (runs take turns on one machine) or "utterances" (any machine)
    kind: str = "seconds"
    policy: str = "paper"  # how seconds are counted if the kind is "seconds"
    level: float = 0.01  # the largest probability of a verdict between equally fast recipes
    baseline: tuple[str, ...] = ()  # presets to beat until there is a record
    baseline_hash: str = ""  # hash of their gin statements: shows whether a preset has changed

    def check(self) -> None:
        require(self.kind in ("seconds", "utterances"), self, "kind", "'seconds' or 'utterances'")
        require(self.division in ("open", "closed"), self, "division", "'open' or 'closed'")
        require(bool(self.baseline), self, "baseline", "at least one preset")

    @property
    def bindings(self) -> list[str]:
        """Bindings that both sides train with, after their own."""
        return [
            f"TrainingConfig.targets = [({self.metric!r}, {self.target!r})]",
            f"TrainingConfig.target_window = {self.window}",
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
    config = fill(read_gin([str(by_name[name])]), partial(make, TrackConfig)).configs
    # A track in --records may have its baseline's presets in its own folder.
    near = (by_name[name].parent / file for file in config.baseline)
    files = zip(near, config.baseline, strict=True)
    return replace(config, baseline=tuple(str(n) if n.is_file() else f for n, f in files))


def statements(files: Sequence[str], bindings: Sequence[str] = ()) -> list[str]:
    return [statement.text for statement in read_gin(files, bindings).statements]


def statements_hash(texts: Sequence[str]) -> str:
    return sha256(canonical(list(texts)))[:16]


def submissions(records: Path, track: str) -> list[dict[str, Any]]:
    """Returns a track's accepted submissions, oldest first, each with its folder's name."""
    files = sorted((records / track).glob(f"*/{SUBMISSION_FILE}"))
    return [{**read_object(path, "Restore it."), "folder": path.parent.name} for path in files]


def _reigning(track: TrackConfig, earlier: Sequence[dict[str, Any]]) -> tuple[str, list[str]]:
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

    Raises UsageError if the track, a preset or the folder is wrong; RunError if a training failed.
    """
    track = load_track(name, records)
    against, reigning = _reigning(track, submissions(records, name))
    statements(gin_files, bindings)  # raises if gin can't be read, before anything is written
    folder, out = run_dir / "study", run_dir / "submission"
    check_owned(run_dir, "--run_dir", f"{folder.name} of tfasr record",
                (folder.name, out.name), owned=(folder / "study.json").exists())  # fmt: skip
    make_folder(run_dir)
    write_whole(run_dir / f"{REIGNING}.gin", "\n".join(reigning) + "\n")
    # The baseline stays in its own files: a binding that a later file leaves unused is dropped, but
    # in a single file it would be an error.
    files = {REIGNING: (f"{REIGNING}.gin",) if against else track.baseline}
    files[CHALLENGER], more = tuple(gin_files), {REIGNING: (), CHALLENGER: tuple(bindings)}
    lines = [
        f"StudyConfig.title = {track.title!r}",
        f"StudyConfig.experiments = ({REIGNING!r}, {CHALLENGER!r})",
        f"StudyConfig.corpus = {track.corpus if shard_dir is None else ''!r}",
        f"StudyConfig.policy = {track.clock!r}",
        f"StudyConfig.level = {track.level!r}",
    ]
    for side in (REIGNING, CHALLENGER):
        lines.append(f"{side}/ExperimentConfig.gin_files = {files[side]!r}")
        lines.append(f"{side}/ExperimentConfig.bindings = {(*more[side], *track.bindings)!r}")
    write_whole(run_dir / "race.gin", "\n".join(lines) + "\n")
    study(str(run_dir / "race.gin"), run_dir=folder, shard_dir=shard_dir,
          resume=resume, until="decided")  # fmt: skip
    make_folder(out)
    write_whole(out / TRACK_FILE, tracks(records)[name].read_bytes())
    _write_submission(folder, out, name, track, against)
    return out


def _write_submission(folder: Path, out: Path, name: str, track: TrackConfig, against: str) -> None:
    plan = plan_of(list(check_study(folder).plans.values())[-1])
    make_folder(out / "plugins")
    write_whole(out / STUDY_FILE, pack(folder))
    for plugin in plugins():
        write_whole(out / "plugins" / Path(plugin.file).name, Path(plugin.file).read_bytes())
    write_whole(out / "code.diff", _code_diff())
    installed = {f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}
    write_whole(out / "environment.txt", "\n".join(sorted(installed)) + "\n")
    for file, kind in (("card.md", CARD), ("card.json", CARD_JSON)):
        write_whole(out / file, report([folder], output_format=kind))
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.name != SUBMISSION_FILE)
    content = {
        "track": name,
        "tfasr": __version__,
        "against": against,
        **_outcome(plan, folder, track),
        "files": {path.relative_to(out).as_posix(): file_sha256(path) for path in files},
    }
    write_whole(out / SUBMISSION_FILE, json.dumps(content, indent=1) + "\n")


def _outcome(plan: Plan, folder: Path, track: TrackConfig) -> dict[str, Any]:
    decided = decision(plan, folder)
    compared = decided.comparison
    run = next(run for run in plan.runs if run.experiment == CHALLENGER)
    # The challenger's statements that had an effect: the recipe to train again in the next race.
    effective = statements([str(folder / run.folder / GIN_GIVEN_FILE)])[: -len(track.bindings) - 1]
    return {
        "verdict": {"first": "refuted", "second": "record", None: "undecided"}[decided.sooner],
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
        must(texts[-len(last) :] == last, f"{side}: its gin doesn't end with the track's bindings")
        per_seed.append(texts[: -len(last)])
    must(all(texts == per_seed[0] for texts in per_seed), f"{side}: runs differ beyond the seed")
    return per_seed[0]


def pack(folder: Path) -> bytes:
    """Returns the study as an archive; equal contents give equal bytes."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file())
    members = [p for p in paths if not {*p.relative_to(folder).parts} & {*_LEFT_OUT}]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
        for path in sorted(members, key=lambda p: (p.suffix, p.name, str(p))):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    return packed.getvalue()


def _code_diff() -> str:
    package = Path(__file__).parents[1]
    command = ["git", "-C", str(package), "diff", "HEAD", "--", str(package)]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "tfasr is installed, not a git checkout: environment.txt has its version.\n"


def verify_submission(
    folder: Path, shard_dir: Path | None = None, records: Path = Path("records")
) -> Iterator[Check]:
    """Checks a submission's files, its study, and the rules of its track."""
    with tempfile.TemporaryDirectory() as unpacked:
        race = _Race(folder, Path(unpacked), records, shard_dir)
        yield judged("files", race.files)
        packed = judged("study", race.unpack)
        yield packed
        if not packed.passed:
            return
        for name in RULES:
            yield judged(name, getattr(race, f"check_{name}"))
        for check in verify_study(race.place, shard_dir):
            needed = check.passed is None and check.name.endswith((", scores", ", settings"))
            yield Check(check.name, False, "the data to check it is missing") if needed else check


@dataclass
class _Race:
    """A submission and its study, which `unpack` writes to ``place``."""

    folder: Path
    place: Path
    records: Path
    shard_dir: Path | None

    @cached_property
    def stated(self) -> dict[str, Any]:
        needed = ("files", "track", "verdict", "statements")
        return read_object(self.folder / SUBMISSION_FILE, "Restore it from a copy.", needed)

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

    def files(self) -> str:
        stated = self.stated["files"]
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        present = {path.relative_to(self.folder).as_posix() for path in paths} - {SUBMISSION_FILE}
        odd = sorted(present ^ stated.keys())
        must(not odd, f"files are missing or extra: {odd}")
        changed = [name for name in stated if file_sha256(self.folder / name) != stated[name]]
        must(not changed, f"changed after the submission was written: {', '.join(changed)}")
        return f"{len(stated)} files as they were written"

    def unpack(self) -> str:
        try:
            with tarfile.open(self.folder / STUDY_FILE, "r:xz") as archive:
                return f"{self._unpacked(archive)} bytes"
        except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
            raise UsageError(f"{STUDY_FILE} can't be unpacked: {error}") from error

    def _unpacked(self, archive: tarfile.TarFile) -> int:
        size = 0
        for member in archive:  # one by one: an archive bomb is stopped before it is unpacked
            size, target = size + member.size, (self.place / member.name).resolve()
            inside = member.isfile() and target.is_relative_to(self.place.resolve())
            must(inside and size < MOST_BYTES, f"{member.name} is too large or outside the study")
            make_folder(target.parent)
            target.write_bytes(archive.extractfile(member).read())
        return size

    def check_track(self) -> str:
        name = self.stated["track"]
        track_file = tracks(self.records).get(name)
        must(track_file is not None, f"there is no track {name!r}")
        same = (self.folder / TRACK_FILE).read_bytes() == track_file.read_bytes()
        must(same, f"{TRACK_FILE} differs from the current track {name}")
        return name

    def check_rules(self) -> str:
        config, track = self.plan.config, self.track
        sides = (REIGNING, CHALLENGER)
        must(config.experiments == sides, f"the experiments are not {' and '.join(sides)}")
        must(config.seeds == _SEEDS, "the seeds are not the track's")
        must(self.sealed["until"] == "decided", "the study was not run until decided")
        same = (config.level, config.policy) == (track.level, track.clock)
        must(same, "level or clock are not the track's")
        for side, experiment in self.plan.experiments.items():
            must(not experiment.environment, f"{side} had its own environment variables")
            must(not experiment.seeds, f"{side} had its own seeds")
            _own_statements(self.plan, side, track)
        division = self.sealed["trained"][CHALLENGER]["division"]
        must(track.division in ("open", division), f"the challenger's division is {division}")
        facts = [
            {n: v for n, v in run.comparability.items() if n not in _NOT_COMPARED}
            for run in self.runs
        ]
        other = [fact for fact in facts if fact["validation_references"] != track.validation]
        must(not other, "the validation set is not the track's")
        must(all(fact == facts[0] for fact in facts), "the runs are not comparable with each other")
        return f"{len(facts)} runs by the rules of the track"

    def check_turns(self) -> str:
        events = read_events(self.place / STARTS_FILE)
        starts = [event["value"] for event in events if event["key"] == "start"]
        order = list(dict.fromkeys((start["seed"], start["experiment"]) for start in starts))
        sides = (REIGNING, CHALLENGER)
        wanted = [(seed, side) for seed in _SEEDS for side in sides[:: 1 if seed % 2 else -1]]
        must(order == wanted[: len(order)], "the two sides did not take turns, seed by seed")
        return f"{len(order)} runs in turns"

    def check_machine(self) -> str:
        facts = [run.system["system"] for run in self.runs]
        other = [n for n in _SAME if any(fact.get(n) != facts[0].get(n) for fact in facts)]
        must(not other, f"the runs' machines or software differ in {', '.join(other)}")
        return f"{facts[0]['processor']}, {facts[0]['cores']} cores"

    def check_against(self) -> str:
        earlier = submissions(self.records, self.stated["track"])
        places = [n for n, each in enumerate(earlier) if each["study"] == self.stated["study"]]
        reigning, texts = _reigning(self.track, earlier[: places[0]] if places else earlier)
        must(self.stated["against"] == reigning, f"{reigning or 'the baseline'} reigned, but the "
             f"study raced {self.stated['against'] or 'the baseline'}: set --records")  # fmt: skip
        must(_own_statements(self.plan, REIGNING, self.track) == texts,
             "the reigning record was trained with other statements than its own")  # fmt: skip
        return reigning or "the baseline"

    def check_verdict(self) -> str:
        decided = decision(self.plan, self.place)
        must(decided.over, f"the race is not decided yet: {decided.verdict}")
        again = json.loads(json.dumps(_outcome(self.plan, self.place, self.track)))
        wrong = [name for name in again if self.stated.get(name) != again[name]]
        must(not wrong, f"{SUBMISSION_FILE} and the runs differ in {', '.join(wrong)}")
        stated = read_object(self.folder / "card.json", "Restore it from a copy.")
        again = json.loads(report([self.place], output_format=CARD_JSON))
        must(again == stated, "card.json has other numbers than the runs give")
        return f"{self.stated['verdict']}: {self.stated['decision']}"

    def check_leaks(self) -> str:
        code = sorted((self.folder / "plugins").glob("*"))
        same = sorted(map(file_sha256, code)) == sorted(self.sealed["plugins"].values())
        must(same, "the files in plugins/ are not those that the plan names")
        texts = [p.read_text(encoding="utf-8") for p in (*code, self.folder / "code.diff")]
        words = re.findall(r"\w+(?:'\w+)*", " ".join([*texts, *self.stated["statements"]]).lower())
        joined, run = f" {' '.join(words)} ", self.runs[0]
        references = {row.reference for row in read_transcripts(run.hypotheses[0])}
        long = (text for text in references if len(text.split()) >= _TELLTALE_WORDS)
        copied = [text for text in long if f" {text} " in joined]
        must(not copied, f"the code contains the validation transcript {copied[:1]}")
        vocabulary = {word for text in references for word in text.split() if len(word) > 3}
        leaked = vocabulary.intersection(words)
        many = len(leaked) >= _VOCABULARY[0] and len(leaked) > _VOCABULARY[1] * len(vocabulary)
        must(not many, f"the code contains {len(leaked)} of {len(vocabulary)} validation words")
        shared = (run.fact("shared_with_training") or {}).get("utterances")
        must(not shared, f"{shared} recordings are in both training and validation")
        return f"{len(leaked)} of {len(vocabulary)} validation words are in the code"

    def check_data(self) -> str | None:
        if self.shard_dir is None:
            return None
        rows = []
        wanted_hashes = {"train": self.track.training, "validation": self.track.validation}
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
        must(not shared["content"], f"{shared['content']} recordings are in both splits")
        return f"the splits share {shared['speaker']} speakers and {shared['text']} transcripts"


_TABLE = """
| submission | verdict | ratio, 95 % interval | runs each | hash |
|---|---|---|---:|---|"""


def records_table(records: Path) -> str:
    """Returns the table of all submissions in a folder, ties and refuted ones included."""
    lines = ["# Records\n\n`tfasr record --table` writes this page from the submissions here."]
    for name in tracks(records):
        track = load_track(name, records)
        about = f"Track `{name}`: {track.kind}, {track.division} division."
        lines += [f"\n## {track.title}\n\n{about}", _TABLE]
        baseline = ", ".join(Path(file).stem for file in track.baseline)
        lines.append(f"| {baseline} | baseline | | | |")
        for each in submissions(records, name):
            link, ends = f"[{each['folder']}]({name}/{each['folder']}/card.md)", each["interval"]
            ratio = "n/a" if each["ratio"] is None else f"{each['ratio']:.3f}"
            ratio += f", {ends[0]:.3f} to {ends[1]:.3f}" if ends else ""
            cells = (link, each["verdict"], ratio, str(each["runs"]), f"`{each['study']}`")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
