"""``tfasr evaluate``: scores trained models on prepared splits."""

import argparse
import contextlib
import functools
import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr import errors
from tfasr.decoding.choice import DECODERS
from tfasr.display.table import WRITERS, formats
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import check_owned, check_replaceable, object_or_empty, write_whole

if TYPE_CHECKING:
    from tfasr.decoding.choice import DecoderConfig
    from tfasr.decoding.language_models import KenlmModel
    from tfasr.recognising.files import Outcome, Source
    from tfasr.recognising.recogniser import Recogniser
    from tfasr.recognising.spec import StreamResult, Transcript
    from tfasr.training.evaluation import EvaluationResult

log = logging.getLogger("tfasr")
STDIN = "-"
STREAMED = ("json", "text")
MOST_CHUNK_MS = 3_600_000
_FILES = ("scores.json", "scores.md", "scores.csv", "scores.tex")


def add_decoder_arguments(add: Callable) -> None:
    add("--decoder", choices=tuple(DECODERS), help="default: the run's own")
    add("--beam_width", type=int, help="default: the run's own")
    recombine = "for word_beam: merge beams that would continue in the same way"
    add("--recombine", action="store_true", default=None, help=recombine)
    ngrams = "an n-gram file, see tfasr ngram; decodes with word_beam; needs tfasr[kenlm]"
    add("--language_model", metavar="ARPA", help=ngrams)
    lexicon = "a dictionary for word_beam, one word a line; default: the run's"
    add("--lexicon", metavar="FILE", help=lexicon)
    add("--lm_weight", type=float, help="power of the language model's probabilities; default: 1")
    bonus = "added to the log score per word; higher gives more words; default: 0"
    add("--word_bonus", type=float, help=bonus)


@contextlib.contextmanager
def progress(done: str, total: int) -> Iterator[Callable[..., None]]:
    """Draws a progress bar on a terminal; yields a function that adds 1, or N, to its count."""
    quiet = not logging.getLogger("tfasr").isEnabledFor(logging.INFO)
    if total < 2 or quiet or not sys.stderr.isatty():
        yield lambda _=1: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (done, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors.stderr_console()) as bar:
        task = bar.add_task("", total=total)
        yield lambda count=1: bar.advance(task, count)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    several = {"action": "append", "required": True}
    add("--run_dir", **several, help="a folder that tfasr train wrote; repeatable, one row each")
    add("--shard_dir", help="default: the one that the run was trained with")
    add("--split", **several, help="a prepared split; repeatable, one column each")
    add_decoder_arguments(add)
    priors = "divide probabilities by their means in training to this power, say 0.5; default: 0"
    add("--prior_weight", type=float, default=0.0, help=priors)
    middle = "rescore word_beam's best texts by the middle layer, times this, say 0.5; default: 0"
    add("--middle_weight", type=float, default=0.0, help=middle)
    add("--checkpoint", default="best", help="best, last or a file")
    add("--hypotheses", help="a file to write the texts to, as JSON lines")
    files = f"write {', '.join(_FILES[:-1])} and {_FILES[-1]} to this folder"
    add("--out", metavar="DIR", help=files)
    add("--format", choices=formats(), default="table")


def run(arguments: argparse.Namespace) -> None:
    for name in ("run_dir", "split"):  # a repeated one is scored once
        setattr(arguments, name, list(dict.fromkeys(getattr(arguments, name))))
    single = len(arguments.run_dir) == len(arguments.split) == 1
    if arguments.hypotheses:
        path = Path(arguments.hypotheses)
        check_replaceable(path)
        if not path.absolute().parent.is_dir():
            raise UsageError(
                f"--hypotheses must be in a folder that exists. Received: {path}. Make its folder, "
                "or choose another one."
            )
        if not single:
            raise UsageError(
                "--hypotheses needs a single run and a single split. Received: "
                f"{len(arguments.run_dir)} runs, {len(arguments.split)} splits."
            )
    if arguments.out:  # fails now, not after the work, if the place can't be written to
        folder = Path(arguments.out)
        owned = "rows" in object_or_empty(folder / _FILES[0])
        check_owned(folder, "--out", "scores of tfasr", _FILES, owned=owned)
        folder.mkdir(parents=True, exist_ok=True)
    rows = _scored(arguments, single)
    if arguments.out:
        from tfasr.reports.tables.paper import scores_table
        from tfasr.reports.write import write_tables

        write_tables([scores_table(rows)], folder)
        write_whole(folder / "scores.md", _collated(rows, "markdown"))
        # last: if this file exists, all others do
        write_whole(folder / "scores.json", _collated(rows, "json"))
    if not single or arguments.format not in ("table", "markdown", "json"):
        print(_collated(rows, arguments.format), end="")


def _scored(arguments: argparse.Namespace, single: bool) -> list[dict[str, Any]]:
    from tfasr.reports.numbers import distinct_names
    from tfasr.training.trained import open_trained

    model = language_model(arguments)
    names = distinct_names([Path(run_dir) for run_dir in arguments.run_dir])
    rows = []
    for name, run_dir in zip(names, arguments.run_dir, strict=True):
        trained = open_trained(run_dir)
        decoder = trained.decoder(
            name=decoder_name(arguments),
            beam_width=arguments.beam_width,
            recombine=arguments.recombine,
        )
        for split in arguments.split:
            flags = ("shard_dir", "lexicon", "prior_weight", "middle_weight", "checkpoint")
            options = {flag: getattr(arguments, flag) for flag in flags}
            options["progress"] = functools.partial(progress, f"{name}, {split}: evaluated")
            result = trained.evaluate(split, decoder, language_model=model, **options)
            if arguments.hypotheses:
                result.write_hypotheses(Path(arguments.hypotheses))
            scores = _scores(result)
            if single:
                _print_one(scores, result, arguments.format)
            about = {"run": name, "split": split, **_decoder(decoder, arguments, model)}
            if trained.experiment.features.normalisation == "speaker":
                about["normalised_over"] = "speaker"
            rows.append({**about, **scores, "loss": result.loss})
    return rows


def decoder_name(arguments: argparse.Namespace) -> str | None:
    """Returns the flags' decoder, which is word_beam with a language model; None: the run's own."""
    return arguments.decoder or ("word_beam" if arguments.language_model else None)


def language_model(arguments: argparse.Namespace) -> "KenlmModel | None":
    """Loads the language model that the flags name; UsageError if it can't be loaded."""
    from tfasr.decoding.language_models import KenlmModel

    numbers = {"weight": arguments.lm_weight, "word_bonus": arguments.word_bonus}
    options = {name: value for name, value in numbers.items() if value is not None}
    if arguments.language_model is not None:
        with errors.wrong_values_are_wrong_use():
            return KenlmModel(arguments.language_model, **options)
    if options:
        raise UsageError(
            "--lm_weight and --word_bonus need a language model. Received: no --language_model."
        )
    return None


def _scores(result: "EvaluationResult") -> dict[str, Any]:
    from tfasr.scoring.errors import count_errors
    from tfasr.scoring.summary import summarise

    return summarise(
        [
            count_errors([utterance.text], [hypothesis.text])
            for utterance, hypothesis in zip(result.utterances, result.hypotheses, strict=True)
        ],
        [utterance.speaker for utterance in result.utterances],
    ).to_json()


def _decoder(
    decoder: "DecoderConfig", arguments: argparse.Namespace, model: "KenlmModel | None"
) -> dict[str, Any]:
    width = decoder.beam_width if DECODERS[decoder.name].has_beam else None
    about = {"decoder": decoder.name, "beam_width": width, "checkpoint": arguments.checkpoint}
    if arguments.lexicon is not None:
        about["lexicon"] = arguments.lexicon
    about |= {n: v for n in ("prior_weight", "middle_weight") if (v := getattr(arguments, n))}
    if model is not None:
        about |= {"language_model": str(model.path), "lm_weight": model.weight}
        about |= {"word_bonus": model.word_bonus}
    return about


def _collated(rows: list[dict[str, Any]], output_format: str) -> str:
    if output_format == "json":
        return json.dumps({"rows": rows}, indent=1) + "\n"
    from tfasr.reports.tables.paper import scores_table

    return WRITERS[output_format]([scores_table(rows)])


def _print_one(scores: dict[str, Any], result: "EvaluationResult", output_format: str) -> None:
    from tfasr.scoring.errors import kaldi_line

    if output_format == "json":
        print(json.dumps({**scores, "loss": result.loss}))
    elif output_format in ("table", "markdown"):
        rows = _rows(scores, result.loss)
        if output_format == "markdown":
            print("| measure | value |\n|---|---|")
            print("\n".join(f"| {name} | {value} |" for name, value in rows))
        else:
            from rich.console import Console
            from rich.table import Table

            table = Table("measure", "value")
            for row in rows:
                table.add_row(*row)
            Console().print(table)
        print(kaldi_line(result.counts))


def _rows(scores: dict[str, Any], loss: float) -> list[tuple[str, str]]:
    rates = {"WER": "wer", "CER": "cer", "CER over the reference": "cer_reference"}
    counts = ("substitutions", "deletions", "insertions", "words")
    return [
        ("utterances", str(scores["utterances"])),
        *((label, f"{scores[key]:.2%}{_interval(scores, key)}") for label, key in rates.items()),
        *((name, str(scores[name])) for name in counts),
        ("CTC loss per utterance", f"{loss:.3f}"),
    ]


def _interval(scores: dict[str, Any], key: str) -> str:
    by_speaker = scores.get(f"{key}_interval_by_speaker")
    ends = by_speaker or scores.get(f"{key}_interval")
    if ends is None:
        return ""
    count, of = scores["utterances"], "utterances"
    if by_speaker:
        count, of = scores["speakers_resampled"], "speakers"
    low, high, share = 100 * ends[0], ends[1], scores["confidence"]
    return f" ({share:.0%}: {low:.2f} to {high:.2%}, resampling {count} {of})"


def add_transcribe_arguments(parser: argparse.ArgumentParser) -> None:
    from tfasr.recognising.files import FORMATS  # here, as other commands don't need soundfile

    add = parser.add_argument
    recordings = (
        "recordings of any rate and format that libsndfile or ffmpeg reads, folders of them, "
        "or - for raw PCM from standard input: signed 16 bit, little endian, one channel, at the "
        "model's rate (16 kHz)"
    )
    add("audio", nargs="+", metavar="FILE|DIR|-", help=recordings)
    add("--run_dir", required=True, help="a folder that tfasr train wrote")
    add("--format", choices=tuple(FORMATS), help="default: text; with --stream: json, or text")
    files = "write a file per recording to this folder; finished recordings are skipped"
    add("--out", metavar="DIR", help=files)
    add_recogniser_arguments(add)
    add("--batch_size", type=int, default=16, help="default: %(default)s")
    stream = (
        "transcribe one recording, or -, as it arrives: a line of JSON in Vosk's format "
        "whenever the text changes; needs a model that can stream"
    )
    add("--stream", action="store_true", help=stream)
    add("--chunk_ms", type=float, default=100.0, help="with --stream; default: %(default)g")
    whole = (
        "with --stream: treat the whole recording as one utterance; otherwise an utterance "
        "ends after 1.2 s of silence, or after 20 s"
    )
    add("--no_endpoints", action="store_true", help=whole)


def add_recogniser_arguments(add: Callable) -> None:
    add("--checkpoint", default="best", help="of a run: best, last or a file; default: %(default)s")
    add_decoder_arguments(add)


def recogniser_of(arguments: argparse.Namespace) -> "Recogniser":
    from tfasr.recognising.recogniser import load_recogniser

    names = ("checkpoint", "beam_width", "recombine", "lexicon")
    options = {name: getattr(arguments, name) for name in names}
    options |= {"decoder": decoder_name(arguments), "language_model": language_model(arguments)}
    return load_recogniser(arguments.run_dir, **options)


def run_transcribe(arguments: argparse.Namespace) -> None:
    """``tfasr transcribe``: recordings to text, subtitles or time-marked words."""
    from tfasr.recognising.files import FORMATS, find_sources

    if arguments.batch_size < 1:
        raise UsageError(f"--batch_size must be at least 1. Received: {arguments.batch_size}.")
    if arguments.format is None:
        arguments.format = "json" if arguments.stream else "text"
    if arguments.stream:
        _run_stream(arguments)
        return
    written_as = FORMATS[arguments.format]
    if STDIN in arguments.audio:
        _check_alone(arguments, "- must stand alone, without other recordings and without --out.")
        recogniser = recogniser_of(arguments)
        transcript = recogniser.transcribe_blocks(_pcm(recogniser.sample_rate_hz))
        sys.stdout.write(written_as.header + written_as.write(STDIN, transcript))
        return
    sources = find_sources(arguments.audio)
    if arguments.out is None and len(sources) > 1 and not written_as.joins:
        raise UsageError(
            f"--format {arguments.format} needs a single recording. Received: {len(sources)} "
            "without --out. Name a folder with --out to get a file for each."
        )
    _check_found([source.path for source in sources])
    recogniser = recogniser_of(arguments)
    outcome = _transcribe(arguments, recogniser, sources)
    if outcome.failed:
        raise RunError(
            f"Every recording must be readable. {len(outcome.failed)} of {len(sources)} could not "
            "be transcribed; the messages are above, and the others are done."
        )


def _transcribe(
    arguments: argparse.Namespace, recogniser: "Recogniser", sources: "list[Source]"
) -> "Outcome":
    from tfasr.recognising.files import FORMATS, ResultFolder, transcribe_sources

    folder = None
    if arguments.out is not None:
        folder = ResultFolder(Path(arguments.out), arguments.format, recogniser, sources)
    waiting = [source for source in sources if folder is None or not folder.has(source)]
    if len(waiting) < len(sources):
        log.info("%d of %d are in --out already", len(sources) - len(waiting), len(sources))
    written_as = FORMATS[arguments.format]
    if folder is None:
        sys.stdout.write(written_as.header)
    with progress("transcribed", len(waiting)) as advance:

        def finished(source: "Source", transcript: "Transcript") -> None:
            if folder is not None:
                folder.write(source, transcript)
            else:
                named = arguments.format == "text" and len(sources) > 1
                text = written_as.write(source.name, transcript)
                name = errors.printable(source.name, one_line=True)
                sys.stdout.write(f"{name}\t{text}" if named else text)
                sys.stdout.flush()
            advance()

        def failed(source: "Source", reason: str) -> None:
            log.error("%s is skipped: %s", errors.printable(source.name, one_line=True), reason)
            advance()

        return transcribe_sources(recogniser, waiting, finished, failed, arguments.batch_size)


def _check_alone(arguments: argparse.Namespace, rule: str) -> None:
    if len(arguments.audio) > 1 or arguments.out is not None:
        out = " with --out" if arguments.out is not None else ""
        raise UsageError(f"{rule} Received: {' '.join(arguments.audio)}{out}.")


def _check_found(audio: Sequence[str | Path]) -> None:
    """Raises UsageError if no recording exists; if some do, missing ones are skipped later."""
    if not any(Path(path).exists() for path in audio):
        raise UsageError(f"Recordings must be files or folders. {errors.received_path(audio[0])}")


def _run_stream(arguments: argparse.Namespace) -> None:
    _check_alone(arguments, "--stream takes one recording, without --out.")
    if arguments.format not in STREAMED:
        raise UsageError(
            f"--stream must be written as {' or '.join(STREAMED)}. Received: --format "
            f"{arguments.format}."
        )
    if not 0 < arguments.chunk_ms <= MOST_CHUNK_MS:
        limits = f"positive, at most {MOST_CHUNK_MS}"
        raise UsageError(f"--chunk_ms must be {limits}. Received: {arguments.chunk_ms}.")
    if arguments.audio != [STDIN]:
        _check_found(arguments.audio)
    from tfasr.recognising.segments import EndpointRules

    recogniser = recogniser_of(arguments)
    stream = recogniser.open_stream(None if arguments.no_endpoints else EndpointRules())
    (audio,) = arguments.audio
    rate_hz, chunk_s = recogniser.sample_rate_hz, arguments.chunk_ms / 1000
    if audio == STDIN:
        chunks = _pcm(rate_hz, chunk_s)
    else:
        from tfasr.data.audio import audio_blocks, warn

        chunks = audio_blocks(audio, rate_hz, chunk_s, remark=warn)
    try:
        for chunk in chunks:
            _write_results(stream.push(chunk), arguments.format)
    except ValueError as error:  # the audio can't be read
        raise RunError(str(error)) from error
    _write_results(stream.finish(), arguments.format)


def _write_results(results: "list[StreamResult]", output_format: str) -> None:
    from tfasr.recognising.files import stream_json

    for result in results:
        if output_format == "json":
            sys.stdout.write(stream_json(result))
        elif result.final:
            sys.stdout.write(result.text + "\n")
    sys.stdout.flush()


def _pcm(sample_rate_hz: int, chunk_s: float = 1.0) -> Iterator:
    from tfasr.recognising.spec import pcm_chunks

    if sys.stdin is None:
        raise UsageError("- needs samples from standard input. Received: it is closed.")
    return pcm_chunks(sys.stdin.buffer, sample_rate_hz, chunk_s)


LIMITS = (
    ("max_streams", 16, "simultaneous streams, and simultaneous files"),
    ("max_stream_s", 3600.0, "seconds of a stream, or of a file's upload"),
    ("max_upload_mb", 500.0, "millions of bytes of a file"),
    ("max_upload_s", 14400.0, "seconds of audio in a file"),
    ("idle_s", 30.0, "seconds after which an inactive client is disconnected"),
)


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run_dir", required=True, help="a folder that tfasr train or tfasr export wrote")
    add("--host", default="127.0.0.1", help="default: %(default)s, only for this machine")
    add("--port", type=int, default=8765, help="default: %(default)s; 0: any free one")
    names = (
        "another name under which browsers may open the page, such as a proxy's (NAME:PORT if its "
        "port differs); repeatable"
    )
    add("--allow_host", action="append", default=[], metavar="NAME", help=names)
    add_recogniser_arguments(add)
    limits = parser.add_argument_group("limits")
    for name, default, meaning in LIMITS:
        text = f"{meaning}; default: %(default)g"
        limits.add_argument(f"--{name}", type=type(default), default=default, help=text)


def run_serve(arguments: argparse.Namespace) -> None:
    """``tfasr serve``: opens a web page to drop recordings on or to speak into."""
    with errors.optional_package(
        "aiohttp", "tfasr serve", "'tfasr[serve]', or pip install aiohttp"
    ):
        importlib.import_module("aiohttp")
    from tfasr.serving.server import serve
    from tfasr.serving.service import Limits

    limits = Limits(**{name: getattr(arguments, name) for name, _, _ in LIMITS})
    recogniser = recogniser_of(arguments)
    if arguments.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning(
            "--host %s: everyone who can reach this machine can use the page, without a password "
            "or encryption; a microphone works only through https or on localhost.",
            arguments.host,
        )
    serve(
        recogniser,
        name=Path(arguments.run_dir).resolve().name,
        host=arguments.host,
        port=arguments.port,
        limits=limits,
        allowed_hosts=arguments.allow_host,
        started=lambda url: print(f"{arguments.run_dir} at {url} (Ctrl-C ends it)", flush=True),
    )


EXPORTS = ("onnx", "sherpa", "litert", "keras", "saved_model")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    targets = (
        "onnx: a folder for ONNX Runtime and tfasr; sherpa: for sherpa-onnx; litert: for LiteRT "
        "(TensorFlow Lite) and tfasr; keras: a .keras file; saved_model: for TensorFlow without "
        "Keras"
    )
    add("--to", choices=EXPORTS, required=True, help=targets)
    add("--run_dir", required=True, help="a folder that tfasr train wrote")
    add("--out", required=True, metavar="DIR", help="a new or empty folder")
    add("--int8", action="store_true", help="large weight matrices in 8 bits: onnx, sherpa, litert")
    add("--checkpoint", default="best", help="best, last or a file")
    add("--split", default="validation", help="to compare export and run on; default: %(default)s")
    add("--shard_dir", help="where the split is; default: the run's shards")
    add("--data_licence", help="of the training data, for the model card")


def run_export(arguments: argparse.Namespace) -> None:
    """``tfasr export``: a trained recogniser as files that other programs run."""
    from tfasr.exporting.export import export
    from tfasr.scoring.summary import CONFIDENCE

    names = ("to", "run_dir", "out", "int8", "checkpoint", "split", "shard_dir", "data_licence")
    comparing = functools.partial(progress, f"compared on {arguments.split}")
    done = export(**{name: getattr(arguments, name) for name in names}, progress=comparing)
    same = done.utterances - done.differing_texts
    print(f"{done.folder}: {done.bytes / 1e6:.2f} MB, float32 is {done.float32_bytes / 1e6:.2f} MB")
    print(
        f"{arguments.split}: {same} of {done.utterances} utterances have the run's text, "
        f"log-probabilities within {done.difference:.2g}; WER {done.wer:.2%}"
    )
    if done.int8 is not None:
        interval = done.int8.by_speaker or done.int8.by_utterance
        ends = ""
        if interval is not None:
            low, high = interval.interval
            ends = f" ({CONFIDENCE:.0%}: {100 * low:+.2f} to {100 * high:+.2f})"
        print(f"int8 against float32: WER {100 * done.int8.wer_difference:+.2f} points{ends}")
        print(
            f"int8: {done.audio_s_per_s:.0f} times real time on one core, float32: "
            f"{done.float32_audio_s_per_s:.0f} (the model alone, given features; measured once)"
        )
