"""The cases of `campaigns.hostile`: what a hurried, unlucky or hostile user types, and the answer.

``{name}`` stands for the path of what the campaign has prepared: ``{corpus}``, ``{shards}``,
``{run}``, ``{recorded}``, ``{export}``, ``{each_step}`` (a gin file), ``{study}`` (another),
``{words}`` (a lexicon), ``{wav}`` (a recording), ``{presets}``; ``{w}`` is the folder of these. In
``{p}``, the case's own folder, ``mine/text.txt`` is a file of the user.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND, PYTHON, SHELL, HTTP = "command", "python", "shell", "http"


@dataclass(frozen=True)
class Case:
    """A hostile case.

    Attributes:
        name: what is hostile about it.
        words: a command of tfasr; the text of a program; a shell's line; or a request.
        statuses: the expected exit statuses, or for a request the expected HTTP statuses.
        facts: texts that the answer must contain, in upper or lower case.
        make: a function that prepares the case's folder; its arguments are this folder and the
            campaign's `World`.
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


_TRAIN = "train --gin_file {each_step} --shard_dir {shards} --no_memory_probe --run_dir {p}/run"
_DRY = f"{_TRAIN} --dry_run"
_EVALUATE = "evaluate --run_dir {run} --split validation"
_PREPARE = "prepare --gin_file {each_step} --num_workers 1 --shard_dir {p}/shards"
_TSV = f"{_PREPARE} --corpus tsv --corpus_dir {{p}}/corpus --split train --manifest train.tsv"
_DONE, _FAILED, _REFUSED = (0,), (1,), (2,)


def _rows(prefix: str, *rows: tuple, **common: Any) -> list[Case]:
    """Returns a case for each row: name, words, and optionally statuses and facts."""
    cases = []
    for name, words, *more in rows:
        statuses = more[0] if more else _REFUSED
        facts = tuple(more[1:])
        cases.append(Case(f"{prefix}: {name}", words, statuses, facts, **common))
    return cases


def _copied(name: str) -> Callable[[Path, Any], None]:
    return lambda place, world: shutil.copytree(world.folder / name, place / name)


def _edited(name: str, file: str, edit: Callable[[bytes], bytes]) -> Callable[[Path, Any], None]:
    """Returns a function that copies a folder of the world and edits one of its files."""

    def make(place: Path, world: Any) -> None:
        _copied(name)(place, world)
        path = place / name / file
        path.write_bytes(edit(path.read_bytes()))

    return make


def _instead(name: str, file: str, put: Callable[[Path], object]) -> Callable[[Path, Any], None]:
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


def _corpus(lines: str | bytes, **files: bytes) -> Callable[[Path, Any], None]:
    """Returns a function that makes a tsv corpus of these lines; ``a.wav`` is a good recording."""

    def make(place: Path, world: Any) -> None:
        folder = place / "corpus"
        folder.mkdir()
        content = lines if isinstance(lines, bytes) else lines.encode()
        (folder / "train.tsv").write_bytes(content)
        shutil.copy(world.folder / "corpus" / "audio" / "train-00.wav", folder / "a.wav")
        for name, data in files.items():
            (folder / name.replace("_", ".")).write_bytes(data)

    return make


def _json_edited(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **changes}).encode()


def _wav(rate_hz: int = 16000, seconds: float = 0.1, channels: int = 1) -> bytes:
    data = b"\0\0" * int(rate_hz * seconds) * channels
    head = struct.pack("<HHIIHH", 1, channels, rate_hz, rate_hz * 2, 2 * channels % 65536, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


EMPTY = _rows(
    "an empty argument",
    ("evaluate --out", f"{_EVALUATE} --out ''", _REFUSED, "--out"),
    ("evaluate --hypotheses", f"{_EVALUATE} --hypotheses ''", _REFUSED, "--hypotheses"),
    ("evaluate --run_dir", "evaluate --run_dir '' --split validation", _REFUSED, "--run_dir"),
    ("evaluate --split", "evaluate --run_dir {run} --split ''", _REFUSED, "--split"),
    ("evaluate --shard_dir", f"{_EVALUATE} --shard_dir ''", _REFUSED, "--shard_dir"),
    ("evaluate --checkpoint", f"{_EVALUATE} --checkpoint ''", _REFUSED, "--checkpoint"),
    ("evaluate --lexicon", f"{_EVALUATE} --decoder word_beam --lexicon ''", _REFUSED, "--lexicon"),
    ("evaluate --language_model", f"{_EVALUATE} --decoder word_beam --language_model ''",
     _REFUSED, "--language_model"),
    ("export --out", "export --to onnx --run_dir {run} --out ''", _REFUSED, "--out"),
    ("export --run_dir", "export --to onnx --run_dir '' --out {p}/o", _REFUSED, "--run_dir"),
    ("ngram --out", "ngram --shard_dir {shards} --out ''", _REFUSED, "--out"),
    ("ngram --shard_dir", "ngram --shard_dir '' --out {p}/a.arpa", _REFUSED, "--shard_dir"),
    ("report --out", "report {run} --out ''", _REFUSED, "--out"),
    ("report RUN_DIR", "report ''", _REFUSED, "run_dir"),
    ("report --hardware", "report {run} --hardware ''", _REFUSED, "--hardware"),
    ("report --target", "report {run} --target ''", _REFUSED, "--target"),
    ("history --out", "history {w} --force --target cer=0.9 --out ''", _REFUSED, "--out"),
    ("history folder", "history ''", _REFUSED, "folder"),
    ("watch RUN_DIR", "watch --once ''", _REFUSED, "run_dir"),
    ("transcribe --out", "transcribe {wav} --run_dir {export} --out ''", _REFUSED, "--out"),
    ("transcribe FILE", "transcribe '' --run_dir {export}", _REFUSED, "FILE"),
    ("transcribe --run_dir", "transcribe {wav} --run_dir ''", _REFUSED, "--run_dir"),
    ("serve --run_dir", "serve --run_dir '' --port 0", _REFUSED, "--run_dir"),
    ("serve --host", "serve --run_dir {export} --port 0 --host ''", _REFUSED, "--host"),
    ("serve --allow_host", "serve --run_dir {export} --port 0 --allow_host ''", _REFUSED,
     "--allow_host"),
    ("train --run_dir", "train --gin_file {each_step} --shard_dir {shards} --run_dir ''", _REFUSED,
     "--run_dir"),
    ("train --shard_dir", "train --gin_file {each_step} --shard_dir '' --run_dir {p}/run", _REFUSED,
     "--shard_dir"),
    ("train --gin_file", "train --gin_file '' --shard_dir {shards} --run_dir {p}/run", _REFUSED,
     "--gin_file"),
    ("train --cluster", f"{_TRAIN} --cluster ''", _REFUSED, "--cluster"),
    ("train --lexicon", f"{_TRAIN} --lexicon ''", _REFUSED, "--lexicon"),
    ("prepare --shard_dir", "prepare --corpus tsv --corpus_dir {corpus} --shard_dir ''", _REFUSED,
     "--shard_dir"),
    ("prepare --corpus_dir", f"{_PREPARE} --corpus tsv --corpus_dir ''", _REFUSED, "--corpus_dir"),
    ("prepare --split", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split ''", _REFUSED,
     "--split"),
    ("prepare --manifest", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split train "
     "--manifest ''", _REFUSED, "--manifest"),
    ("prepare --scheduler", "prepare --corpus tsv --corpus_dir {corpus} --shard_dir {p}/s "
     "--scheduler ''", _REFUSED, "--scheduler"),
    ("study --run_dir", "study --gin_file {study} --shard_dir {shards} --run_dir ''", _REFUSED,
     "--run_dir"),
    ("study --gin_file", "study --gin_file '' --run_dir {p}/s", _REFUSED, "--gin_file"),
    ("demo --demo_dir", "demo --demo_dir ''", _REFUSED, "--demo_dir"),
    ("doctor --out", "doctor --out ''", _REFUSED, "--out"),
    ("bench --out", "bench step --gin_file {each_step} --out ''", _REFUSED, "--out"),
    ("bench decoder --save_log_probs", "bench decoder --run_dir {run} --split validation "
     "--save_log_probs ''", _REFUSED, "--save_log_probs"),
    ("bench decoder --log_probs", "bench decoder --log_probs ''", _REFUSED, "--log_probs"),
)  # fmt: skip

BINDINGS = [
    Case(
        f"a binding: {binding}",
        f'{_DRY} --gin_binding "{binding}"',
        statuses,
        facts,
    )
    for binding, statuses, *facts in (
        ("TrainingConfig.epochs = 0", _REFUSED, "epochs"),
        ("TrainingConfig.epochs = -1", _REFUSED, "epochs"),
        ("TrainingConfig.epochs = 2.5", _REFUSED, "epochs"),
        ("TrainingConfig.epochs = 'three'", _REFUSED, "epochs"),
        ("TrainingConfig.epochs = None", _REFUSED, "epochs"),
        ("TrainingConfig.epochs = True", _REFUSED, "epochs"),
        ("TrainingConfig.epochs = [3]", _REFUSED, "epochs"),
        ("TrainingConfig.seed = -1", _REFUSED, "seed"),
        ("TrainingConfig.seed = 1e400", _REFUSED, "seed"),
        ("TrainingConfig.checkpoint_every_steps = -1", _REFUSED, "checkpoint_every_steps"),
        ("TrainingConfig.checkpoint_every_steps = 0.5", _REFUSED, "checkpoint_every_steps"),
        ("TrainingConfig.keep_checkpoints = 0", _REFUSED, "keep_checkpoints"),
        ("TrainingConfig.num_sentences = -3", _REFUSED, "num_sentences"),
        ("TrainingConfig.target_window = 0", _REFUSED, "target_window"),
        ("TrainingConfig.targets = 'cer=0.1'", _REFUSED, "targets"),
        ("TrainingConfig.targets = [('cer',)]", _REFUSED, "targets"),
        ("TrainingConfig.targets = [('cer', 'low')]", _REFUSED, "cer"),
        ("TrainingConfig.targets = [('cer', 1.5)]", _REFUSED, "cer"),
        ("TrainingConfig.targets = [('beauty', 0.5)]", _REFUSED, "beauty"),
        ("TrainingConfig.targets = 7", _REFUSED, "targets"),
        ("TrainingConfig.optimizer = None", _REFUSED, "optimizer"),
        ("TrainingConfig.optimizer = 'adam'", _REFUSED, "optimizer"),
        ("TrainingConfig.optimizer = @Nothing", _REFUSED, "Nothing"),
        ("Adam.learning_rate = 'fast'", _REFUSED, "learning_rate"),
        ("Adam.learning_rate = 1e400", _REFUSED, "learning_rate"),
        ("Adam.beta_1 = 2.0", (0, 2)),
        ("Adam.no_such_thing = 1", _REFUSED, "no_such_thing"),
        ("PipelineConfig.global_batch_size = 0", _REFUSED, "global_batch_size"),
        ("PipelineConfig.global_batch_size = 3.5", _REFUSED, "global_batch_size"),
        ("PipelineConfig.num_readers = 0", _REFUSED, "num_readers"),
        ("PipelineConfig.num_readers = 100000000", _REFUSED, "num_readers"),
        ("PipelineConfig.shuffle_buffer = -1", _REFUSED, "shuffle_buffer"),
        ("PipelineConfig.prefetch = -2", _REFUSED, "prefetch"),
        ("PipelineConfig.num_buckets = 0", _REFUSED, "num_buckets"),
        ("PipelineConfig.num_buckets = 10000000", _REFUSED, "num_buckets"),
        ("PipelineConfig.max_frames = 0", _REFUSED, "max_frames"),
        ("PipelineConfig.batch_size_schedule = ((1,),)", _REFUSED, "batch_size_schedule"),
        ("PipelineConfig.batch_size_schedule = ((2, 8), (1, 4))", _REFUSED, "batch_size_schedule"),
        ("PipelineConfig.batch_size_schedule = 5", _REFUSED, "batch_size_schedule"),
        ("AcousticModelConfig.conv_kernel = 0", _REFUSED, "conv_kernel"),
        ("AcousticModelConfig.conv_kernel = 100000000", _REFUSED, "frames"),
        ("AcousticModelConfig.conv_stride = 0", _REFUSED, "conv_stride"),
        ("AcousticModelConfig.conv_stride = 100000", _REFUSED, "stride"),
        ("AcousticModelConfig.num_lstm_layers = -1", _REFUSED, "num_lstm_layers"),
        ("AcousticModelConfig.lstm_units = 0", _REFUSED, "lstm_units"),
        ("AcousticModelConfig.dropout = 1.0", _REFUSED, "dropout"),
        ("AcousticModelConfig.dropout = -0.1", _REFUSED, "dropout"),
        ("AcousticModelConfig.dropout = 'much'", _REFUSED, "dropout"),
        ("FeatureConfig.num_mel_bins = 9", _REFUSED, "shards"),
        ("FeatureConfig.num_mfcc = 0", _REFUSED, "num_mfcc"),
        ("FeatureConfig.num_mfcc = 99", _REFUSED, "num_mfcc"),
        ("FeatureConfig.step_samples = 0", _REFUSED, "step_samples"),
        ("FeatureConfig.window_samples = -5", _REFUSED, "window_samples"),
        ("FeatureConfig.sample_rate_hz = 0", _REFUSED, "sample_rate_hz"),
        ("FeatureConfig.lower_edge_hz = 9000.0", _REFUSED, "edge_hz"),
        ("FeatureConfig.upper_edge_hz = 1e9", _REFUSED, "upper_edge_hz"),
        ("DecoderConfig.name = 'wizard'", _REFUSED, "wizard"),
        ("DecoderConfig.name = None", _REFUSED, "name"),
        ("DecoderConfig.beam_width = 1.5", _REFUSED, "beam_width"),
        ("AugmentationConfig.time_masks = -1", _REFUSED, "time_masks"),
        ("AugmentationConfig.time_mask_fraction = 2.0", _REFUSED, "time_mask_fraction"),
        ("AugmentationConfig.tempo_change = 1.0", _REFUSED, "tempo_change"),
        ("AugmentationConfig.frequency_mask_bins = -4", _REFUSED, "frequency_mask_bins"),
        ("AugmentationConfig.from_epoch = 0", _REFUSED, "from_epoch"),
        ("x = %x", _REFUSED, "x"),
        ("TrainingConfig.epochs = %missing", _REFUSED, "missing"),
        ("a = %b\nb = %a\nTrainingConfig.epochs = %a", _REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs = %a\na = [%a]", _REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs", _REFUSED, "--gin_binding"),
        ("= 5", _REFUSED, "--gin_binding"),
        ("epochs = 5", _REFUSED, "epochs"),
        ("import os; os.remove('mine/text.txt')", _REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs = __import__('os').getpid()", _REFUSED, "--gin_binding"),
        ("TrainingConfig.epochs = 3 TrainingConfig.seed = 4", _REFUSED, "--gin_binding"),
    )
]

NUMBERS = _rows(
    "a number",
    *(
        (f"watch --every_s {value}", f"watch {{run}} --every_s {value}", _REFUSED, "--every_s")
        for value in ("nan", "inf", "-1", "0", "1e300", "1e10")
    ),
    *(
        (f"report --window {value}", f"report {{run}} --window {value}", _REFUSED, "window")
        for value in ("0", "-3", "1.5", "many")
    ),
    ("report --window 10^30", f"report {{run}} --target cer=0.9 --window 1{'0' * 30}", _DONE),
    *(
        (f"report --target {value}", f"report {{run}} --target {value}", _REFUSED, "target")
        for value in ("cer", "cer=", "=0.1", "cer=nan", "cer=-0.1", "cer=10", "cer=0.1=0.2",
                      "cer=0x1", "beauty=1", "cer=1e400")
    ),
    *(
        (f"report --price_usd_per_hour {value}",
         f"report {{run}} --hardware paper_sys1 --price_usd_per_hour={value}", _REFUSED, "price")
        for value in ("-1", "nan", "inf")
    ),
    ("report --worst -1", "report {run} --errors --worst -1", _REFUSED, "--worst"),
    ("report --worst 10^12", "report {run} --errors --worst 1000000000000", _DONE),
    *(
        (f"serve --port {value}", f"serve --run_dir {{export}} --port={value}", _REFUSED, "--port")
        for value in ("-1", "65536", "http", "80.5")
    ),
    *(
        (f"serve --{flag} {value}", f"serve --run_dir {{export}} --port 0 --{flag}={value}",
         _REFUSED, flag)
        for flag, value in (("max_streams", "0"), ("max_streams", "10000000000"),
                            ("idle_s", "nan"), ("idle_s", "-1"), ("max_upload_mb", "inf"),
                            ("max_upload_s", "0"), ("max_stream_s", "1e400"))
    ),
    ("transcribe --batch_size 0", "transcribe {wav} --run_dir {export} --batch_size 0", _REFUSED,
     "--batch_size"),
    ("transcribe --batch_size 10^12", "transcribe {wav} --run_dir {export} --batch_size "
     "1000000000000", _DONE),
    ("transcribe --beam_width -1", "transcribe {wav} --run_dir {export} --decoder beam "
     "--beam_width=-1", _REFUSED, "beam_width"),
    *(
        (f"ngram --order {value}", f"ngram --shard_dir {{shards}} --order={value} --out {{p}}/a",
         _REFUSED, "order")
        for value in ("0", "-1", "1000000", "2.5")
    ),
    *(
        (f"evaluate --lm_weight {value} without a model", f"{_EVALUATE} --lm_weight={value}",
         _REFUSED, "--language_model")
        for value in ("1", "nan")
    ),
    *(
        (f"prepare --max_bad_fraction {value}", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} "
         f"--split train --max_bad_fraction={value}", _REFUSED, "max_bad_fraction")
        for value in ("-0.1", "1.5", "nan", "inf")
    ),
    *(
        (f"prepare --num_workers {value}", "prepare --gin_file {each_step} --corpus tsv "
         f"--corpus_dir {{corpus}} --split train --shard_dir {{p}}/s --num_workers={value}",
         statuses, *facts)
        for value, statuses, *facts in (("0", _REFUSED, "num_workers"),
                                        ("-2", _REFUSED, "num_workers"), ("1000000000", _DONE))
    ),
    *((f"demo --seeds {value}", f"demo --demo_dir {{p}}/d --seeds={value}", _REFUSED, "--seeds")
      for value in ("0", "-1", "x")),
    *((f"launch -n {value}", f"launch -n {value} -- train --gin_file {{each_step}}", (1, 2), "start"
       if value == "1000000000" else "-n") for value in ("0", "-1", "1000000000")),
    *(
        (f"bench step {flag} {value}", f"bench step --gin_file {{each_step}} --{flag}={value}",
         _REFUSED, flag)
        for flag, value in (("batch", "0"), ("batch", "a,b"), ("batch", "-1"), ("frames", "0"),
                            ("frames", ","), ("labels", "-1"), ("rounds", "0"),
                            ("precision", "float7"), ("length_spread", "nan"),
                            ("length_spread", "2"))
    ),
    *(
        (f"bench decoder {flag} {value}", "bench decoder --run_dir {run} --split validation "
         f"--{flag}={value}", _REFUSED, flag.rstrip("s"))
        for flag, value in (("beam_widths", "0"), ("beam_widths", "x"), ("decoders", "wizard"),
                            ("decoders", ","), ("num_threads", "-1"))
    ),
    *(
        (f"bench scaling {flag} {value}", f"bench scaling {{run}} --{flag}={value}", _REFUSED, flag)
        for flag, value in (("workers", "0"), ("workers", "a"), ("link_gbit_s", "0"),
                            ("link_gbit_s", "nan"), ("link_latency_us", "-1"), ("overlap", "2"),
                            ("gradient_mb", "-1"))
    ),
    *(
        (f"bench inference {flag} {value}", "bench inference --run_dir {export} --corpus_dir "
         f"{{corpus}} --{flag}={value}", _REFUSED, flag.partition("_")[0])
        for flag, value in (("batch", "0"), ("chunk_ms", "0"), ("rounds", "0"),
                            ("recordings", "-1"), ("backends", "abacus"))
    ),
)  # fmt: skip

PLACES = [
    *_rows(
        "a place",
        ("evaluate --out is a file", f"{_EVALUATE} --out {{p}}/mine/text.txt", _REFUSED,
         "text.txt"),
        ("evaluate --out below a file", f"{_EVALUATE} --out {{p}}/mine/text.txt/x", _REFUSED,
         "text.txt"),
        ("report --out is a file", "report {run} --out {p}/mine/text.txt", _REFUSED, "text.txt"),
        ("history --out is a file", "history {w} --force --target cer=0.9 --out "
         "{p}/mine/text.txt", _REFUSED, "text.txt"),
        ("export --out is a file", "export --to onnx --run_dir {run} --out {p}/mine/text.txt",
         _REFUSED, "text.txt"),
        ("export --out holds files", "export --to onnx --run_dir {run} --out {p}/mine", _REFUSED,
         "text.txt"),
        ("export into the run", "export --to onnx --run_dir {run} --out {run}", _REFUSED, "{run}"),
        ("export into /proc", "export --to onnx --run_dir {run} --out /proc/none/x",
         _REFUSED, "/proc"),
        ("bench --out is a file", "bench step --gin_file {each_step} --rounds 1 --out "
         "{p}/mine/text.txt", _REFUSED, "text.txt"),
        ("ngram --out a folder", "ngram --shard_dir {shards} --out {p}/mine", _REFUSED, "--out"),
        ("ngram --out in a missing folder", "ngram --shard_dir {shards} --out {p}/no/a", _REFUSED,
         "--out"),
        ("doctor --out a folder", "doctor --out {p}/mine", (1, 2), "{p}/mine"),
        ("doctor --out in a missing folder", "doctor --out {p}/no/x.json", (1, 2), "--out"),
        ("demo --demo_dir a file", "demo --demo_dir {p}/mine/text.txt", (1, 2), "text.txt"),
        ("study --run_dir a file", "study --gin_file {study} --shard_dir {shards} --run_dir "
         "{p}/mine/text.txt", _REFUSED, "text.txt"),
        ("a run as shards", "train --gin_file {each_step} --shard_dir {run} --run_dir {p}/r",
         _REFUSED, "prepare"),
        ("shards as a run", "evaluate --run_dir {shards} --split validation", _REFUSED,
         "{shards}"),
        ("an export as a run to evaluate", "evaluate --run_dir {export} --split validation",
         _REFUSED, "{export}"),
        ("an export exported", "export --to onnx --run_dir {export} --out {p}/o", _REFUSED,
         "{export}"),
        ("a corpus transcribed by a corpus", "transcribe {corpus} --run_dir {corpus}", _REFUSED,
         "{corpus}"),
        ("a recorded run evaluated", "evaluate --run_dir {recorded} --split validation", _REFUSED,
         "{recorded}"),
        ("a recorded run exported", "export --to onnx --run_dir {recorded} --out {p}/o", _REFUSED,
         "{recorded}"),
        ("a recorded run served", "serve --run_dir {recorded} --port 0", _REFUSED, "{recorded}"),
        ("training into a recorded run", "train --gin_file {each_step} --shard_dir {shards} "
         "--run_dir {recorded}", _REFUSED, "{recorded}"),
        ("resuming a recorded run", "train --gin_file {each_step} --shard_dir {shards} "
         "--run_dir {recorded} --resume", _REFUSED, "{recorded}"),
        ("training into shards", "train --gin_file {each_step} --shard_dir {shards} --run_dir "
         "{shards} --dry_run", (0, 2)),
        ("preparing over a run's checkpoints", "prepare --gin_file {each_step} --corpus tsv "
         "--corpus_dir {corpus} --shard_dir {run} --split checkpoints --manifest train.tsv",
         _REFUSED, "checkpoints"),
        ("a split outside the folder", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split "
         "../outside --manifest train.tsv", _REFUSED, "--split"),
        ("an absolute split", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --split "
         "{p}/outside --manifest train.tsv", _REFUSED, "--split"),
        ("evaluate an outside split", "evaluate --run_dir {run} --split ../corpus", _REFUSED,
         "../corpus"),
        ("a manifest outside the corpus", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} "
         "--split train --manifest ../each_step.gin", _REFUSED, "each_step.gin"),
        ("ngram of an outside split", "ngram --shard_dir {shards} --split ../run --out {p}/a",
         _REFUSED, "../run"),
        ("a report of a text", "report {p}/mine/text.txt", _REFUSED, "text.txt"),
        ("a report of an empty folder", "report {p}/mine", _REFUSED, "{p}/mine"),
        ("a report of /dev/null", "report /dev/null", _REFUSED, "/dev/null"),
        ("a history of a run", "history {run}", (0, 2)),
        ("a history of nothing", "history {p}/mine", _REFUSED, "{p}/mine"),
        ("watching a text", "watch --once {p}/mine/text.txt", _REFUSED, "text.txt"),
        ("watching nowhere", "watch --once {p}/no/where", _REFUSED, "{p}/no"),
        ("--checkpoint of an export", "transcribe {wav} --run_dir {export} --checkpoint last",
         _REFUSED, "--checkpoint"),
        ("--checkpoint file of an export", "transcribe {wav} --run_dir {export} --checkpoint "
         "{run}/checkpoints/best.npz", _REFUSED, "--checkpoint"),
        ("--checkpoint of a served export", "serve --run_dir {export} --port 0 --checkpoint last",
         _REFUSED, "--checkpoint"),
        ("--checkpoint a folder", f"{_EVALUATE} --checkpoint {{p}}/mine", _REFUSED, "{p}/mine"),
        ("--checkpoint /dev/zero", f"{_EVALUATE} --checkpoint /dev/zero", _REFUSED, "/dev/zero"),
        ("--lexicon /dev/zero", f"{_EVALUATE} --decoder word_beam --lexicon /dev/zero", _REFUSED,
         "/dev/zero"),
        ("--lexicon /dev/urandom to train", f"{_TRAIN} --gin_binding \"DecoderConfig.name = "
         "'word_beam'\" --lexicon /dev/urandom", _REFUSED, "/dev/urandom"),
        ("--lexicon a folder", f"{_EVALUATE} --decoder word_beam --lexicon {{p}}/mine", _REFUSED,
         "{p}/mine"),
        ("--language_model /dev/zero", f"{_EVALUATE} --decoder word_beam --language_model "
         "/dev/zero", _REFUSED, "/dev/zero"),
        ("--gin_file /dev/zero", "train --gin_file /dev/zero --shard_dir {shards} --run_dir {p}/r",
         _REFUSED, "--gin_file"),
        ("--gin_file a folder", "train --gin_file {p}/mine --shard_dir {shards} --run_dir {p}/r",
         _REFUSED, "--gin_file"),
        ("--gin_file a recording", "train --gin_file {wav} --shard_dir {shards} --run_dir {p}/r",
         _REFUSED, "validation-00.wav"),
        ("--hardware /dev/zero", "report {run} --hardware /dev/zero", _REFUSED, "/dev/zero"),
        ("--hardware a ledger", "report {run} --hardware {run}/events.jsonl", _REFUSED,
         "events.jsonl"),
        ("transcribe /dev/zero", "transcribe /dev/zero --run_dir {export}", (1, 2), "/dev/zero"),
        ("transcribe a missing file", "transcribe {p}/no.wav --run_dir {export}", (1, 2),
         "no.wav"),
        ("transcribe twice the same", "transcribe {wav} {wav} --run_dir {export} --out {p}/o",
         (0, 2)),
        ("serve at another machine's address", "serve --run_dir {export} --port 0 --host "
         "192.0.2.1", _REFUSED, "--host"),
        ("serve at an impossible address", "serve --run_dir {export} --port 0 --host 'a b'",
         _REFUSED, "--host"),
        ("serve --allow_host with a path", "serve --run_dir {export} --port 0 --allow_host "
         "http://example.org/", _REFUSED, "--allow_host"),
        ("serve --allow_host blank", "serve --run_dir {export} --port 0 --allow_host ' '", _REFUSED,
         "--allow_host"),
        ("serve --allow_host a port alone", "serve --run_dir {export} --port 0 --allow_host :80",
         _REFUSED, "--allow_host"),
        ("a scheduler without a port", "prepare --corpus tsv --corpus_dir {corpus} --shard_dir "
         "{p}/s --scheduler nowhere", _REFUSED, "--scheduler"),
        ("a scheduler and threads", f"{_PREPARE} --corpus tsv --corpus_dir {{corpus}} --scheduler "
         "tcp://127.0.0.1:1", _REFUSED, "--num_workers"),
        ("a plug-in that is missing", "--import {p}/no.py report {run}", _REFUSED, "--import"),
        ("a plug-in that is a recording", "report {run} --import {wav}", _REFUSED,
         "validation-00"),
        ("a plug-in that is a folder", "report {run} --import {p}/mine", _REFUSED, "mine"),
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
         "{p}/link", _DONE, (), lambda place, world: (place / "link").symlink_to("mine/text.txt"),
         changes=("link",)),
    Case("a place: --out is a link that leads nowhere", "evaluate --run_dir {run} --split "
         "validation --out {p}/link", _REFUSED, ("link",),
         lambda place, world: (place / "link").symlink_to("no/where")),
    Case("a place: evaluate --out overwrites texts of the user's", f"{_EVALUATE} --out {{p}}/o",
         facts=("scores.md",), make=_file("o/scores.md", "# my notes\n")),
    Case("a place: history --out overwrites pictures of the user's", "history {w} "
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
    Case("a file: measured steps that are a ledger", "bench scaling --measured {run}/events.jsonl",
         facts=("events.jsonl",)),
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

_HEAD = "path\tspeaker\tseconds\ttext\n"
CORPORA = [
    Case(f"a corpus: {name}", _TSV, statuses, tuple(facts), _corpus(lines, **files))
    for name, lines, files, statuses, *facts in (
        ("no lines", _HEAD, {}, (1, 2), "train.tsv"),
        ("an empty list", "", {}, (1, 2), "train.tsv"),
        ("a list without a heading", "a.wav\ts\t0.3\tab\n", {}, (1, 2), "train.tsv"),
        ("a heading without text", "path\tspeaker\na.wav\ts\n", {}, (1, 2), "text"),
        ("audio outside the corpus", _HEAD + "../../etc/passwd\ts\t0.3\tab\n", {}, (1, 2), "bad"),
        ("audio that is the list", _HEAD + "train.tsv\ts\t0.3\tab\n", {}, (1, 2), "bad"),
        ("audio that is a folder", _HEAD + ".\ts\t0.3\tab\n", {}, (1, 2), "bad"),
        ("audio that is /dev/zero", _HEAD + "/dev/zero\ts\t0.3\tab\n", {}, (1, 2), "bad"),
        ("a text without letters", _HEAD + "a.wav\ts\t0.3\t\n", {}, (1, 2), "bad"),
        (
            "a text of control characters",
            _HEAD + "a.wav\ts\t0.3\t\x1b[31m\x07\n",
            {},
            (1, 2),
            "bad",
        ),
        (
            "a text of a million letters",
            _HEAD + f"a.wav\ts\t0.3\t{'a' * 10**6}\n",
            {},
            (1, 2),
            "bad",
        ),
        (
            "a list in UTF-16",
            (_HEAD + "a.wav\ts\t0.3\tab\n").encode("utf-16"),
            {},
            (1, 2),
            "train.tsv",
        ),
        ("a list of zero bytes", b"\0" * 4096, {}, (1, 2), "train.tsv"),
        ("negative seconds", _HEAD + "a.wav\ts\t-1\tab\n", {}, (0, 1, 2)),
        ("seconds that are no number", _HEAD + "a.wav\ts\tsoon\tab\n", {}, (0, 1, 2)),
        (
            "a recording without samples",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": _wav(seconds=0)},
            (1, 2),
            "bad",
        ),
        (
            "a recording of 32767 channels",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": _wav(channels=32767, seconds=0.001)},
            (1, 2),
            "bad",
        ),
        (
            "a recording at 1 Hz",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": _wav(rate_hz=1, seconds=20)},
            (1, 2),
            "empty",
        ),
        (
            "a recording that is cut",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": _wav()[:50]},
            (1, 2),
            "bad",
        ),
        ("a header alone", _HEAD + "b.wav\ts\t0.3\tab\n", {"b_wav": b"RIFF"}, (1, 2), "bad"),
    )
]

_TALKS = (
    "with tfasr.Recorder(place / 'r', {}) as run:\n    run.epoch()\n    with run.step(utterances=1)"
    " as step:\n        step.loss = 1.0\n    with run.evaluation() as e:\n        e.score(['a b'], "
    "['a b'])\n"
)


def _python(name: str, text: str, statuses: tuple[int, ...] = _REFUSED, *facts: str) -> Case:
    return Case(f"a program: {name}", f"import tfasr\n{text}", statuses, facts, kind=PYTHON)


def _refused(call: str) -> str:
    """Returns a program for a call that is documented to raise one of Python's own errors."""
    errors = "(ValueError, TypeError, FileNotFoundError)"
    return f"try:\n    {call}\nexcept {errors} as error:\n    print('refused', error)\n"


PROGRAMS = [
    *(
        _python(f"Recorder({arguments})", _TALKS.replace("{}", arguments), _REFUSED, *facts)
        for arguments, *facts in (
            ("targets=[5]", "target"),
            ("targets=5", "target"),
            ("targets=[('cer',)]", "target"),
            ("targets=[('cer', 0.1, 0.2)]", "target"),
            ("targets=[None]", "target"),
            ("targets='cer=0.1'", "target"),
            ("targets=[('cer', '0.1')]", "target"),
            ("targets=[(1, 0.1)]", "target"),
            ("targets=[(['cer'], 0.1)]", "target"),
            ("targets=[{'cer': 0.1}]", "target"),
            ("targets=['cer=0.1', 'beauty=3']", "beauty"),
            ("target_window=0", "target_window"),
            ("target_window='3'", "target_window"),
            ("target_window=True", "target_window"),
            ("train_samples=0", "train_samples"),
            ("train_samples=1.5", "train_samples"),
            ("train_samples='many'", "train_samples"),
            ("global_batch_size=-4", "global_batch_size"),
            ("seed='one'", "seed"),
            ("metrics=['bleu']", "metrics"),
            ("metrics={'bleu': 'up'}", "better"),
            ("metrics={'cer': 'higher'}", "cer"),
            ("metrics={3: 'higher'}", "metric"),
            ("metrics={'bleu': None}", "better"),
            ("facts={'x': object()}", "JSON"),
            ("facts={'x': float('nan')}", "JSON"),
            ("facts={'train_step': 1}", "train_step"),
            ("facts=[1]", "facts"),
            ("config={'x': {1, 2}}", "JSON"),
            ("config=[1, 2]", "config"),
            ("comparability='same'", "comparability"),
            ("comparability={'x': b'1'}", "JSON"),
            ("resumed_from_step=-1", "resumed_from_step"),
            ("resumed_from_step=5", "resumed_from_step"),
            ("resumed_from_step='last'", "resumed_from_step"),
            ("comparable_with=place / 'no'", "no"),
            ("comparable_with=place / 'mine'", "mine"),
        )
    ),
    *(
        _python(f"run.{call}", "with tfasr.Recorder(place / 'r') as run:\n    run.epoch()\n    "
                f"run.{call}\n", statuses, *facts)
        for call, statuses, *facts in (
            ("step(utterances='many').__enter__().__exit__(None, None, None)", _REFUSED),
            ("note(train_step=3)", _REFUSED, "train_step"),
            ("note(x=float('inf'))", _REFUSED, "JSON"),
            ("note()", (0, 2)),
            ("evaluation().score(['a'], ['a'])", _REFUSED, "evaluation"),
            ("saving().__exit__(None, None, None)", _REFUSED),
            ("checkpoint().__enter__()", _REFUSED, "saving"),
        )
    ),
    _python("steps in steps", "with tfasr.Recorder(place / 'r') as run:\n    run.epoch()\n    with "
            "run.step():\n        with run.step():\n            pass\n", _REFUSED, "step"),
    _python("a recorder twice", "run = tfasr.Recorder(place / 'r')\nwith run:\n    with run:\n     "
            "   pass\n", _REFUSED, "once"),
    _python("two recorders of one folder", "with tfasr.Recorder(place / 'r'), tfasr.Recorder("
            "place / 'r'):\n    pass\n", _REFUSED, "{p}/r"),
    _python("a recorder in a file", "with tfasr.Recorder(place / 'mine' / 'text.txt'):\n    pass\n",
            _REFUSED, "text.txt"),
    _python("a recorder with an empty name", "with tfasr.Recorder(''):\n    pass\n", _REFUSED,
            "run_dir"),
    _python("a recorder of a zero byte", "with tfasr.Recorder('a\\0b'):\n    pass\n", _REFUSED,
            "run_dir"),
    _python("a recorder of a number", "tfasr.Recorder(5)\n", _REFUSED, "run_dir"),
    _python("load_run of nothing", _refused("tfasr.load_run(place / 'no')"), _DONE, "refused"),
    _python("load_run of a text", "tfasr.load_run(place / 'mine' / 'text.txt')\n", _REFUSED,
            "text.txt"),
    _python("time_to_accuracy of no target", "tfasr.load_run(world / 'recorded').time_to_accuracy("
            "cer='low')\n", _REFUSED, "cer"),
    _python("report of a number", _refused("tfasr.report([5])"), _DONE, "refused"),
    _python("report of an empty list", "tfasr.report([])\n", _REFUSED, "run"),
    _python("compare of nothing", "tfasr.compare([])\n", _REFUSED, "run"),
    _python("count_errors of unequal lists", "try:\n    tfasr.count_errors(['a'], [])\nexcept "
            "ValueError as error:\n    print(error)\n", _DONE, "1"),
    _python("an alphabet of nothing", _refused("tfasr.Alphabet('')"), _DONE, "refused"),
    _python("a decoder of a negative width", _refused("tfasr.DecoderConfig(name="
            "'beam', beam_width=-1)"), _DONE, "beam_width"),
    _python("evaluate a split that is missing", "tfasr.evaluate(run_dir=world / 'run', split='no')"
            "\n", _REFUSED, "no"),
    _python("load_recogniser of a text", "tfasr.load_recogniser(place / 'mine')\n", _REFUSED,
            "mine"),
    _python("load_recogniser with a checkpoint of an export",
            "tfasr.load_recogniser(world / 'export', checkpoint='last')\n", _REFUSED, "checkpoint"),
    _python("samples of two dimensions", "r = tfasr.load_recogniser(world / 'export')\n"
            + _refused("r.transcribe([[0.0]])"), _DONE, "refused"),
    _python("transcribe of NaN", "import numpy\nr = tfasr.load_recogniser(world / 'export')\n"
            "try:\n    print(repr(r.transcribe(numpy.full(16000, numpy.nan, 'float32')).text))\n"
            "except ValueError as error:\n    print('refused', error)\n", _DONE, "refused"),
    _python("load_plugin of nothing", "tfasr.load_plugin('no_such_module_at_all')\n", _REFUSED,
            "no_such_module_at_all"),
    _python("open_split of a file", "tfasr.open_split(world / 'words.txt', 'train')\n", _REFUSED,
            "words.txt"),
    _python("events of nowhere", _refused("tfasr.read_events(place / 'no')"), _DONE, "refused"),
]  # fmt: skip

SHELLS = _rows(
    "a shell",
    ("watch | head -1", "tfasr watch {run} {recorded} {run} --every_s 1 | head -1", (0, 141)),
    ("watch into a closed pipe", "tfasr watch --once {run} {recorded} | true", (0, 1, 141)),
    ("report into a closed pipe", "tfasr report {run} {recorded} --force | true", (0, 1, 141)),
    ("history into a closed pipe", "tfasr history {w} --force --target cer=0.9 | true",
     (0, 1, 3, 141)),
    ("doctor into a closed pipe", "tfasr doctor | true", (0, 1, 141)),
    ("--help into a closed pipe", "tfasr --help | true", (0, 1, 141)),
    ("transcribe into a closed pipe", "tfasr transcribe {wav} --run_dir {export} | true",
     (0, 1, 141)),
    ("report to a closed output", "tfasr report {run} >&-", (0, 1)),
    ("report to a full disk", "tfasr report {run} > /dev/full", (1,), "full"),
    ("watch to a full disk", "tfasr watch --once {run} > /dev/full", (1,), "full"),
    ("transcribe to a full disk", "tfasr transcribe {wav} --run_dir {export} > /dev/full", (1,),
     "full"),
    ("--help to a full disk", "tfasr --help > /dev/full", (0, 1, 120)),
    ("errors to a closed output", "tfasr report {p}/no 2>&-", (1, 2)),
    ("a locale without UTF-8", "LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii tfasr report {run}",
     _DONE),
    ("no home", "env -u HOME tfasr report {run}", _DONE),
    ("no path", "PATH= tfasr report {run}", _DONE),
    ("a terminal of no columns", "COLUMNS=0 LINES=0 tfasr report {run}", _DONE),
    ("a terminal of one column", "COLUMNS=1 tfasr report {run}", _DONE),
    ("a terminal of -5 columns", "COLUMNS=-5 tfasr watch --once {run}", _DONE),
    ("a terminal whose width is not a number", "COLUMNS=wide tfasr report {run}", _DONE),
    ("a temporary folder that is missing", "TMPDIR={p}/no tfasr report {run} --out {p}/o",
     (0, 1, 2)),
    ("a working directory that is gone", "mkdir gone; cd gone; rmdir ../gone; tfasr report {run}",
     (0, 1, 2)),
    ("few file descriptors", "ulimit -n 12; tfasr report {run}", (0, 1, 2)),
    ("no room for files", "ulimit -f 0; tfasr report {run} --out {p}/o", (1, 2, 153)),
    ("little room for files", "ulimit -f 8; tfasr ngram --shard_dir {shards} --out {p}/a.arpa",
     (0, 1, 2, 153)),
    ("no processor time", "ulimit -t 1; tfasr --help", (0, 137, 152)),
    ("a broken TF_CONFIG without --cluster", "TF_CONFIG='{{' tfasr report {run}", _DONE),
    ("TF_CONFIG a list", f"TF_CONFIG='[]' tfasr {_TRAIN} --cluster tf_config", _REFUSED,
     "TF_CONFIG"),
    ("TF_CONFIG of 9000 workers", "export TF_CONFIG=$(python3 -c \"import json; print(json."
     "dumps({'cluster': {'worker': ['h:1'] * 9000}, 'task': {'type': 'worker', 'index': 0}}))\"); "
     f"tfasr {_TRAIN} --cluster tf_config", _REFUSED, "address"),
    ("an instruction set of no machine", f"TFASR_INSTRUCTION_SET=z80 tfasr {_DRY}", (0, 2)),
    ("threads that are no number", f"TF_NUM_INTRAOP_THREADS=many tfasr {_DRY}", (0, 1, 2)),
    ("a backend of Keras that is missing", f"KERAS_BACKEND=abacus tfasr {_DRY}", (0, 1, 2),),
    ("no command", "tfasr ", _REFUSED, "usage"),
    ("a misspelt command", "tfasr raport x", _REFUSED, "report"),
    ("a misspelt flag", "tfasr report {run} --uot x", _REFUSED, "--out"),
    ("a flag twice", "tfasr report {run} --out {p}/a --out {p}/b --format json", _DONE),
    ("a flag as a value", "tfasr report {run} --out --force", _REFUSED, "--out"),
    ("an argument of 200 kB", "tfasr report $(head -c 100000 /dev/zero | tr '\\0' a)", _REFUSED),
    ("an argument that is no UTF-8", "tfasr report $'\\xff\\xfe'", _REFUSED),
    ("an argument of escapes", "tfasr report $'\\x1b[2J'", _REFUSED),
    ("samples of an odd number of bytes", "printf 'abc' | tfasr transcribe - --run_dir {export}",
     (0, 1)),
    ("no samples", "true | tfasr transcribe - --run_dir {export}", (0, 1)),
    ("a text as samples", "cat {words} | tfasr transcribe - --run_dir {export}", (0, 1)),
    ("--stream with a model that needs whole recordings", "tfasr transcribe {wav} --run_dir "
     "{export} --stream", (0, 2)),
    ("transcribe stopped by SIGINT", "sleep 9 | timeout -s INT 4 "
     "tfasr transcribe - --run_dir {export}", (0, 1, 124, 130)),
    kind=SHELL,
)  # fmt: skip

CLUSTERS = _rows(
    "a cluster",
    ("a rank alone", f"{_TRAIN} --rank 0", _REFUSED, "--cluster"),
    ("a rank of 10^20", f"{_TRAIN} --cluster a:1,b:2 --rank 1{'0' * 20}", _REFUSED, "rank"),
    ("a negative rank", f"{_TRAIN} --cluster a:1,b:2 --rank -1", _REFUSED, "rank"),
    ("addresses without rank", f"{_TRAIN} --cluster a:1,b:2", _REFUSED, "--rank"),
    ("an address twice", f"{_TRAIN} --cluster a:1,a:1 --rank 0", _REFUSED, "a:1"),
    ("an empty address", f"{_TRAIN} --cluster a:1, --rank 0", _REFUSED, "HOST:PORT"),
    ("port 0", f"{_TRAIN} --cluster a:0,b:2 --rank 0", _REFUSED, "port"),
    ("port 99999", f"{_TRAIN} --cluster a:99999,b:2 --rank 0", _REFUSED, "port"),
    ("a URL", f"{_TRAIN} --cluster http://a:1,b:2 --rank 0", _REFUSED, "HOST:PORT"),
    ("a name alone", f"{_TRAIN} --cluster here", _REFUSED, "--cluster"),
    ("slurm without slurm", f"{_TRAIN} --cluster slurm", _REFUSED, "srun"),
    ("TF_CONFIG that is missing", f"{_TRAIN} --cluster tf_config", _REFUSED, "TF_CONFIG"),
    ("launch without a command", "launch -n 2", _REFUSED, "train"),
    ("launch of another command", "launch -n 2 -- report {run}", _REFUSED, "train"),
    ("launch with a rank", "launch -n 2 -- train --rank 1", _REFUSED, "--rank"),
    ("launch of a train that is wrong", "launch -n 2 -- train --no_such_flag", (1, 2), "required"),
)  # fmt: skip


def _get(path: bytes, *headers: bytes, method: bytes = b"GET", body: bytes = b"") -> bytes:
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: 127.0.0.1:PORT", *headers]
    return b"\r\n".join([*lines, b"", body])


def _post(body: bytes, *headers: bytes, path: bytes = b"/transcribe?name=a.wav") -> bytes:
    length = b"Content-Length: %d" % len(body)
    return _get(path, length, *headers, method=b"POST", body=body)


REQUESTS = [
    Case(f"a request: {name}", content, statuses, tuple(facts), kind=HTTP)
    for name, content, statuses, *facts in (
        ("the page", _get(b"/"), (200,), "nosniff"),
        ("a good recording", _post(_wav(seconds=1)), (200,)),
        ("another site's name", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", (403,)),
        ("no Host", b"GET / HTTP/1.1\r\n\r\n", (400, 403)),
        ("two Hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n", (400, 403)),
        ("another site's Origin", _get(b"/", b"Origin: http://evil.example"), (403,)),
        ("Origin null", _get(b"/", b"Origin: null"), (403,)),
        ("a folder above", _get(b"/../../etc/passwd"), (400, 404)),
        ("an escaped folder above", _get(b"/%2e%2e/%2e%2e/etc/passwd"), (400, 404)),
        ("a page that is missing", _get(b"/no"), (404,)),
        ("a method that is missing", _get(b"/", method=b"BREW"), (400, 405)),
        ("DELETE", _get(b"/", method=b"DELETE"), (405,)),
        ("a recording by GET", _get(b"/transcribe"), (405,)),
        ("no recording", _post(b""), (422,)),
        ("a text as recording", _post(b"hello"), (422,)),
        ("a recording that is cut", _post(_wav()[:40]), (422,)),
        ("a length that is no number", _get(b"/transcribe", b"Content-Length: x", method=b"POST"),
         (400,)),
        ("a negative length", _get(b"/transcribe", b"Content-Length: -1", method=b"POST"), (400,)),
        ("a length of 10^30", _get(b"/transcribe", b"Content-Length: 1" + b"0" * 30,
                                   method=b"POST"), (400, 413)),
        ("a length beyond the limit", _get(b"/transcribe", b"Content-Length: 2000000",
                                           method=b"POST"), (413,)),
        ("two lengths", _get(b"/transcribe", b"Content-Length: 1", b"Content-Length: 2",
                             method=b"POST", body=b"ab"), (400,)),
        ("a length and chunks", _get(b"/transcribe", b"Content-Length: 3",
                                     b"Transfer-Encoding: chunked", method=b"POST",
                                     body=b"0\r\n\r\n"), (400,)),
        ("a chunk size that is no number", _get(b"/transcribe", b"Transfer-Encoding: chunked",
                                                method=b"POST",
                                                body=b"zz\r\nab\r\n0\r\n\r\n"), (400,)),
        ("an unknown encoding", _post(_wav(), b"Content-Encoding: magic"), (200, 400, 415)),
        ("a text sent as gzip", _post(b"hello", b"Content-Encoding: gzip"), (400,)),
        ("a header of 100 kB", _get(b"/", b"X: " + b"a" * 100_000), (400, 431)),
        ("ten thousand headers", _get(b"/", *[b"X: a"] * 10_000), (200, 400, 431)),
        ("a line of 100 kB", _get(b"/" + b"a" * 100_000), (400, 414)),
        ("HTTP 9.9", b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", (200, 400, 505)),
        ("binary", bytes(range(256)) * 4 + b"\r\n\r\n", (400,)),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n", (400,)),
        ("a stream without an upgrade", _get(b"/stream"), (400, 426)),
        ("a stream of another version", _get(b"/stream", b"Upgrade: websocket",
                                             b"Connection: Upgrade", b"Sec-WebSocket-Version: 1",
                                             b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
         (400, 426)),
        ("a stream without a key", _get(b"/stream", b"Upgrade: websocket", b"Connection: Upgrade",
                                        b"Sec-WebSocket-Version: 13"), (400, 426)),
        ("a name that leaves the folder", _post(_wav(seconds=1), path=b"/transcribe?name=../../x"),
         (200,)),
        ("a name of a zero byte", _post(_wav(seconds=1), path=b"/transcribe?name=a%00b"), (200,)),
        ("a name of 6 kB", _post(_wav(), path=b"/transcribe?name=" + b"a" * 6000), (200, 400)),
        ("a name that is no UTF-8", _post(_wav(seconds=1), path=b"/transcribe?name=%ff"), (200,)),
        ("a rate of 4 GHz", _post(_wav(rate_hz=1000).replace(
            struct.pack("<I", 1000), struct.pack("<I", 4_000_000_000), 1)), (422,)),
        ("an Expect other than 100-continue", _post(_wav(), b"Expect: magic"), (400, 417)),
    )
]  # fmt: skip

CASES = [
    *EMPTY,
    *BINDINGS,
    *NUMBERS,
    *PLACES,
    *FILES,
    *CORPORA,
    *PROGRAMS,
    *SHELLS,
    *CLUSTERS,
    *REQUESTS,
]
