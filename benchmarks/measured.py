"""Measures every figure that README.md and docs/measured.md quote; writes that page.

    make measured CORPORA=FOLDER                        # everything; two to three hours
    python benchmarks/measured.py --corpora FOLDER --only step_an4 prepare
    python benchmarks/measured.py --list                # names, minutes, needed data, commands
    python benchmarks/measured.py --page                # measures nothing, writes the page

Each figure comes from one or more commands, which run one after the other on an
otherwise idle machine, with the peers in the same run. A figure is kept in
`results/measured.json` with the processor, the date, the commit and a hash of the code
that it measures; a new measurement replaces only the one of the same processor. The
hash leaves out comments, docstrings and layout. Figures whose hash is that of today's
code are skipped (``--again`` measures them too), so an interrupted run goes on where it
stopped. The page has the current figures; the others go to `results/measured.md`,
except for the newest one of a figure that has no current one, which the page marks. A
figure during which the machine took more than a study allows is measured once more, and
marked as disturbed if that happens again.

``--corpora`` holds `an4` and `librispeech` as their archives unpack, an4 with
`splits/*.tsv` as `tfasr prepare --corpus tsv` reads it, and `decoding` with a load for
`decoder_load.py`. Peers: ``pip install 'tfasr[peers,kenlm]'``.
"""

import argparse
import ast
import datetime
import functools
import hashlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "measured.json"
PAGE = ROOT / "docs" / "measured.md"
EARLIER = ROOT / "benchmarks" / "results" / "measured.md"
TRAINING = ("tfasr/layers", "tfasr/models", "tfasr/training", "tfasr/data")
STEP = ("tfasr/layers", "tfasr/models", "tfasr/training/ctc.py", "benchmarks/twin")
SEARCH = ("tfasr/decoding", "benchmarks/decoder.py")


@dataclass(frozen=True)
class Figure:
    """A row of the page.

    Attributes:
        what: is measured, in the words of the page.
        commands: with ``{an4}``, ``{librispeech}``, ``{decoding}`` for data,
            ``{shards}`` and ``{unit_shards}`` for AN4's shards, ``{work}`` for a
            folder; the figure is read from the last line that they print or from the
            files that they write.
        read: returns the figure from what the commands printed and the folder; None if
            by hand.
        code: files and folders whose change makes the figure stale.
        minutes: about, on two cores or a GPU.
    """

    what: str
    commands: tuple[str, ...]
    read: Callable[[str, Path], str] | None
    code: tuple[str, ...]
    minutes: float


def _step(printed: str, work: Path) -> str:
    parts = []
    for table in json.loads((work / "step.json").read_text())["tables"]:
        for row in table["rows"]:
            if row["system"] == "tfasr":
                ratios = [("stock Keras", "stock_keras"), ("PyTorch", "torch")]
                ratios += [("PyTorch's best precision", "torch_best")]
                shown = [
                    f"{ratio:.2f} x {name}"
                    for name, key in ratios
                    if (ratio := row.get(f"ratio_to_{key}"))
                ]
                parts.append(f"{row['precision']}: {', '.join(shown)}")

    return "; ".join(parts)


def _an4_time(printed: str, work: Path) -> str:
    (path,) = (work / "result").glob("*.json")
    systems, _, ratios, *_ = json.loads(path.read_text())["tables"]
    ours = systems["rows"][0]
    names = {"torch": "PyTorch twin", "baseline": "`an4.gin`"}
    verdicts = []

    for row in ratios["rows"]:
        # The verdict's first group is `fast/an4.gin`.
        verdict = row["verdict"].replace("the first group is faster", "decided")
        verdicts.append(f"{names[row['system']]} {verdict}")

    median = (
        f"`fast/an4.gin` median {60 * ours['minutes']:.1f} s, {ours['reached']} runs"
    )
    return "; ".join([median, *reversed(verdicts)])


def _error_rates(printed: str, work: Path) -> str:
    parts = []
    for decoder in ("greedy", "word_beam"):
        rows = json.loads((work / decoder / "scores.json").read_text())["rows"]
        rates = [100 * row["wer"] for row in rows]
        each = ", ".join(f"{rate:.1f}" for rate in rates)
        parts.append(
            f"{decoder.replace('_', ' ')} {statistics.mean(rates):.1f} % ({each})"
        )

    return "; ".join(parts)


def _decoder(printed: str, work: Path) -> str:
    rows = json.loads((work / "decoder.json").read_text())["rows"]
    parts = []
    for row in rows:
        if "missing" in row:
            raise SystemExit(f"{row['system']} is missing: {row['missing']}")

        seconds = f"{row['cpu_s_per_audio_hour']:.2f} CPU-s per hour of audio"
        name = f"{row['system']} at width {row['beam_width']}"
        parts.append(f"{name}: {seconds}, WER {100 * row['wer']:.2f} %")

    by_width: dict[int, dict[str, float]] = {}
    for row in rows:
        by_width.setdefault(row["beam_width"], {})[row["system"]] = row[
            "cpu_s_per_audio_hour"
        ]

    ratios = [
        f"width {width}: {seconds['flashlight'] / seconds['tfasr']:.0f} times as fast"
        for width, seconds in by_width.items()
        if {"flashlight", "tfasr"} <= set(seconds)
    ]
    return "; ".join([*ratios, *parts])


def _prepare(printed: str, work: Path) -> str:
    row = json.loads(printed.splitlines()[-1])
    ratio = row["prepare_to_decode"]
    rate = row["prepare_audio_s_per_s"]

    return f"{ratio:.2f} of decoding the FLAC on one core; {rate} s of audio per s"


def _workers(printed: str, work: Path) -> str:
    row = json.loads(printed.splitlines()[-1])
    workers = row["workers"]["of_one"]
    apart = row["apart"]["of_one"]

    return (
        f"a step takes {workers:.2f} times as long, "
        f"{row['bfloat16']['of_one']:.2f} with gradients in bfloat16; "
        f"two processes that exchange nothing {apart:.2f}"
    )


def _overlap(printed: str, work: Path) -> str:
    row = json.loads(printed.splitlines()[-1])
    waits = [row[kind]["waited_for_decoder_s"] for kind in ("apart", "overlapped")]
    ratios = row["ratio_overlapped_to_apart"]

    return (
        f"{ratios['wall_s']:.2f} of the time; waiting for the decoder falls from "
        f"{waits[0]:.1f} to {waits[1]:.1f} s, "
        f"training takes {ratios['train_s']:.2f} times as long"
    )


def _demo(printed: str, work: Path) -> str:
    verdict = r"CER 10 %: (\w+ is faster: .*?; p = [\d.e-]+|.*?undecided)"
    return re.search(verdict, " ".join(printed.split()))[0]


_SHARDS = {"shards": "an4.gin", "unit_shards": "fast/an4_accurate.gin"}
_TRAIN = "{python} -m tfasr.cli train --shard_dir {shards} --no_memory_probe"
_EVALUATE = "{python} -m tfasr.cli evaluate --split validation"


def _trained(
    gin_file: str, seeds: Iterable[int], shards: str = "{shards}"
) -> tuple[str, ...]:
    """Returns commands that train once per seed and score all runs with both decoders."""
    train = _TRAIN.replace("{shards}", shards)
    bindings = {seed: shlex.quote(f"TrainingConfig.seed = {seed}") for seed in seeds}
    runs = " ".join(f"--run_dir {{work}}/run-{seed}" for seed in seeds)

    return (
        *(
            f"{train} --gin_file {gin_file} --gin_binding {binding} "
            f"--run_dir {{work}}/run-{seed}"
            for seed, binding in bindings.items()
        ),
        f"{_EVALUATE} {runs} --decoder greedy --out {{work}}/greedy",
        f"{_EVALUATE} {runs} --decoder word_beam --beam_width 64 --out {{work}}/word_beam",
    )


def _bench(name: str, arguments: str) -> str:
    return f"{{python}} benchmarks/{name}.py {arguments}"


FIGURES = {
    "step_paper": Figure(
        "training step, paper's model, 16 x 600 frames, throughput",
        (
            _bench(
                "training_step",
                "--size paper --precision float32 --rounds 4 --out {work}/step.json",
            ),
        ),
        _step,
        (*STEP, "benchmarks/training_step.py"),
        6,
    ),
    "step_paper_bfloat16": Figure(
        "training step, paper's model, in both precisions, throughput",
        (
            _bench(
                "training_step",
                "--size paper --systems tfasr torch --rounds 3 --out {work}/step.json",
            ),
        ),
        _step,
        (*STEP, "benchmarks/training_step.py"),
        8,
    ),
    "step_an4": Figure(
        "training step, `an4` size, 16 x 300 frames, throughput",
        (_bench("training_step", "--size an4 --rounds 5 --out {work}/step.json"),),
        _step,
        (*STEP, "benchmarks/training_step.py"),
        5,
    ),
    "an4_time": Figure(
        "AN4 to dev CER 15 %, five seeds each, in turns",
        (
            _bench(
                "time_to_accuracy",
                "--shard_dir {shards} --run_dir {work}/runs --gin_file fast/an4.gin "
                "--baseline_gin_file an4.gin --seeds 111 112 113 114 115 --out {work}/result",
            ),
        ),
        _an4_time,
        (*TRAINING, "benchmarks/twin", "tfasr/gin/fast/an4.gin", "gin/fast/an4.gin"),
        35,
    ),
    "an4_error_rates": Figure(
        "AN4, `an4.gin`, 50 epochs: dev WER, means of four seeds",
        _trained("an4.gin", range(1, 5)),
        _error_rates,
        TRAINING,
        30,
    ),
    "an4_accurate": Figure(
        "AN4, `fast/an4_accurate.gin`: dev WER, means of five seeds "
        "(chosen on this split)",
        _trained("fast/an4_accurate.gin", range(1, 6), "{unit_shards}"),
        _error_rates,
        (*TRAINING, "tfasr/alphabet.py", "gin/an4.gin", "gin/fast/an4_accurate.gin"),
        35,
    ),
    "search": Figure(
        "word beam search against flashlight-text (10 tokens, threshold 25)",
        (
            _bench(
                "decoder",
                "--load {decoding} --beam_widths 64,256 --systems tfasr,flashlight "
                "--output {work}/decoder.json",
            ),
        ),
        _decoder,
        SEARCH,
        4,
    ),
    "search_recombined": Figure(
        "word beam search with recombination; with a KenLM bigram",
        (
            _bench(
                "decoder",
                "--load {decoding} --beam_widths 32,64 "
                "--systems tfasr_recombine,tfasr_kenlm,tfasr_kenlm_recombine "
                "--output {work}/decoder.json",
            ),
        ),
        _decoder,
        SEARCH,
        2,
    ),
    "prepare": Figure(
        "FLAC to shards on all cores, features included",
        (_bench("prepare", "--audio_dir {librispeech} --rounds 2 --format json"),),
        _prepare,
        ("tfasr/data", "tfasr/corpora", "benchmarks/prepare.py"),
        3,
    ),
    "workers": Figure(
        "two workers of one thread against one process of two, AN4, batch 16",
        (
            _bench(
                "cluster",
                "--shard_dir {shards} --gin_file fast/an4.gin --steps 60 --format json",
            ),
        ),
        _workers,
        (
            *TRAINING,
            "tfasr/cluster",
            "benchmarks/cluster.py",
            "benchmarks/cluster_steps.py",
        ),
        3,
    ),
    "overlap": Figure(
        "decoding in parallel with training, beam width 4096, against decoding in turn",
        (
            "{python} -m tfasr.cli demo --demo_dir {work}/demo",
            _bench(
                "overlap",
                "--shard_dir {work}/demo/shards --epochs 4 --rounds 1 --format json",
            ),
        ),
        _overlap,
        TRAINING,
        6,
    ),
    "demo": Figure(
        "the demo's two recipes",
        ("{python} -m tfasr.cli demo --demo_dir {work}/demo",),
        _demo,
        (*TRAINING, "gin/demo.gin"),
        5,
    ),
}
_GPU_CODE = (*STEP, "tfasr/bench/steppers.py", "benchmarks/gpu", "gin/fast/an4.gin")
_GPU_RUN = "benchmarks/gpu/run --out results --data packed --pieces"
# Measured where TensorFlow isn't; rows are taken by hand from what the commands write.
ON_A_GPU = {
    name: Figure(what, (f"{_GPU_RUN} {piece}",), None, _GPU_CODE, 9)
    for name, what, piece in (
        ("gpu_step_paper", "training step, paper's model, 16 x 1670 frames", "steps"),
        ("gpu_step_an4", "training step, `an4` size, 16 x 300 frames", "steps"),
        ("gpu_an4_time", "AN4 to dev CER 15 %, recipe of `fast/an4.gin`, TF32", "an4"),
    )
}
# Strings are matched too: what looks like a comment within one isn't. Comments have no
# group.
_STRING = r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'(?!\w))|"""
_CPP = re.compile(_STRING + r"//[^\n]*|/\*[\s\S]*?\*/")
_STRINGS_AND_COMMENTS = {
    **{".cpp": _CPP, ".hpp": _CPP, ".inc": _CPP},
    ".gin": re.compile(_STRING + r"#[^\n]*"),
}
_WIDTH = 118  # of the page
_ZEN_5 = re.compile(r"^cpu family\s*:\s*26$", re.MULTILINE)
_PREPARED = {"train": "train.tsv", "validation": "dev.tsv"}


def code_hash(paths: Iterable[str]) -> str:
    """Returns a hash of source files that comments, docstrings and layout don't change."""
    digest = hashlib.sha256()
    for name in paths:
        path = ROOT / name
        if path.is_dir():
            files = sorted(path.rglob("*"))
        elif path.is_file():
            files = [path]
        else:
            files = []

        for file in files:
            if file.suffix == ".py":
                digest.update(_without_prose(file.read_text(encoding="utf-8")).encode())
            elif pattern := _STRINGS_AND_COMMENTS.get(file.suffix):
                code = pattern.sub(r"\1", file.read_text(encoding="utf-8"))
                digest.update("".join(code.split()).encode())

    return digest.hexdigest()[:16]


@functools.cache
def _without_prose(source: str) -> str:
    """Returns a module's source without comments, docstrings and white space."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            spans.append(
                ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
            )

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            begin = len(token.line[: token.start[1]].encode())
            spans.append(
                (
                    (token.start[0], begin),
                    (token.start[0], len(lines[token.start[0] - 1])),
                )
            )

    for (first, begin), (last, end) in sorted(spans, reverse=True):
        head = lines[first - 1][:begin]
        tail = lines[last - 1][end:]
        lines[first - 1 : last] = [head + tail] + [b""] * (last - first)

    return "".join(b"".join(lines).decode().split())


def read_results() -> list[dict[str, Any]]:
    """Returns the kept figures, the newest first."""
    rows = []
    if RESULTS.exists():
        rows = json.loads(RESULTS.read_text(encoding="utf-8"))

    return sorted(rows, key=lambda row: row["date"], reverse=True)


def is_stale(row: dict[str, Any]) -> bool:
    """Returns whether the code that a figure measures has changed since."""
    return row["code"] != code_hash((FIGURES | ON_A_GPU)[row["name"]].code)


def is_disturbed(row: dict[str, Any]) -> bool:
    """Whether the machine took more from a figure's commands than a study allows."""
    from tfasr.studies.plan import StudyConfig

    return row.get("taken", 0.0) > StudyConfig.most_taken


def page(rows: list[dict[str, Any]]) -> str:
    """Returns docs/measured.md."""
    intro = (
        "`make measured CORPORA=FOLDER` measures these figures on your machine, in one "
        "run with their peers, and writes this page; "
        "`python benchmarks/measured.py --only NAME` measures one, `--list` prints the "
        "commands, and `benchmarks/gpu/run` those of a GPU. Trust the ratios: seconds "
        "depend on the machine. The last column says of which commit a figure is; "
        "\u2020 marks code that has changed since. Older figures and those of other "
        f"machines: [earlier]({os.path.relpath(EARLIER, PAGE.parent)})."
    )
    return _page("# What was measured", intro, shown(rows))


def earlier_page(rows: list[dict[str, Any]]) -> str:
    """Returns benchmarks/results/measured.md: the figures that docs/measured.md leaves out."""
    intro = (
        "Figures of code that has been measured anew since, or of machines on which the "
        "present code hasn't been measured. `python benchmarks/measured.py --page` "
        "writes this file."
    )
    newer = shown(rows)
    return _page("# Measured earlier", intro, [row for row in rows if row not in newer])


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns docs/measured.md's rows: the current ones, the newest on top, and, of a
    figure without a current row, the newest one.
    """
    current = [row for row in rows if not is_stale(row)]
    named = {row["name"] for row in current}
    for row in rows:
        if row["name"] not in named:
            named.add(row["name"])
            current.append(row)

    return [row for row in rows if row in current]


def _page(heading: str, intro: str, rows: list[dict[str, Any]]) -> str:
    lines = [heading, "", *textwrap.wrap(intro, _WIDTH, break_on_hyphens=False)]
    for name in dict.fromkeys(row["processor"] for row in rows):
        lines += ["", f"## {name}", "", "| name | what | figure | measured |"]
        lines += ["|---|---|---|---|"]
        lines += [_line(row) for row in rows if row["processor"] == name]

    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    """Returns a figure as a row of a Markdown table."""
    what = (FIGURES | ON_A_GPU)[row["name"]].what
    when = f"{row['date']}, {row['commit']}"
    if is_stale(row):
        when += " \u2020"

    if is_disturbed(row):
        when += f", *disturbed: the machine took {100 * row['taken']:.0f} %*"

    return f"| `{row['name']}` | {what} | {row['figure']} | {when} |"


def _shown(command: str) -> str:
    command = command.replace("{python} -m tfasr.cli", "tfasr").replace(
        "{python}", "python"
    )
    return command.replace("{", "").replace("}", "").replace(" --no_memory_probe", "")


def processor() -> str:
    """Returns the processor's name with what tells its generation."""
    from tfasr.telemetry.system import describe_system

    machine = describe_system()
    instructions = ", ".join(machine["processor_details"]["instructions"])
    name = machine["processor"]
    listed = Path("/proc/cpuinfo")

    # A host may hide the number of the model, and Zen 4 and 5 have the same
    # instructions.
    if name == "AMD EPYC" and listed.exists() and _ZEN_5.search(listed.read_text()):
        name += ", Zen 5"

    return f"{machine['cores']} cores of {name} ({instructions})"


def measure(
    name: str, corpora: Path, work: Path, *, again: bool = False
) -> dict[str, Any]:
    """Runs a figure's commands and returns its row; ``again``: without runs that are there."""
    from tfasr.telemetry.host import HostSampler
    from tfasr.tta.host import read_host_file, whole_use

    figure = FIGURES[name]
    # A folder for each version of the code, so that no figure is read from runs of
    # another one.
    folder = work / f"{name}-{code_hash(figure.code)}"
    if again:
        shutil.rmtree(folder, ignore_errors=True)

    folder.mkdir(parents=True, exist_ok=True)
    places = {"python": sys.executable, "work": folder}
    places |= {shards: work / shards for shards in _SHARDS}
    places |= {part: corpora / part for part in ("an4", "librispeech", "decoding")}
    printed = ""

    with tempfile.TemporaryDirectory() as samples:
        with HostSampler(Path(samples), 0):
            for command in figure.commands:
                words = [word.format(**places) for word in shlex.split(command)]
                printed += _printed(name, words)

        use = whole_use(read_host_file(samples))

    git = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return {
        "name": name,
        "figure": figure.read(printed, folder),
        "processor": processor(),
        "load": round(os.getloadavg()[2], 2),
        "taken": round(1 - use.share, 3),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": subprocess.run(
            git, capture_output=True, text=True, check=True
        ).stdout.strip(),
        "code": code_hash(figure.code),
    }


def _printed(name: str, words: list[str]) -> str:
    """Runs a figure's command and returns what it printed."""
    if "train" in words and Path(words[-1], "experiment.json").exists():
        # Of an interrupted measurement; a finished run stays as it is.
        words.append("--resume")

    print("$", shlex.join(words), flush=True)
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{name}: the command ended with {done.returncode}.\n{done.stdout}"
        )

    return done.stdout


def measured_quietly(
    name: str, corpora: Path, work: Path, *, again: bool
) -> dict[str, Any]:
    """Measures a figure, and once more if the machine was busy; the second row counts."""
    row = measure(name, corpora, work, again=again)
    if not is_disturbed(row):
        return row

    print(
        f"{name}: the machine took {100 * row['taken']:.0f} %; it is measured again.",
        flush=True,
    )

    return measure(name, corpora, work, again=True)


def _prepare_an4(corpora: Path, work: Path, needed: Iterable[str]) -> None:
    for shards, split in itertools.product(needed, _PREPARED):
        command = [sys.executable, "-m", "tfasr.cli", "prepare", "--corpus", "tsv"]
        command += [
            "--corpus_dir",
            corpora / "an4",
            "--manifest",
            f"splits/{_PREPARED[split]}",
        ]
        command += ["--split", split, "--shard_dir", work / shards]
        command += ["--gin_file", _SHARDS[shards]]
        subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--corpora", type=Path, help="folder with an4, librispeech and decoding"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/measured"), help="for runs"
    )
    parser.add_argument(
        "--only", nargs="+", choices=FIGURES, metavar="NAME", default=FIGURES
    )
    parser.add_argument(
        "--again", action="store_true", help="measure current figures too"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the figures and their commands"
    )
    parser.add_argument(
        "--page", action="store_true", help="measure nothing, write the page"
    )
    flags = parser.parse_args()

    if flags.list:
        for name, figure in FIGURES.items():
            print(f"{name} (about {figure.minutes:g} min): {figure.what}")
            print(
                "".join(f"    {_shown(command)}\n" for command in figure.commands),
                end="",
            )

        return

    if not flags.page:
        if not flags.corpora or not flags.corpora.is_dir():
            parser.error(f"--corpora must be a folder. Received: {flags.corpora}.")

        here = processor()
        work = flags.work.resolve()
        commands = [
            command for name in flags.only for command in FIGURES[name].commands
        ]
        needed = [
            s for s in _SHARDS if any(f"{{{s}}}" in command for command in commands)
        ]
        # again: skips what is there
        _prepare_an4(flags.corpora.resolve(), work, needed)

        for name in flags.only:
            rows = read_results()
            mine = [
                row for row in rows if (row["name"], row["processor"]) == (name, here)
            ]
            if mine and not is_stale(mine[0]) and not flags.again:
                print(f"{name}: current, skipped.")
                continue

            row = measured_quietly(
                name, flags.corpora.resolve(), work, again=flags.again
            )
            print(f"{name}: {row['figure']}", flush=True)
            rows = [row, *(other for other in rows if other not in mine)]
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    rows = read_results()
    PAGE.write_text(page(rows), encoding="utf-8")
    EARLIER.write_text(earlier_page(rows), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
