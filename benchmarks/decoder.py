"""CPU time, error rates and peak memory of word beam search and its peers.

Every measurement runs in its own process on one thread:

    python benchmarks/decoder.py --load FOLDER --beam_widths 64,256 --output results.json

FOLDER has a recogniser's outputs and texts, ``load.npz``, and text for language models,
``corpus.txt.gz``. Peers ("n/a" if not installed): flashlight-text (lexicon decoder, 10
tokens a frame, threshold 25), TensorFlow (no dictionary), and the published code,
``word_beam_search``.
"""

import argparse
import datetime
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jiwer
import numpy as np
from decoder_load import Load, read_corpus, write_bigram_arpa

from tfasr import Alphabet
from tfasr.decoding.word_beam_search import BigramCounts, WordBeamSearch
from tfasr.telemetry.compiled import require_extensions

Decode = Callable[[], list[str]]


def tfasr_words(load: Load, beam_width: int, **options) -> Decode:
    options.setdefault("num_threads", 1)
    decoder = WordBeamSearch(Alphabet(load.chars), load.lexicon, beam_width, **options)
    return lambda: [h.text for h in decoder.decode(load.log_probs, load.lengths)]


def tfasr_recombined(load: Load, beam_width: int, _: Path) -> Decode:
    return tfasr_words(load, beam_width, recombine=True)


def tfasr_two_threads(load: Load, beam_width: int, _: Path) -> Decode:
    return tfasr_words(load, beam_width, num_threads=2)


def tfasr_bigrams(
    load: Load, beam_width: int, folder: Path, recombine: bool = False
) -> Decode:
    present = set(load.lexicon)
    lines = [line for line in read_corpus(folder) if present.issuperset(line.split())]
    counts = BigramCounts.from_transcripts(lines)

    return tfasr_words(
        load,
        beam_width,
        mode="ngrams",
        language_model=counts,
        smoothing=0.01,
        recombine=recombine,
    )


def tfasr_kenlm(
    load: Load, beam_width: int, folder: Path, recombine: bool = False
) -> Decode:
    from tfasr.decoding.language_models import KenlmModel

    with tempfile.TemporaryDirectory() as scratch:
        arpa = Path(scratch) / "bigrams.arpa"
        write_bigram_arpa(arpa, read_corpus(folder))
        model = KenlmModel(arpa, weight=0.5, word_bonus=1.0)

    return tfasr_words(
        load, beam_width, mode="kenlm", language_model=model, recombine=recombine
    )


def flashlight(load: Load, beam_width: int, _: Path) -> Decode:
    from flashlight.lib.text import decoder as fl

    alphabet = Alphabet(load.chars)
    space = load.chars.index(" ")
    blank = alphabet.blank_id
    trie = fl.Trie(alphabet.num_classes, space)

    for index, word in enumerate(load.lexicon):
        trie.insert([*alphabet.encode(word), space], index, 0.0)

    trie.smear(fl.SmearingMode.MAX)
    options = fl.LexiconDecoderOptions(
        beam_size=beam_width,
        beam_size_token=10,
        beam_threshold=25.0,
        lm_weight=0.0,
        word_score=0.0,
        unk_score=-np.inf,
        sil_score=0.0,
        log_add=True,
        criterion_type=fl.CriterionType.CTC,
    )
    decoder = fl.LexiconDecoder(options, trie, fl.ZeroLM(), space, blank, -1, [], False)
    # Words in the trie end with a space, so a frame that is surely a space completes
    # the last one.
    end = np.full((1, alphabet.num_classes), -30.0, np.float32)
    end[0, space] = 0.0

    def decode() -> list[str]:
        texts = []
        for log_probs, length in zip(load.log_probs, load.lengths, strict=True):
            emissions = np.ascontiguousarray(np.concatenate([log_probs[:length], end]))
            best = decoder.decode(emissions.ctypes.data, *emissions.shape)[0]
            texts.append(
                " ".join(load.lexicon[word] for word in best.words if word >= 0)
            )

        return texts

    return decode


def tensorflow(load: Load, beam_width: int, _: Path) -> Decode:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    alphabet = Alphabet(load.chars)

    def decode() -> list[str]:
        (result,), _ = tf.nn.ctc_beam_search_decoder(
            load.log_probs.transpose(1, 0, 2),
            load.lengths.astype(np.int32),
            beam_width,
            1,
        )
        labels = tf.sparse.to_dense(result, default_value=-1).numpy()
        return [" ".join(alphabet.decode(row[row >= 0]).split()) for row in labels]

    return decode


def published(load: Load, beam_width: int, _: Path) -> Decode:
    from word_beam_search import WordBeamSearch as Published

    alphabet = Alphabet(load.chars)
    words = " ".join(alphabet.spell(word) for word in load.lexicon)
    characters = load.chars
    decoder = Published(
        beam_width,
        "Words",
        0.0,
        words.encode(),
        characters.encode(),
        characters[1:].encode(),
    )

    def decode() -> list[str]:
        texts = []
        for log_probs, length in zip(load.log_probs, load.lengths, strict=True):
            (labels,) = decoder.compute(np.exp(log_probs[:length, None]))
            texts.append(" ".join(alphabet.decode(labels).split()))

        return texts

    return decode


SYSTEMS = {
    "tfasr": lambda load, beam_width, _: tfasr_words(load, beam_width),
    "tfasr_recombine": tfasr_recombined,
    "tfasr_2_threads": tfasr_two_threads,
    "tfasr_ngrams": tfasr_bigrams,
    "tfasr_ngrams_recombine": lambda *args: tfasr_bigrams(*args, recombine=True),
    "tfasr_kenlm": tfasr_kenlm,
    "tfasr_kenlm_recombine": lambda *args: tfasr_kenlm(*args, recombine=True),
    "flashlight": flashlight,
    "tensorflow": tensorflow,
    "published": published,
}


def measure(system: str, folder: Path, beam_width: int, utterances: int) -> dict:
    """Returns one row of the table."""
    load = Load.read(folder, utterances)
    row = {"system": system, "beam_width": beam_width, "utterances": len(load.texts)}
    try:
        decode = SYSTEMS[system](load, beam_width, folder)
    except ImportError as error:
        return row | {"missing": str(error)}

    cpu_s = time.process_time()
    wall_s = time.perf_counter()
    texts = decode()
    cpu_s = time.process_time() - cpu_s
    wall_s = time.perf_counter() - wall_s

    return row | {
        "cpu_s_per_audio_hour": cpu_s / load.audio_hours,
        "wall_s_per_audio_hour": wall_s / load.audio_hours,
        "wer": jiwer.wer(load.texts, texts),
        "cer": jiwer.cer(load.texts, texts),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_apart(arguments: argparse.Namespace, system: str, beam_width: int) -> dict:
    command = [sys.executable, __file__, "--load", str(arguments.load), "--utterances"]
    command += [str(arguments.utterances), "--one", f"{system}:{beam_width}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    if done.returncode:
        raise SystemExit(
            f"{system} at beam width {beam_width} failed:\n{done.stderr[-2000:]}"
        )

    return json.loads(done.stdout.splitlines()[-1])


def line(row: dict) -> str:
    name = f"{row['system']:<24}{row['beam_width']:>6}{row['utterances']:>6}"
    if "missing" in row:
        return f"{name}  n/a: {row['missing']}"

    return (
        f"{name}{row['cpu_s_per_audio_hour']:>10.2f}{row['wall_s_per_audio_hour']:>10.2f}"
        f"{100 * row['wer']:>8.2f}{100 * row['cer']:>8.2f}{row['peak_rss_mib']:>9.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--beam_widths", default="64,256")
    parser.add_argument(
        "--systems", default="tfasr,tfasr_recombine,flashlight,tensorflow"
    )
    parser.add_argument("--utterances", type=int, default=200)
    parser.add_argument("--output", type=Path, help="where the rows go as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    require_extensions()

    if arguments.one:
        system, beam_width = arguments.one.split(":")
        row = measure(system, arguments.load, int(beam_width), arguments.utterances)
        print(json.dumps(row))

        return

    print(
        f"{'system':<24}{'beam':>6}{'utts':>6}{'cpu s/h':>10}{'wall s/h':>10}"
        f"{'WER %':>8}{'CER %':>8}{'MiB':>9}"
    )
    rows = []
    for beam_width in map(int, arguments.beam_widths.split(",")):
        for system in arguments.systems.split(","):
            rows.append(measure_apart(arguments, system, beam_width))
            print(line(rows[-1]), flush=True)

    if arguments.output:
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        content = {"date": today, "machine": platform.processor() or platform.machine()}
        arguments.output.write_text(
            json.dumps(content | {"rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
