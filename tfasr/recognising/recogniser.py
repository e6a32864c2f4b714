"""Transcribes recordings with a trained recogniser, with word times.

`load_recogniser` opens what training or an export wrote; the `Recogniser` that it
returns is the public way from audio to text. Recordings are cut into segments and
recognised in batches, and streams frame by frame, both in `segments`.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.decoding.choice import (
    read_lexicon,
    require_lexicon_use,
    with_hot_words,
    words_hash,
)
from tfasr.decoding.hot_words import DEFAULT_WEIGHT, HotWords, hot_words_of
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.kit.files import EXPERIMENT_FILE, file_sha256
from tfasr.kit.process import load_tensorflow
from tfasr.recognising import spec as exported
from tfasr.recognising.segments import (
    EndpointRules,
    Segment,
    SegmentModel,
    Stream,
    cut_segments,
    recognised_in_batches,
)
from tfasr.recognising.spec import (
    Acoustics,
    RecogniserSpec,
    StreamResult,
    Transcript,
    Word,
)

if TYPE_CHECKING:
    from tfasr.decoding.language_models import KenlmModel

# Long arrays of samples are converted in blocks of this length, in seconds, to save
# memory.
_BLOCK_S = 60


def load_recogniser(
    run_dir: str | Path,
    *,
    checkpoint: str = "best",
    decoder: str | None = None,
    beam_width: int | None = None,
    recombine: bool | None = None,
    lexicon: str | Path | None = None,
    language_model: "KenlmModel | None" = None,
    hot_words: "HotWords | str | Path | None" = None,
    hot_word_weight: float = DEFAULT_WEIGHT,
) -> "Recogniser":
    """Returns a trained recogniser, ready to transcribe.

    It computes in float32, whatever precision the run was trained in. Recognisers
    exported to ONNX and LiteRT run without TensorFlow.

    Args:
        run_dir: a folder that `tfasr train` or `tfasr export` wrote.
        checkpoint: which of a run's: "best" (by validation CER), "last", or a file.
        decoder: "greedy", "beam" or "word_beam"; by default the run's.
        beam_width: hypotheses kept per frame; by default the run's.
        recombine: of word beam search; by default the run's.
        lexicon: a text file with one word per line, the dictionary for word beam
            search; by default the run's, which consists of the training transcripts'
            words.
        language_model: scores the words in word beam search in addition to the acoustic
            model.
        hot_words: words and names that are expected, with their weights, or a text file
            of them: see `tfasr.decoding.hot_words.hot_words_of`. They replace greedy
            decoding by prefix beam search.
        hot_word_weight: of the file's lines without a weight.

    Raises:
        UsageError: if the folder has no run or checkpoint, or its files don't fit
            together.
    """
    run_dir = Path(run_dir)
    changes = {"name": decoder, "beam_width": beam_width, "recombine": recombine}
    # None keeps the run's own setting.
    changes = {name: value for name, value in changes.items() if value is not None}

    with wrong_values_are_wrong_use():
        spec, acoustics = _opened(run_dir, checkpoint, changes)
        spec = _with_lexicon(spec, lexicon)
        hot = hot_words and hot_words_of(hot_words, spec.alphabet, hot_word_weight)
        return _made(spec, acoustics, language_model, hot)


def _opened(
    run_dir: Path,
    checkpoint: str,
    decoder_changes: dict[str, Any],
) -> tuple[RecogniserSpec, Acoustics]:
    """Opens an export or a run, of which only the run needs TensorFlow.

    Args:
        run_dir: the folder.
        checkpoint: of a run, see `load_recogniser`; an export has a single one.
        decoder_changes: fields of the decoder's config that replace the run's.

    Returns:
        The recogniser's description, and its model.

    Raises:
        UsageError: if the folder is neither.
    """
    if exported.is_exported(run_dir):
        if checkpoint != "best":
            raise UsageError(
                "--checkpoint must be left out for an export, which contains a single "
                f"one. Received: {checkpoint} with {run_dir}. Export the run with that "
                "--checkpoint."
            )

        from tfasr.recognising.runtimes import open_exported

        return open_exported(run_dir, decoder_changes)

    if not (run_dir / EXPERIMENT_FILE).is_file():
        raise UsageError(
            "--run_dir must be a folder that tfasr train or tfasr export wrote. "
            f"Received: {run_dir}, which has neither {EXPERIMENT_FILE} nor "
            f"{exported.SPEC_FILE}."
        )

    load_tensorflow()
    from tfasr.recognising.tensorflow_runtimes import open_run
    from tfasr.training.trained import open_trained

    return open_run(open_trained(run_dir), checkpoint, decoder_changes)


def _with_lexicon(spec: RecogniserSpec, lexicon: str | Path | None) -> RecogniserSpec:
    """Replaces the dictionary, and with it the recogniser's identity.

    Args:
        spec: as the run or export describes it.
        lexicon: the dictionary's file; None keeps the one of ``spec``.
    """
    if lexicon is None:
        return spec

    require_lexicon_use(lexicon, spec.decoder)
    words = tuple(read_lexicon(lexicon, spec.alphabet))

    return replace(
        spec,
        lexicon=words,
        identity=f"{spec.identity}, words {words_hash(words)}",
    )


def _made(
    spec: RecogniserSpec,
    acoustics: Acoustics,
    model: "KenlmModel | None",
    hot_words: "HotWords | None",
) -> "Recogniser":
    """Creates a recogniser.

    A language model and hot words give it another identity, as a lexicon does, so that
    results in a folder are those of one recogniser.

    Args:
        spec: its description, with the final lexicon.
        acoustics: its model.
        model: the language model; None for none.
        hot_words: None or {} for none.
    """
    identity = spec.identity
    if model is not None:
        # By its content, as a file may be replaced.
        settings = f"{file_sha256(model.path)} {model.weight:g} {model.word_bonus:g}"
        if model.unknown != "score":
            settings += f" unknown words: {model.unknown}"

        identity += f", language model {settings}"

    if hot_words:
        spec = replace(spec, decoder=with_hot_words(spec.decoder))
        # As a file of hot words would say, whatever the order.
        weights = (f"{word}\t{weight:g}" for word, weight in sorted(hot_words.items()))
        identity += f", hot words {words_hash(weights)}"

    return Recogniser(replace(spec, identity=identity), acoustics, model, hot_words)


class Recogniser:
    """Turns recordings into text; created by `tfasr.load_recogniser`.

    For example::

        recogniser = tfasr.load_recogniser("runs/an4")
        print(recogniser.transcribe("talk.wav").text)

    A long recording needs little memory, since it is read and recognised in segments;
    `parts` yields their words as they come. `stream` is for speech that isn't over yet.

    Attributes:
        spec: everything about it but the weights.
        acoustics: the model.
        segments: recognises parts of a recording.
    """

    def __init__(
        self,
        spec: RecogniserSpec,
        acoustics: Acoustics,
        model: "KenlmModel | None" = None,
        hot_words: "HotWords | None" = None,
    ):
        self.spec = spec
        self.acoustics = acoustics
        self.segments = SegmentModel(spec, acoustics, model, hot_words)

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of the samples that the methods take; files may have any."""
        return self.spec.features.sample_rate_hz

    def transcribe(self, audio: "str | Path | np.ndarray") -> Transcript:
        """Transcribes a recording of any length.

        Args:
            audio: the path of a file of any sample rate, in a format that libsndfile or
                ffmpeg reads, or samples at `sample_rate_hz`: floats in -1..1 or int16
                ``(samples,)``.

        Raises:
            ValueError: if the file can't be read, or samples are NaN or infinite.
        """
        return self.transcribe_many([audio])[0]

    def transcribe_many(
        self,
        recordings: "Iterable[str | Path | np.ndarray]",
        batch_size: int = 16,
    ) -> list[Transcript]:
        """Transcribes recordings as `transcribe` does, several segments at a time.

        Args:
            recordings: paths or samples.
            batch_size: segments that the model gets together.

        Raises:
            ValueError: for the first recording that can't be read.
        """
        transcripts = []
        for transcript in self.transcripts(recordings, batch_size):
            if isinstance(transcript, ValueError):
                raise transcript

            transcripts.append(transcript)

        return transcripts

    def transcripts(
        self,
        recordings: "Iterable[str | Path | np.ndarray]",
        batch_size: int,
    ) -> Iterator[Transcript | ValueError]:
        """Yields each recording's transcript, in order, or the error if it can't be read.

        Only a few segments of the recordings are in memory at a time.

        Args:
            recordings: paths, samples, or iterators over blocks of samples.
            batch_size: segments that the model gets together; they may be of several
                recordings.
        """
        # The duration of each recording so far, and the errors by its number.
        seconds: list[float] = []
        errors: dict[int, ValueError] = {}

        def count(more: float) -> None:
            seconds[-1] += more

        def segments() -> Iterator[tuple[int, Segment]]:
            """Yields all segments of all recordings, with the recording's number."""
            for number, audio in enumerate(recordings):
                seconds.append(0.0)
                try:
                    blocks = map(exported.as_samples, self.blocks(audio))
                    for segment in cut_segments(blocks, self.sample_rate_hz, count):
                        yield number, segment
                except ValueError as error:
                    errors[number] = error

        # A recording is done when words of a later one arrive, or at the end (None).
        words: list[Word] = []
        done = 0
        recognised = recognised_in_batches(self.segments, segments(), batch_size)

        for number, more_words in itertools.chain(recognised, [(None, [])]):
            # Recordings without speech have no words, and are done with the others.
            while done < (len(seconds) if number is None else number):
                yield errors.get(done) or Transcript(words, seconds[done])
                words = []
                done += 1

            words += more_words

    def transcribe_blocks(self, blocks: Iterable[np.ndarray]) -> Transcript:
        """Transcribes a recording that arrives block by block, as from a pipe.

        Args:
            blocks: samples at `sample_rate_hz`, floats in -1..1 or int16 ``(samples,)``.

        Raises:
            ValueError: if samples are NaN or infinite.
        """
        return self.transcribe_many([iter(blocks)], batch_size=1)[0]

    def parts(
        self,
        blocks: Iterable[np.ndarray],
        batch_size: int = 1,
    ) -> Iterator[list[Word]]:
        """Yields a recording's words in lists, each as soon as its segment is recognised.

        Args:
            blocks: samples at `sample_rate_hz`, floats in -1..1 or int16 ``(samples,)``.
            batch_size: segments that the model gets together; 1 gives the earliest
                words.

        Raises:
            ValueError: if samples are NaN or infinite.
        """
        segments = cut_segments(
            map(exported.as_samples, blocks), self.sample_rate_hz, lambda _: None
        )
        keyed = ((None, segment) for segment in segments)
        for _, words in recognised_in_batches(self.segments, keyed, batch_size):
            yield words

    def stream(
        self,
        chunks: Iterable[np.ndarray],
        endpoints: EndpointRules | None = None,
    ) -> Iterator[StreamResult]:
        """Yields the text of speech while it arrives; the last result is final.

        The final texts do not depend on how the samples are cut into chunks::

            for result in recogniser.stream(microphone):
                print(result.text)

        Args:
            chunks: arrays of samples at `sample_rate_hz`, floats in -1..1 or int16, of
                any length.
            endpoints: what ends an utterance; None: only the end of the chunks.

        Raises:
            UsageError: if the model can't stream; the message names a preset whose
                models can.
            ValueError: if samples are NaN or infinite.
        """
        stream = self.open_stream(endpoints)
        for chunk in chunks:
            yield from stream.push(chunk)

        yield from stream.finish()

    def open_stream(self, endpoints: EndpointRules | None = None) -> Stream:
        """Opens a stream to push chunks into, for callers that can't give an iterator.

        Its argument and errors are those of `stream`.
        """
        return Stream(self.spec, self.acoustics, self.segments.decoder, endpoints)

    def blocks(self, audio: "str | Path | np.ndarray") -> Iterator[np.ndarray]:
        """Yields a recording's samples in blocks, float32 ``(samples,)``.

        They are at `sample_rate_hz`, whatever rate a file has.

        Args:
            audio: a path, samples, or an iterator over blocks of samples.

        Raises:
            ValueError: if the file can't be read, or the samples have another shape.
        """
        if isinstance(audio, str | Path):
            from tfasr.data.audio import audio_blocks, warn

            yield from audio_blocks(audio, self.sample_rate_hz, remark=warn)
            return

        # The recording arrives in blocks.
        if isinstance(audio, Iterator):
            yield from audio
            return

        samples = np.asarray(audio)
        if samples.ndim != 1:
            raise ValueError(
                "samples must have the shape (samples,). Received: "
                f"shape={samples.shape}. Average the channels first."
            )

        # How many samples a block has.
        size = _BLOCK_S * self.sample_rate_hz
        for start in range(0, len(samples), size):
            yield samples[start : start + size]
