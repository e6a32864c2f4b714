"""Cases of `campaigns.hostile`: what a hurried, unlucky or hostile user types, and the answer.

``{name}`` stands for the path of what the campaign has prepared: ``{corpus}``,
``{shards}``, ``{run}``, ``{recorded}``, ``{export}``, ``{each_step}`` (a gin file),
``{study}`` (another), ``{words}`` (a lexicon), ``{wav}`` (a recording), ``{presets}``;
``{w}`` is the folder of these. In ``{p}``, the case's own folder, ``mine/text.txt`` is
a file of the user.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = "command"
PYTHON = "python"
SHELL = "shell"
HTTP = "http"


@dataclass(frozen=True)
class Case:
    """A hostile case.

    Attributes:
        name: what is hostile about it.
        words: a command of tfasr; the text of a program; a shell's line; or a request.
        statuses: the expected exit statuses, or for a request the expected HTTP
            statuses.
        facts: texts that the answer must contain, in upper or lower case.
        make: a function that prepares the case's folder; its arguments are this folder
            and the campaign's `World`.
        kind: COMMAND, PYTHON, SHELL or HTTP.
        changes: names below the folder that may change.
    """

    name: str
    words: str | bytes
    statuses: tuple[int, ...] = (2,)
    facts: tuple[str, ...] = ()
    make: Callable[[Path, Any], object] | None = None
    kind: str = COMMAND
    changes: tuple[str, ...] = ()


TRAIN = "train --gin_file {each_step} --shard_dir {shards} --no_memory_probe --run_dir {p}/run"
DRY = f"{TRAIN} --dry_run"
_EVALUATE = "evaluate --run_dir {run} --split validation"
_PREPARE = "prepare --gin_file {each_step} --num_workers 1 --shard_dir {p}/shards"
TSV = f"{_PREPARE} --corpus tsv --corpus_dir {{p}}/corpus --split train --manifest train.tsv"
DONE = (0,)
_FAILED = (1,)
REFUSED = (2,)


def rows(prefix: str, *rows: tuple, **common: Any) -> list[Case]:
    """Returns a case for each row: name, words, and optionally statuses and facts."""
    cases = []
    for name, words, *more in rows:
        statuses = more[0] if more else REFUSED
        facts = tuple(more[1:])
        cases.append(Case(f"{prefix}: {name}", words, statuses, facts, **common))

    return cases


def _copied(name: str) -> Callable[[Path, Any], None]:
    return lambda place, world: shutil.copytree(world.folder / name, place / name)


def _edited(
    name: str, file: str, edit: Callable[[bytes], bytes]
) -> Callable[[Path, Any], None]:
    """Returns a function that copies a folder of the world and edits one of its files."""

    def make(place: Path, world: Any) -> None:
        _copied(name)(place, world)
        path = place / name / file
        path.write_bytes(edit(path.read_bytes()))

    return make


def _instead(
    name: str, file: str, put: Callable[[Path], object]
) -> Callable[[Path, Any], None]:
    """Returns a function that copies a folder of the world and replaces one of its files."""

    def make(place: Path, world: Any) -> None:
        _copied(name)(place, world)
        path = place / name / file
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

        put(path)

    return make


def _file(name: str, content: str | bytes) -> Callable[[Path, Any], None]:
    data = content.encode() if isinstance(content, str) else content

    def make(place: Path, world: Any) -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)

    return make


def _fifo(name: str) -> Callable[[Path, Any], None]:
    return lambda place, world: os.mkfifo(place / name)


def _sparse(name: str, size: int) -> Callable[[Path, Any], None]:
    def make(place: Path, world: Any) -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        with (place / name).open("wb") as file:
            file.truncate(size)

    return make


def corpus(lines: str | bytes, **files: bytes) -> Callable[[Path, Any], None]:
    """Returns a function that makes a tsv corpus of these lines; ``a.wav`` is a good
    recording.
    """

    def make(place: Path, world: Any) -> None:
        folder = place / "corpus"
        folder.mkdir()
        content = lines if isinstance(lines, bytes) else lines.encode()
        (folder / "train.tsv").write_bytes(content)
        shutil.copy(
            world.folder / "corpus" / "audio" / "train-00.wav", folder / "a.wav"
        )
        for name, data in files.items():
            (folder / name.replace("_", ".")).write_bytes(data)

    return make


def _json_edited(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **changes}).encode()


def wav(rate_hz: int = 16000, seconds: float = 0.1, channels: int = 1) -> bytes:
    data = b"\0\0" * int(rate_hz * seconds) * channels
    head = struct.pack(
        "<HHIIHH", 1, channels, rate_hz, rate_hz * 2, 2 * channels % 65536, 16
    )
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


EMPTY = rows(
    "an empty argument",
    ("evaluate --out", f"{_EVALUATE} --out ''", REFUSED, "--out"),
    ("evaluate --hypotheses", f"{_EVALUATE} --hypotheses ''", REFUSED, "--hypotheses"),
    ("evaluate --run_dir", "evaluate --run_dir '' --split validation", REFUSED, "--run_dir"),
    ("evaluate --split", "evaluate --run_dir {run} --split ''", REFUSED, "--split"),
    ("evaluate --shard_dir", f"{_EVALUATE} --shard_dir ''", REFUSED, "--shard_dir"),
    ("evaluate --checkpoint", f"{_EVALUATE} --checkpoint ''", REFUSED, "--checkpoint"),
    ("evaluate --lexicon", f"{_EVALUATE} --decoder word_beam --lexicon ''", REFUSED, "--lexicon"),
    ("evaluate --language_model", f"{_EVALUATE} --decoder word_beam --language_model ''",
     REFUSED, "--language_model"),
    ("export --out", "export --to onnx --run_dir {run} --out ''", REFUSED, "--out"),
    ("export --run_dir", "export --to onnx --run_dir '' --out {p}/o", REFUSED, "--run_dir"),
    ("ngram --out", "ngram --shard_dir {shards} --out ''", REFUSED, "--out"),
    ("ngram --shard_dir", "ngram --shard_dir '' --out {p}/a.arpa", REFUSED, "--shard_dir"),
    ("report --out", "report {run} --out ''", REFUSED, "--out"),
    ("report RUN_DIR", "report ''", REFUSED, "run_dir"),
    ("report --hardware", "report {run} --hardware ''", REFUSED, "--hardware"),
    ("report --target", "report {run} --target ''", REFUSED, "--target"),
    ("history --out", "report --history {w} --force --target cer=0.9 --out ''", REFUSED, "--out"),
    ("history folder", "report --history ''", REFUSED, "RUN_DIR"),
    ("watch RUN_DIR", "watch --once ''", REFUSED, "run_dir"),
    ("transcribe --out", "transcribe {wav} --run_dir {export} --out ''", REFUSED, "--out"),
    ("transcribe FILE", "transcribe '' --run_dir {export}", REFUSED, "FILE"),
    ("transcribe --run_dir", "transcribe {wav} --run_dir ''", REFUSED, "--run_dir"),
    ("serve --run_dir", "serve --run_dir '' --port 0", REFUSED, "--run_dir"),
    ("serve --host", "serve --run_dir {export} --port 0 --host ''", REFUSED, "--host"),
    ("serve --allow_host", "serve --run_dir {export} --port 0 --allow_host ''", REFUSED,
     "--allow_host"),
    ("train --run_dir", "train --gin_file {each_step} --shard_dir {shards} --run_dir ''", REFUSED,
     "--run_dir"),
    ("train --shard_dir", "train --gin_file {each_step} --shard_dir '' --run_dir {p}/run", REFUSED,
     "--shard_dir"),
    ("train --gin_file", "train --gin_file '' --shard_dir {shards} --run_dir {p}/run", REFUSED,
     "--gin_file"),
    ("train --cluster", f"{TRAIN} --cluster ''", REFUSED, "--cluster"),
    ("train --lexicon", f"{TRAIN} --lexicon ''", REFUSED, "--lexicon"),
    ("prepare --shard_dir", "prepare --corpus tsv --corpus_dir {corpus} --shard_dir ''", REFUSED,
     "--shard_dir"),
    ("prepare --corpus_dir", f"{_PREPARE} --corpus tsv --corpus_dir ''", REFUSED, "--corpus_dir"),
    ("prepare --split", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split ''", REFUSED,
     "--split"),
    ("prepare --manifest", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split train "
     "--manifest ''", REFUSED, "--manifest"),
    ("prepare --scheduler", "prepare --corpus tsv --corpus_dir {corpus} --shard_dir {p}/s "
     "--scheduler ''", REFUSED, "--scheduler"),
    ("study --run_dir", "study --gin_file {study} --shard_dir {shards} --run_dir ''", REFUSED,
     "--run_dir"),
    ("study --gin_file", "study --gin_file '' --run_dir {p}/s", REFUSED, "--gin_file"),
    ("demo --demo_dir", "demo --demo_dir ''", REFUSED, "--demo_dir"),
    ("doctor --out", "doctor --out ''", REFUSED, "--out"),
    ("bench --out", "bench step --gin_file {each_step} --out ''", REFUSED, "--out"),
    ("bench decoder --save_log_probs", "bench decoder --run_dir {run} --split validation "
     "--save_log_probs ''", REFUSED, "--save_log_probs"),
    ("bench decoder --log_probs", "bench decoder --log_probs ''", REFUSED, "--log_probs"),
)  # fmt: skip

BINDINGS = [
    Case(
        f"a binding: {binding}",
        f'{DRY} --gin_binding "{binding}"',
        statuses,
        facts,
    )
    for binding, statuses, *facts in (
        ("TrainingConfig.epochs = 0", REFUSED, "epochs"),
        ("TrainingConfig.epochs = -1", REFUSED, "epochs"),
        ("TrainingConfig.epochs = 2.5", REFUSED, "epochs"),
        ("TrainingConfig.epochs = 'three'", REFUSED, "epochs"),
        ("TrainingConfig.epochs = None", REFUSED, "epochs"),
        ("TrainingConfig.epochs = True", REFUSED, "epochs"),
        ("TrainingConfig.epochs = [3]", REFUSED, "epochs"),
        ("TrainingConfig.seed = -1", REFUSED, "seed"),
        ("TrainingConfig.seed = 1e400", REFUSED, "seed"),
        (
            "TrainingConfig.checkpoint_every_steps = -1",
            REFUSED,
            "checkpoint_every_steps",
        ),
        (
            "TrainingConfig.checkpoint_every_steps = 0.5",
            REFUSED,
            "checkpoint_every_steps",
        ),
        ("TrainingConfig.keep_checkpoints = 0", REFUSED, "keep_checkpoints"),
        ("TrainingConfig.target_window = 0", REFUSED, "target_window"),
        ("TrainingConfig.targets = 'cer=0.1'", REFUSED, "targets"),
        ("TrainingConfig.targets = [('cer',)]", REFUSED, "targets"),
        ("TrainingConfig.targets = [('cer', 'low')]", REFUSED, "cer"),
        ("TrainingConfig.targets = [('cer', 1.5)]", REFUSED, "cer"),
        ("TrainingConfig.targets = [('beauty', 0.5)]", REFUSED, "beauty"),
        ("TrainingConfig.targets = 7", REFUSED, "targets"),
        ("TrainingConfig.optimizer = None", REFUSED, "optimizer"),
        ("TrainingConfig.optimizer = 'adam'", REFUSED, "optimizer"),
        ("TrainingConfig.optimizer = @Nothing", REFUSED, "Nothing"),
        ("Adam.learning_rate = 'fast'", REFUSED, "learning_rate"),
        ("Adam.learning_rate = 1e400", REFUSED, "learning_rate"),
        ("Adam.beta_1 = 2.0", (0, 2)),
        ("Adam.no_such_thing = 1", REFUSED, "no_such_thing"),
        ("PipelineConfig.global_batch_size = 0", REFUSED, "global_batch_size"),
        ("PipelineConfig.global_batch_size = 3.5", REFUSED, "global_batch_size"),
        ("PipelineConfig.num_readers = 0", REFUSED, "num_readers"),
        ("PipelineConfig.num_readers = 100000000", REFUSED, "num_readers"),
        ("PipelineConfig.shuffle_buffer = -1", REFUSED, "shuffle_buffer"),
        ("PipelineConfig.prefetch = -2", REFUSED, "prefetch"),
        ("PipelineConfig.num_buckets = 0", REFUSED, "num_buckets"),
        ("PipelineConfig.num_buckets = 10000000", REFUSED, "num_buckets"),
        ("PipelineConfig.max_frames = 0", REFUSED, "max_frames"),
        (
            "PipelineConfig.batch_size_schedule = ((1,),)",
            REFUSED,
            "batch_size_schedule",
        ),
        (
            "PipelineConfig.batch_size_schedule = ((2, 8), (1, 4))",
            REFUSED,
            "batch_size_schedule",
        ),
        ("PipelineConfig.batch_size_schedule = 5", REFUSED, "batch_size_schedule"),
        ("AcousticModelConfig.conv_kernel = 0", REFUSED, "conv_kernel"),
        ("AcousticModelConfig.conv_kernel = 100000000", REFUSED, "frames"),
        ("AcousticModelConfig.conv_stride = 0", REFUSED, "conv_stride"),
        ("AcousticModelConfig.conv_stride = 100000", REFUSED, "stride"),
        ("AcousticModelConfig.num_lstm_layers = -1", REFUSED, "num_lstm_layers"),
        ("AcousticModelConfig.lstm_units = 0", REFUSED, "lstm_units"),
        ("AcousticModelConfig.dropout = 1.0", REFUSED, "dropout"),
        ("AcousticModelConfig.dropout = -0.1", REFUSED, "dropout"),
        ("AcousticModelConfig.dropout = 'much'", REFUSED, "dropout"),
        ("FeatureConfig.num_mel_bins = 9", REFUSED, "shards"),
        ("FeatureConfig.num_mfcc = 0", REFUSED, "num_mfcc"),
        ("FeatureConfig.num_mfcc = 99", REFUSED, "num_mfcc"),
        ("FeatureConfig.step_samples = 0", REFUSED, "step_samples"),
        ("FeatureConfig.window_samples = -5", REFUSED, "window_samples"),
        ("FeatureConfig.sample_rate_hz = 0", REFUSED, "sample_rate_hz"),
        ("FeatureConfig.lower_edge_hz = 9000.0", REFUSED, "edge_hz"),
        ("FeatureConfig.upper_edge_hz = 1e9", REFUSED, "upper_edge_hz"),
        ("DecoderConfig.name = 'wizard'", REFUSED, "wizard"),
        ("DecoderConfig.name = None", REFUSED, "name"),
        ("DecoderConfig.beam_width = 1.5", REFUSED, "beam_width"),
        ("AugmentationConfig.time_masks = -1", REFUSED, "time_masks"),
        ("AugmentationConfig.time_mask_fraction = 2.0", REFUSED, "time_mask_fraction"),
        ("AugmentationConfig.tempo_change = 1.0", REFUSED, "tempo_change"),
        ("AugmentationConfig.frequency_mask_bins = -4", REFUSED, "frequency_mask_bins"),
        ("AugmentationConfig.from_epoch = 0", REFUSED, "from_epoch"),
        ("x = %x", REFUSED, "x"),
        ("TrainingConfig.epochs = %missing", REFUSED, "missing"),
        ("a = %b\nb = %a\nTrainingConfig.epochs = %a", REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs = %a\na = [%a]", REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs", REFUSED, "--gin_binding"),
        ("= 5", REFUSED, "--gin_binding"),
        ("epochs = 5", REFUSED, "epochs"),
        ("import os; os.remove('mine/text.txt')", REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs = __import__('os').getpid()", REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs = 3 TrainingConfig.seed = 4", REFUSED, "--gin_binding"),
    )
]

NUMBERS = rows(
    "a number",
    *(
        (f"watch --every_s {value}", f"watch {{run}} --every_s {value}", REFUSED, "--every_s")
        for value in ("nan", "inf", "-1", "0", "1e300", "1e10")
    ),
    *(
        (f"report --window {value}", f"report {{run}} --window {value}", REFUSED, "window")
        for value in ("0", "-3", "1.5", "many")
    ),
    ("report --window 10^30", f"report {{run}} --target cer=0.9 --window 1{'0' * 30}", DONE),
    *(
        (f"report --target {value}", f"report {{run}} --target {value}", REFUSED, "target")
        for value in ("cer", "cer=", "=0.1", "cer=nan", "cer=-0.1", "cer=10", "cer=0.1=0.2",
                      "cer=0x1", "beauty=1", "cer=1e400")
    ),
    *(
        (f"report --price_usd_per_hour {value}",
         f"report {{run}} --hardware paper_sys1 --price_usd_per_hour={value}", REFUSED, "price")
        for value in ("-1", "nan", "inf")
    ),
    ("report --worst -1", "report {run} --errors --worst -1", REFUSED, "--worst"),
    ("report --worst 10^12", "report {run} --errors --worst 1000000000000", DONE),
    *(
        (f"serve --port {value}", f"serve --run_dir {{export}} --port={value}", REFUSED, "--port")
        for value in ("-1", "65536", "http", "80.5")
    ),
    *(
        (f"serve --{flag} {value}", f"serve --run_dir {{export}} --port 0 --{flag}={value}",
         REFUSED, flag)
        for flag, value in (("max_streams", "0"), ("max_streams", "10000000000"),
                            ("idle_s", "nan"), ("idle_s", "-1"), ("max_upload_mb", "inf"),
                            ("max_upload_s", "0"), ("max_stream_s", "1e400"))
    ),
    ("transcribe --batch_size 0", "transcribe {wav} --run_dir {export} --batch_size 0", REFUSED,
     "--batch_size"),
    ("transcribe --batch_size 10^12", "transcribe {wav} --run_dir {export} --batch_size "
     "1000000000000", DONE),
    ("transcribe --beam_width -1", "transcribe {wav} --run_dir {export} --decoder beam "
     "--beam_width=-1", REFUSED, "beam_width"),
    *(
        (f"ngram --order {value}", f"ngram --shard_dir {{shards}} --order={value} --out {{p}}/a",
         REFUSED, "order")
        for value in ("0", "-1", "1000000", "2.5")
    ),
    *(
        (f"evaluate --lm_weight {value} without a model", f"{_EVALUATE} --lm_weight={value}",
         REFUSED, "--language_model")
        for value in ("1", "nan")
    ),
    *(
        (f"prepare --max_bad_fraction {value}", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} "
         f"--split train --max_bad_fraction={value}", REFUSED, "max_bad_fraction")
        for value in ("-0.1", "1.5", "nan", "inf")
    ),
    *(
        (f"prepare --num_workers {value}", "prepare --gin_file {each_step} --corpus tsv "
         f"--corpus_dir {{corpus}} --split train --shard_dir {{p}}/s --num_workers={value}",
         statuses, *facts)
        for value, statuses, *facts in (("0", REFUSED, "num_workers"),
                                        ("-2", REFUSED, "num_workers"), ("1000000000", DONE))
    ),
    *((f"demo --seeds {value}", f"demo --demo_dir {{p}}/d --seeds={value}", REFUSED, "--seeds")
      for value in ("0", "-1", "x")),
    *((f"launch -n {value}", f"launch -n {value} -- train --gin_file {{each_step}}", (1, 2), "start"
       if value == "1000000000" else "-n") for value in ("0", "-1", "1000000000")),
    *(
        (f"bench step {flag} {value}", f"bench step --gin_file {{each_step}} --{flag}={value}",
         REFUSED, flag)
        for flag, value in (("batch", "0"), ("batch", "a,b"), ("batch", "-1"), ("frames", "0"),
                            ("frames", ","), ("labels", "-1"), ("rounds", "0"),
                            ("precision", "float7"), ("length_spread", "nan"),
                            ("length_spread", "2"))
    ),
    *(
        (f"bench decoder {flag} {value}", "bench decoder --run_dir {run} --split validation "
         f"--{flag}={value}", REFUSED, flag.rstrip("s"))
        for flag, value in (("beam_widths", "0"), ("beam_widths", "x"), ("decoders", "wizard"),
                            ("decoders", ","), ("num_threads", "-1"))
    ),
)  # fmt: skip

PLACES = [
    *rows(
        "a place",
        ("evaluate --out is a file", f"{_EVALUATE} --out {{p}}/mine/text.txt", REFUSED,
         "text.txt"),
        ("evaluate --out below a file", f"{_EVALUATE} --out {{p}}/mine/text.txt/x", REFUSED,
         "text.txt"),
        ("report --out is a file", "report {run} --out {p}/mine/text.txt", REFUSED, "text.txt"),
        ("history --out is a file", "report --history {w} --force --target cer=0.9 --out "
         "{p}/mine/text.txt", REFUSED, "text.txt"),
        ("export --out is a file", "export --to onnx --run_dir {run} --out {p}/mine/text.txt",
         REFUSED, "text.txt"),
        ("export --out holds files", "export --to onnx --run_dir {run} --out {p}/mine", REFUSED,
         "text.txt"),
        ("export into the run", "export --to onnx --run_dir {run} --out {run}", REFUSED, "{run}"),
        ("export into /proc", "export --to onnx --run_dir {run} --out /proc/none/x",
         REFUSED, "/proc"),
        ("bench --out is a file", "bench step --gin_file {each_step} --rounds 1 --out "
         "{p}/mine/text.txt", REFUSED, "text.txt"),
        ("ngram --out a folder", "ngram --shard_dir {shards} --out {p}/mine", REFUSED, "--out"),
        ("ngram --out in a missing folder", "ngram --shard_dir {shards} --out {p}/no/a", REFUSED,
         "--out"),
        ("doctor --out a folder", "doctor --out {p}/mine", (1, 2), "{p}/mine"),
        ("doctor --out in a missing folder", "doctor --out {p}/no/x.json", (1, 2), "--out"),
        ("demo --demo_dir a file", "demo --demo_dir {p}/mine/text.txt", (1, 2), "text.txt"),
        ("study --run_dir a file", "study --gin_file {study} --shard_dir {shards} --run_dir "
         "{p}/mine/text.txt", REFUSED, "text.txt"),
        ("a run as shards", "train --gin_file {each_step} --shard_dir {run} --run_dir {p}/r",
         REFUSED, "prepare"),
        ("shards as a run", "evaluate --run_dir {shards} --split validation", REFUSED,
         "{shards}"),
        ("an export as a run to evaluate", "evaluate --run_dir {export} --split validation",
         REFUSED, "{export}"),
        ("an export exported", "export --to onnx --run_dir {export} --out {p}/o", REFUSED,
         "{export}"),
        ("a corpus transcribed by a corpus", "transcribe {corpus} --run_dir {corpus}", REFUSED,
         "{corpus}"),
        ("a recorded run evaluated", "evaluate --run_dir {recorded} --split validation", REFUSED,
         "{recorded}"),
        ("a recorded run exported", "export --to onnx --run_dir {recorded} --out {p}/o", REFUSED,
         "{recorded}"),
        ("a recorded run served", "serve --run_dir {recorded} --port 0", REFUSED, "{recorded}"),
        ("training into a recorded run", "train --gin_file {each_step} --shard_dir {shards} "
         "--run_dir {recorded}", REFUSED, "{recorded}"),
        ("resuming a recorded run", "train --gin_file {each_step} --shard_dir {shards} "
         "--run_dir {recorded} --resume", REFUSED, "{recorded}"),
        ("training into shards", "train --gin_file {each_step} --shard_dir {shards} --run_dir "
         "{shards} --dry_run", (0, 2)),
        ("preparing over a run's checkpoints", "prepare --gin_file {each_step} --corpus tsv "
         "--corpus_dir {corpus} --shard_dir {run} --split checkpoints --manifest train.tsv",
         REFUSED, "checkpoints"),
        ("a split outside the folder", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split "
         "../outside --manifest train.tsv", REFUSED, "--split"),
        ("an absolute split", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split "
         "{p}/outside --manifest train.tsv", REFUSED, "--split"),
        ("evaluate an outside split", "evaluate --run_dir {run} --split ../corpus", REFUSED,
         "../corpus"),
        ("a manifest outside the corpus", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} "
         "--split train --manifest ../each_step.gin", REFUSED, "each_step.gin"),
        ("ngram of an outside split", "ngram --shard_dir {shards} --split ../run --out {p}/a",
         REFUSED, "../run"),
        ("a report of a text", "report {p}/mine/text.txt", REFUSED, "text.txt"),
        ("a report of an empty folder", "report {p}/mine", REFUSED, "{p}/mine"),
        ("a report of /dev/null", "report /dev/null", REFUSED, "/dev/null"),
        ("a history of a run", "history {run}", (0, 2)),
        ("a history of nothing", "history {p}/mine", REFUSED, "{p}/mine"),
        ("watching a text", "watch --once {p}/mine/text.txt", REFUSED, "text.txt"),
        ("watching nowhere", "watch --once {p}/no/where", REFUSED, "{p}/no"),
        ("--checkpoint of an export", "transcribe {wav} --run_dir {export} --checkpoint last",
         REFUSED, "--checkpoint"),
        ("--checkpoint file of an export", "transcribe {wav} --run_dir {export} --checkpoint "
         "{run}/checkpoints/best.npz", REFUSED, "--checkpoint"),
        ("--checkpoint of a served export", "serve --run_dir {export} --port 0 --checkpoint last",
         REFUSED, "--checkpoint"),
        ("--checkpoint a folder", f"{_EVALUATE} --checkpoint {{p}}/mine", REFUSED, "{p}/mine"),
        ("--checkpoint /dev/zero", f"{_EVALUATE} --checkpoint /dev/zero", REFUSED, "/dev/zero"),
        ("--lexicon /dev/zero", f"{_EVALUATE} --decoder word_beam --lexicon /dev/zero", REFUSED,
         "/dev/zero"),
        ("--lexicon /dev/urandom to train", f"{TRAIN} --gin_binding \"DecoderConfig.name = "
         "'word_beam'\" --lexicon /dev/urandom", REFUSED, "/dev/urandom"),
        ("--lexicon a folder", f"{_EVALUATE} --decoder word_beam --lexicon {{p}}/mine", REFUSED,
         "{p}/mine"),
        ("--language_model /dev/zero", f"{_EVALUATE} --decoder word_beam --language_model "
         "/dev/zero", REFUSED, "/dev/zero"),
        ("--gin_file /dev/zero", "train --gin_file /dev/zero --shard_dir {shards} --run_dir {p}/r",
         REFUSED, "--gin_file"),
        ("--gin_file a folder", "train --gin_file {p}/mine --shard_dir {shards} --run_dir {p}/r",
         REFUSED, "--gin_file"),
        ("--gin_file a recording", "train --gin_file {wav} --shard_dir {shards} --run_dir {p}/r",
         REFUSED, "validation-00.wav"),
        ("--hardware /dev/zero", "report {run} --hardware /dev/zero", REFUSED, "/dev/zero"),
        ("--hardware a ledger", "report {run} --hardware {run}/events.jsonl", REFUSED,
         "events.jsonl"),
        ("transcribe /dev/zero", "transcribe /dev/zero --run_dir {export}", (1, 2), "/dev/zero"),
        ("transcribe a missing file", "transcribe {p}/no.wav --run_dir {export}", (1, 2),
         "no.wav"),
        ("transcribe twice the same", "transcribe {wav} {wav} --run_dir {export} --out {p}/o",
         (0, 2)),
        ("serve at another machine's address", "serve --run_dir {export} --port 0 --host "
         "192.0.2.1", REFUSED, "--host"),
        ("serve at an impossible address", "serve --run_dir {export} --port 0 --host 'a b'",
         REFUSED, "--host"),
        ("serve --allow_host with a path", "serve --run_dir {export} --port 0 --allow_host "
         "http://example.org/", REFUSED, "--allow_host"),
        ("serve --allow_host blank", "serve --run_dir {export} --port 0 --allow_host ' '", REFUSED,
         "--allow_host"),
        ("serve --allow_host a port alone", "serve --run_dir {export} --port 0 --allow_host :80",
         REFUSED, "--allow_host"),
        ("a scheduler without a port", "prepare --corpus tsv --corpus_dir {corpus} --shard_dir "
         "{p}/s --scheduler nowhere", REFUSED, "--scheduler"),
        ("a scheduler and threads", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --scheduler "
         "tcp://127.0.0.1:1", REFUSED, "--num_workers"),
        ("a plug-in that is missing", "--import {p}/no.py report {run}", REFUSED, "--import"),
        ("a plug-in that is a recording", "report {run} --import {wav}", REFUSED,
         "validation-00"),
        ("a plug-in that is a folder", "report {run} --import {p}/mine", REFUSED, "mine"),
    ),
    Case("a place: --hypotheses a pipe", f"{_EVALUATE} --hypotheses {{p}}/pipe",
         facts=("--hypotheses",), make=_fifo("pipe")),
    Case("a place: ngram --out a pipe", "ngram --shard_dir {shards} --out {p}/pipe",
         facts=("pipe",), make=_fifo("pipe")),
    Case("a place: doctor --out a pipe", "doctor --out {p}/pipe", (1, 2), ("pipe",), _fifo("pipe")),
    Case("a place: bench --out a pipe", "bench step --gin_file {each_step} --rounds 1 --out "
         "{p}/pipe.json", (1, 2), ("pipe",), _fifo("pipe.json")),
    Case("a place: bench decoder --save_log_probs a pipe", "bench decoder --run_dir {run} --split "
         "validation --beam_widths 1 --save_log_probs {p}/pipe", (1, 2), ("pipe",), _fifo("pipe")),
    Case("a place: --lexicon a pipe", f"{_EVALUATE} --decoder word_beam --lexicon {{p}}/pipe",
         facts=("pipe",), make=_fifo("pipe")),
    Case("a place: --checkpoint a pipe", f"{_EVALUATE} --checkpoint {{p}}/pipe", facts=("pipe",),
         make=_fifo("pipe")),
    Case("a place: --gin_file a pipe", "train --gin_file {p}/pipe --shard_dir {shards} --run_dir "
         "{p}/r", facts=("--gin_file",), make=_fifo("pipe")),
    Case("a place: transcribe a pipe", "transcribe {p}/pipe.wav --run_dir {export}", (1, 2),
         ("pipe.wav",), _fifo("pipe.wav")),
    Case("a place: a pipe in a folder to transcribe", "transcribe {p}/in --run_dir {export}",
         (1, 2), ("pipe.wav",),
         lambda place, world: ((place / "in").mkdir(), os.mkfifo(place / "in" / "pipe.wav"))),
    Case("a place: the ledger is a pipe", "report {p}/r", (1, 2), ("{p}/r",),
         lambda place, world: ((place / "r").mkdir(), os.mkfifo(place / "r" / "events.jsonl"))),
    Case("a place: --out is a link to a file of the user's", "ngram --shard_dir {shards} --out "
         "{p}/link", DONE, (), lambda place, world: (place / "link").symlink_to("mine/text.txt"),
         changes=("link",)),
    Case("a place: --out is a link that leads nowhere", "evaluate --run_dir {run} --split "
         "validation --out {p}/link", REFUSED, ("link",),
         lambda place, world: (place / "link").symlink_to("no/where")),
    Case("a place: evaluate --out overwrites texts of the user's", f"{_EVALUATE} --out {{p}}/o",
         facts=("scores.md",), make=_file("o/scores.md", "# my notes\n")),
    Case("a place: history --out overwrites pictures of the user's", "report --history {w} "
         "--force --target cer=0.9 --out {p}/o", facts=("history.png",),
         make=_file("o/history.png", "mine\n")),
    Case("a place: bench --out overwrites a table of the user's", "bench step --gin_file "
         "{each_step} --rounds 1 --frames 60 --batch 1 --out {p}/o", facts=("table.md",),
         make=_file("o/table.md", "# my notes\n")),
    Case("a place: --run_dir through a link in a circle", "train --gin_file {each_step} "
         "--shard_dir {shards} --run_dir {p}/a/run", facts=("{p}/a",),
         make=lambda place, world: ((place / "a").symlink_to("b"), (place / "b").symlink_to("a"))),
]  # fmt: skip

_LEXICON = f"{_EVALUATE} --decoder word_beam --lexicon {{p}}/lexicon.txt"
FILES = [
    Case("a file: a lexicon of one word of a million letters", _LEXICON, facts=("lexicon",),
         make=_file("lexicon.txt", "ab\n" + "a" * 1_000_000 + "\n")),
    Case("a file: an empty lexicon", _LEXICON, facts=("lexicon",), make=_file("lexicon.txt", "")),
    Case("a file: a lexicon of other letters", _LEXICON, (0, 2), ("lexicon",),
         _file("lexicon.txt", "äöü\nßß\n")),
    Case("a file: a lexicon that is no UTF-8", _LEXICON, facts=("lexicon",),
         make=_file("lexicon.txt", b"\xff\xfe\x00a")),
    Case("a file: a sparse lexicon of 3 GB", _LEXICON, facts=("lexicon",),
         make=_sparse("lexicon.txt", 3 << 30)),
    Case("a file: a language model of garbage", f"{_EVALUATE} --decoder word_beam "
         "--language_model {p}/a.arpa", facts=("a.arpa",), make=_file("a.arpa", "\\data\\\n" * 9)),
    Case("a file: a language model cut short", f"{_EVALUATE} --decoder word_beam "
         "--language_model {p}/a.arpa", facts=("kenlm",),
         make=_file("a.arpa", "\\data\\\nngram 1=3\n\n\\1-grams:\n-1 a")),
    Case("a file: a gin file that includes itself", "train --gin_file {p}/a.gin --shard_dir "
         "{shards} --run_dir {p}/r", facts=("a.gin",), make=_file("a.gin", "include 'a.gin'\n")),
    Case("a file: a gin file of 3 GB", "train --gin_file {p}/a.gin --shard_dir {shards} --run_dir "
         "{p}/r", facts=("a.gin",), make=_sparse("a.gin", 3 << 30)),
    Case("a file: a macro that refers to itself", "train --gin_file {p}/a.gin --shard_dir "
         "{shards} --run_dir {p}/r --dry_run", facts=("a.gin",),
         make=_file("a.gin", "N = %N\nTrainingConfig.epochs = %N\n")),
    Case("a file: macros in a circle", "train --gin_file {p}/a.gin --shard_dir {shards} --run_dir "
         "{p}/r --dry_run", facts=("a.gin",),
         make=_file("a.gin", "A = %B\nB = (%C, 1)\nC = %A\nTrainingConfig.epochs = %A\n")),
    Case("a file: a study's macro that refers to itself", "study --gin_file {p}/s.gin --shard_dir "
         "{shards} --run_dir {p}/s", facts=("s.gin",),
         make=_file("s.gin", "E = %E\nStudyConfig.experiments = %E\n")),
    Case("a file: a machine's macro that refers to itself", "report {run} --hardware {p}/m.gin",
         facts=("m.gin",), make=_file("m.gin", "P = %P\nHardwareConfig.price_usd_per_hour = %P")),
    Case("a file: a study without experiments", "study --gin_file {p}/s.gin --shard_dir {shards} "
         "--run_dir {p}/s", facts=("experiments",),
         make=_file("s.gin", "StudyConfig.seeds = (1,)")),
    Case("a file: an experiment whose name leaves the folder", "study --gin_file {p}/s.gin "
         "--shard_dir {shards} --run_dir {p}/s", facts=("s.gin",),
         make=_file("s.gin", "StudyConfig.experiments = ('../../x',)\n")),
    Case("a file: a study of ten million seeds", "study --gin_file {p}/s.gin --shard_dir {shards} "
         "--run_dir {p}/s --dry_run", (0, 2), (),
         _file("s.gin", "StudyConfig.experiments = ('a',)\na/ExperimentConfig.gin_files = "
               "('demo.gin',)\nStudyConfig.seeds = 10000000\n")),
    Case("a file: a sparse ledger of 1 GB", "report {p}/r", facts=("events.jsonl",),
         make=_sparse("r/events.jsonl", 1 << 30)),
    Case("a file: watching a sparse ledger of 1 GB", "watch --once {p}/r", (0, 2), ("r",),
         _sparse("r/events.jsonl", 1 << 30)),
    Case("a file: a sparse ledger of 20 GB", "report {p}/r", facts=("events.jsonl",),
         make=_sparse("r/events.jsonl", 20 << 30)),
    Case("a file: a sparse cpu.csv of 3 GB", "report {p}/run --out {p}/o", (0, 2), ("cpu.csv",),
         lambda place, world: (_copied("run")(place, world),
                               os.truncate(place / "run" / "cpu.csv", 3 << 30))),
    Case("a file: a ledger of one line without end", "report {p}/r", facts=("events.jsonl",),
         make=_file("r/events.jsonl", b'{"key": "' + b"a" * 50_000_000)),
    Case("a file: a ledger of empty lines", "report {p}/r", facts=("{p}/r",),
         make=_file("r/events.jsonl", b"\n" * 100_000)),
    Case("a file: a ledger of a future version", "report {p}/recorded", facts=("version",),
         make=_edited("recorded", "events.jsonl", lambda content: content.replace(
             b'"ledger_format": 2', b'"ledger_format": 3'))),
    Case("a file: a ledger with its first line gone", "report {p}/recorded", facts=("line 1",),
         make=_edited("recorded", "events.jsonl", lambda c: c.partition(b"\n")[2])),
    Case("a file: a ledger of Windows' line ends", "report {p}/recorded", facts=("events.jsonl",),
         make=_edited("recorded", "events.jsonl", lambda c: c.replace(b"\n", b"\r\n"))),
    Case("a file: a ledger with all lines repeated", "report {p}/recorded", facts=("line",),
         make=_edited("recorded", "events.jsonl", lambda content: content * 2)),
    Case("a file: a ledger that is a folder", "report {p}/recorded", facts=("{p}/recorded",),
         make=_instead("recorded", "events.jsonl", Path.mkdir)),
    Case("a file: a ledger that is a link to itself", "report {p}/recorded",
         facts=("{p}/recorded",),
         make=_instead("recorded", "events.jsonl", lambda path: path.symlink_to(path.name))),
    Case("a file: run.json a list", "report {p}/run", (0, 2), ("run.json",),
         _edited("run", "run.json", lambda content: b"[]")),
    Case("a file: run.json of 100 000 nested lists", "report {p}/run", (0, 2), ("run.json",),
         _edited("run", "run.json", lambda content: b"[" * 100_000)),
    Case("a file: statistics that are a text", "evaluate --run_dir {p}/run --split validation",
         (0, 2), ("",), make=_edited("run", "run.json", _json_edited(statistics="x"))),
    Case("a file: an alphabet of one letter twice", "evaluate --run_dir {p}/run --split validation",
         facts=("alphabet.json",),
         make=_edited("run", "alphabet.json", lambda content: b'{"characters": "aa"}')),
    Case("a file: an alphabet of numbers", "evaluate --run_dir {p}/run --split validation",
         facts=("alphabet.json",),
         make=_edited("run", "alphabet.json", lambda content: b'{"characters": [1, 2]}')),
    Case("a file: best.npz a folder", "evaluate --run_dir {p}/run --split validation",
         facts=("best.npz",), make=_instead("run", "checkpoints/best.npz", Path.mkdir)),
    Case("a file: checkpoints a file", "evaluate --run_dir {p}/run --split validation",
         facts=("checkpoint",),
         make=_instead("run", "checkpoints", lambda path: path.write_bytes(b""))),
    Case("a file: experiment.json with an unknown field", "evaluate --run_dir {p}/run --split "
         "validation", facts=("experiment.json",),
         make=_edited("run", "experiment.json", lambda content: content.replace(
             b"num_lstm_layers", b"num_lstm_layerz"))),
    Case("a file: experiment.json names a program's class", "evaluate --run_dir {p}/run --split "
         "validation", facts=("experiment.json",),
         make=_edited("run", "experiment.json", lambda content: content.replace(
             b'"acoustic_model"', b'"subprocess:Popen"' ))),
    Case("a file: plugins.json names a recording", "evaluate --run_dir {p}/run --split validation",
         (0, 2), (), _file("run/plugins.json", '["../x.wav"]')),
    Case("a file: an export without its model", "transcribe {wav} --run_dir {p}/export",
         facts=("export",), make=_instead("export", "model.onnx", lambda path: None)),
    Case("a file: an export whose model is a folder", "transcribe {wav} --run_dir {p}/export",
         facts=("model.onnx",), make=_instead("export", "model.onnx", Path.mkdir)),
    Case("a file: an export whose model is all zeros", "transcribe {wav} --run_dir {p}/export",
         facts=("model.onnx",), make=_edited("export", "model.onnx", lambda content: b"\0" * 99)),
    Case("a file: SHA256SUMS empty", "transcribe {wav} --run_dir {p}/export",
         facts=("SHA256SUMS",), make=_edited("export", "SHA256SUMS", lambda content: b"")),
    Case("a file: SHA256SUMS names files outside", "transcribe {wav} --run_dir {p}/export",
         facts=("etc/passwd",), make=_edited("export", "SHA256SUMS", lambda content: content
                                             + b"0" * 64 + b"  ../../../etc/passwd\n")),
    Case("a file: SHA256SUMS is gone", "transcribe {wav} --run_dir {p}/export",
         facts=("SHA256SUMS",),
         make=_instead("export", "SHA256SUMS", lambda path: None)),
    Case("a file: settings of a Recorder that are a list", "report {p}/recorded", (0, 2), (),
         _edited("recorded", "recorder.json", lambda content: b"[]")),
    Case("a file: a study's scores are a folder", "study --gin_file {study} --shard_dir {shards} "
         "--run_dir {p}/s --dry_run", (0, 2), (), _file("s/scores/one-1/scores.json/x", "")),
    Case("a file: results of transcribe are a folder", "transcribe {wav} --run_dir {export} --out "
         "{p}/o", facts=("validation-00.txt",), make=_file("o/validation-00.txt/x", "")),
    Case("a file: the list of results is a folder", "transcribe {wav} --run_dir {export} --out "
         "{p}/o", facts=("transcribe-results.jsonl",),
         make=_file("o/transcribe-results.jsonl/x", "")),
    Case("a file: log-probabilities in an empty archive", "bench decoder --log_probs {p}/a.npz",
         facts=("a.npz",), make=_file("a.npz", b"PK\x05\x06" + b"\0" * 18)),
    Case("a file: log-probabilities that are a text", "bench decoder --log_probs {words}",
         facts=("words.txt",)),
    Case("a file: hypotheses of numbers", "report --errors {p}/h.jsonl", facts=("h.jsonl",),
         make=_file("h.jsonl", '{"text": 1, "hypothesis": 2}\n')),
    Case("a file: references without hypotheses", "report --errors {p}/h.jsonl", facts=("h.jsonl",),
         make=_file("h.jsonl", '{"text": "a"}\n')),
    Case("a file: an MLPerf log of one line", "report {p}/result_0.txt", facts=("result_0.txt",),
         make=_file("result_0.txt", ":::MLLOG {}\n")),
    Case("a file: a DAWNBench entry of infinities", "report {p}/d/entry.tsv", facts=("entry.tsv",),
         make=_file("d/entry.tsv", "epoch\thours\ttop5Accuracy\n1\tinf\tnan\n")),
    Case("a file: a shard that is a folder", "train --gin_file {each_step} --shard_dir {p}/shards "
         "--run_dir {p}/run --no_memory_probe", (1, 2), ("train",),
         lambda place, world: (_copied("shards")(place, world), [
             (path.unlink(), path.mkdir())
             for path in sorted((place / "shards" / "train").glob("*.tfrecord*"))[:1]])),
    Case("a file: index.json of another split", "train --gin_file {each_step} --shard_dir "
         "{p}/shards --run_dir {p}/run --no_memory_probe", facts=("validation",),
         make=lambda place, world: (_copied("shards")(place, world), shutil.copy(
             place / "shards" / "train" / "index.json",
             place / "shards" / "validation" / "index.json"))),
]  # fmt: skip
