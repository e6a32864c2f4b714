"""The README of an exported recogniser: what it is, what it was trained on, what it can do."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr._version import __version__
from tfasr.analysis.cluster_energy import measured_energy
from tfasr.errors import UsageError
from tfasr.recognising.spec import RecogniserSpec
from tfasr.scoring.bootstrap import CONFIDENCE
from tfasr.scoring.summary import RateSummary
from tfasr.tta.load import load_run
from tfasr.tta.run import Run

UNKNOWN = "not recorded"
WORD_LIMITS = (
    "Its confidences are posteriors of the model, not calibrated probabilities; word times are "
    "those of its CTC alignment, a tenth of a second or two off."
)
"""Of what tfasr says of words, measured on synthetic speech: ``benchmarks/word_times.py``."""


@dataclass(frozen=True)
class CardFacts:
    """What a card tells that is not read from the run.

    Attributes:
        split: the utterances that the rates are of.
        rates: of the exported graph, greedily decoded.
        int8: whether its weights are eight bits wide.
        data_licence: of the training data.
    """

    split: str
    rates: RateSummary
    int8: bool
    data_licence: str | None


@dataclass(frozen=True)
class CardForm:
    """What a card tells of the files that a recogniser was exported to.

    Attributes:
        files: what holds the model, in Markdown.
        commands: that use it, a line each.
        streams: whether it can hear speech as it comes.
        limits: of what it says, in Markdown.
        contents: of the files, in Markdown.
    """

    files: str
    commands: tuple[str, ...]
    streams: bool
    limits: str
    contents: str


def model_card(run_dir: Path, spec: RecogniserSpec, facts: CardFacts, form: CardForm) -> str:
    """Returns the card as Markdown; what the run does not tell is said not to be known."""
    run = _run(run_dir)
    lines = [
        "# A speech recogniser",
        "",
        f"A CTC model of the kind `{spec.model}`, exported by tfasr {__version__} to "
        f"{form.files}{' with int8 weights' if facts.int8 else ''}. "
        f"It {'can' if form.streams else 'cannot'} stream.",
        "",
        "```sh",
        *form.commands,
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _rows(run, spec, facts)),
        "",
        "## Limits",
        "",
        f"It writes nothing but {_characters(spec)}. It has been measured on the split named above "
        "and on nothing else: other microphones, rooms, accents and subjects will be heard worse. "
        f"{form.limits} Do not use it where an error would harm someone.",
        "",
        "## Files",
        "",
        f"{form.contents} `SHA256SUMS` holds the hashes of all files: "
        "`sha256sum --check SHA256SUMS`.",
    ]
    return "\n".join(lines) + "\n"


def _characters(spec: RecogniserSpec) -> str:
    shown = spec.alphabet.characters.replace(spec.alphabet.separator or "", "")
    return f"these {len(shown)} characters: `{shown}`"


def _rows(run: Run | None, spec: RecogniserSpec, facts: CardFacts) -> list[tuple[str, str]]:
    rates = facts.rates
    return [
        ("trained on", _trained_on(run)),
        ("licence of the data", facts.data_licence or UNKNOWN),
        (f"WER on {facts.split}, greedy", _rate(rates.counts.wer, _interval(rates, "wer"))),
        (f"CER on {facts.split}, greedy", _rate(rates.counts.cer, _interval(rates, "cer"))),
        *_times(run),
        ("hardware", _hardware(run)),
        ("energy of the training", _energy(run)),
        ("samples", f"{spec.features.sample_rate_hz} Hz, one channel"),
        ("normalisation of features", spec.features.normalisation),
    ]


def _run(run_dir: Path) -> Run | None:
    try:
        return load_run(run_dir)
    except UsageError:  # a run whose ledger is gone can still be exported
        return None


def _trained_on(run: Run | None) -> str:
    samples = run.fact("train_samples") if run is not None else None
    return UNKNOWN if samples is None else f"{samples} utterances"


def _interval(rates: RateSummary, metric: str) -> tuple[float, float] | None:
    by_speaker = getattr(rates, f"{metric}_interval_by_speaker")
    return by_speaker or getattr(rates, f"{metric}_interval")


def _rate(rate: float, interval: tuple[float, float] | None) -> str:
    ends = "too few utterances for an interval"
    if interval is not None:
        ends = f"{CONFIDENCE:.0%}: {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"
    return f"{100 * rate:.2f} % ({ends})"


def _times(run: Run | None) -> list[tuple[str, str]]:
    targets = run.targets if run is not None else []
    if not targets:
        return [("time to accuracy", UNKNOWN)]
    return [
        (f"time to {metric.upper()} {100 * target:g} %", _time(run, metric, target))
        for metric, target in targets
    ]


def _time(run: Run, metric: str, target: float) -> str:
    return run.time_to_accuracy(**{metric: target}).summary


def _hardware(run: Run | None) -> str:
    facts: dict[str, Any] = run.system if run is not None else {}
    system = facts.get("system") or {}
    gpus = [str(gpu) for gpu in system.get("gpus") or []]
    cores = system.get("cores")
    processor = str(system.get("processor") or "")
    parts = [", ".join(gpus), f"{cores} cores of {processor}" if cores and processor else processor]
    return "; ".join(filter(None, parts)) or UNKNOWN


def _energy(run: Run | None) -> str:
    use = None if run is None else measured_energy(run).use(run, math.inf)
    if use is None:
        return UNKNOWN
    return f"{use.total_joules / 3.6e6:.4g} kWh of {', '.join(use.counters)}, and of nothing else"
