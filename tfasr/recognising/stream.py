"""Recognises speech as it comes; results don't depend on how the samples are cut into chunks."""

from dataclasses import dataclass

import numpy as np

from tfasr.alphabet import WORD_START, Alphabet
from tfasr.data.features import numpy_features
from tfasr.decoding.decoder import Decoder, GreedyDecoder
from tfasr.recognising.segments import aligned_words
from tfasr.recognising.spec import Acoustics, RecogniserSpec, StreamResult, Word, as_samples

_MOST_S = 5.0  # of a chunk that is processed at a time, so that an hour in one needs little memory


@dataclass(frozen=True)
class EndpointRules:
    """Three rules, any of which ends an utterance; ``math.inf`` switches one off.

    Silence is time in which the most probable class is a blank, a space or a separator.

    Source: sherpa-onnx's rules 1 to 3 with its defaults, which come from Kaldi's.
    """

    silence_s: float = 2.4  # of silence, whether or not there was speech before
    silence_after_speech_s: float = 1.2
    longest_s: float = 20.0  # of an utterance, silent or not


class EndpointDetector:
    """Finds the end of an utterance, frame by frame, across chunks."""

    def __init__(self, rules: EndpointRules, alphabet: Alphabet, frame_step_s: float):
        self._rules = rules
        self._step_s = frame_step_s
        marks = (" ", WORD_START, alphabet.separator)
        quiet = [i for i, symbol in enumerate(alphabet.symbols) if symbol in marks]
        self._silent = np.array([*quiet, alphabet.blank_id])
        self.restart()

    def restart(self) -> None:
        self._frames = 0
        self._silence = 0
        self._spoken = False

    def end(self, log_probs: np.ndarray) -> int | None:
        """The number of frames until the utterance ends, or None while it goes on."""
        for frame, silent in enumerate(np.isin(log_probs.argmax(axis=1), self._silent)):
            self._frames += 1
            self._silence = self._silence + 1 if silent else 0
            self._spoken |= not silent
            silence_s, rules = self._silence * self._step_s, self._rules
            if (
                silence_s >= rules.silence_s
                or (self._spoken and silence_s >= rules.silence_after_speech_s)
                or self._frames * self._step_s >= rules.longest_s
            ):
                return frame + 1
        return None


class Stream:
    """One stream of speech.

    It keeps what the next frame needs: samples that don't fill a step yet, features that the
    convolution still sees, and the recurrence's state. So log-probabilities and texts are those of
    the whole recording, whatever chunks it comes in. After the end of an utterance the recurrence
    starts anew, as for a new recording.

    During an utterance the text is what the decoder would return if it ended now; a decoder that
    needs all frames runs only at the end, and greedy decoding until then. Without endpoints only
    `finish` ends an utterance. Raises UsageError for a model that can't stream.
    """

    def __init__(
        self,
        spec: RecogniserSpec,
        acoustics: Acoustics,
        decoder: Decoder,
        endpoints: EndpointRules | None = None,
    ):
        spec.check_streams()
        self._spec = spec
        self._acoustics = acoustics
        self._decoder = decoder
        self._begin_decoding = getattr(decoder, "begin", GreedyDecoder(spec.alphabet).begin)
        self._detector = endpoints and EndpointDetector(endpoints, spec.alphabet, spec.frame_step_s)
        self._samples = np.zeros(0, np.float32)
        self._features = np.zeros((0, spec.features.num_features), np.float32)
        self._begun = 0  # the utterance's first feature frame, counted from the stream's start
        self._begin()

    def _begin(self) -> None:
        self._state = self._acoustics.initial_state()
        self._log_probs: list[np.ndarray] = []
        self._frames = 0
        self._decoded = self._begin_decoding()
        self._shown = ""
        if self._detector is not None:
            self._detector.restart()

    def push(self, samples: np.ndarray) -> list[StreamResult]:
        """Takes any number of samples, floats in -1..1 or int16, at the model's rate.

        Returns utterances that ended, and the text of the current one if it has changed.
        Raises ValueError if samples are not finite.
        """
        samples = as_samples(np.asarray(samples))
        results = []
        most = int(_MOST_S * self._spec.features.sample_rate_hz)
        for start in range(0, len(samples), most):
            self._see(samples[start : start + most])
            results += self._hear()
        if self._frames:
            result = self._result(self._decoded.best().text, final=False)
            if result.text != self._shown:
                self._shown = result.text
                results.append(result)
        return results

    @property
    def partial(self) -> str:
        """The latest text of the current utterance."""
        return self._shown

    def finish(self) -> list[StreamResult]:
        """Ends the stream; returns its last utterance, which may be empty."""
        return [self._final()]

    def _see(self, samples: np.ndarray) -> None:
        """Adds the features of all complete windows."""
        config = self._spec.features
        held = np.concatenate([self._samples, samples])
        frames = numpy_features(held, config)
        self._samples = held[len(frames) * config.step_samples :]
        self._features = np.concatenate([self._features, self._spec.normalised(frames)])

    def _hear(self) -> list[StreamResult]:
        kernel, stride = self._spec.geometry
        results = []
        while count := self._spec.output_frames(len(self._features)):
            used = self._features[: kernel + (count - 1) * stride]
            log_probs, state = self._acoustics.continued(used, self._state)
            end = None if self._detector is None else self._detector.end(log_probs)
            taken = count if end is None else end
            self._log_probs.append(log_probs[:taken])
            self._decoded.hear(log_probs[:taken])
            self._frames += taken
            self._features = self._features[taken * stride :]
            if end is None:
                self._state = state
                continue
            result = self._final()
            if result.text:
                results.append(result)
            self._begun += self._frames * stride
            self._begin()
        return results

    def _final(self) -> StreamResult:
        if hasattr(self._decoder, "begin") or not self._frames:
            return self._result(self._decoded.best().text, final=True)
        frames = np.array([self._frames])
        (hypothesis,) = self._decoder.decode(self.log_probs[None], frames)
        return self._result(hypothesis.text, final=True)

    def _result(self, text: str, final: bool) -> StreamResult:
        features = self._spec.features
        begun_s = self._begun * features.step_samples / features.sample_rate_hz
        alphabet, step_s = self._spec.alphabet, self._spec.frame_step_s
        first_s, log_probs = begun_s + self._spec.first_frame_s, list(self._log_probs)

        def align() -> list[Word]:
            if not log_probs:
                return []
            return aligned_words(text, np.concatenate(log_probs), alphabet, first_s, step_s)

        return StreamResult(" ".join(text.split()), final, align)

    @property
    def log_probs(self) -> np.ndarray:
        """Log-probabilities of the current utterance, float32 ``(frames, classes)``."""
        classes = self._spec.alphabet.num_classes
        return np.concatenate([np.zeros((0, classes), np.float32), *self._log_probs])
