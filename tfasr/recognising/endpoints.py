"""When an utterance of a stream has ended."""

from dataclasses import dataclass

import numpy as np

from tfasr.alphabet import Alphabet


@dataclass(frozen=True)
class EndpointRules:
    """Three rules, of which any ends an utterance; ``math.inf`` switches one off.

    Silence is time in which the most probable class is no character: a blank, a space or a
    separator.

    Attributes:
        silence_s: so much silence, whether or not something was said before.
        silence_after_speech_s: so much silence after something was said.
        longest_s: so long an utterance, silent or not.

    Source: sherpa-onnx's rules 1 to 3 with its defaults, which come from Kaldi's.
    """

    silence_s: float = 2.4
    silence_after_speech_s: float = 1.2
    longest_s: float = 20.0


class EndpointDetector:
    """Looks for the end of an utterance, frame by frame, however the frames are cut into chunks."""

    def __init__(self, rules: EndpointRules, alphabet: Alphabet, frame_step_s: float):
        self._rules = rules
        self._step_s = frame_step_s
        quiet = [i for i, c in enumerate(alphabet.characters) if c in (" ", alphabet.separator)]
        self._silent = np.array([*quiet, alphabet.blank_id])
        self.restart()

    def restart(self) -> None:
        """Begins another utterance."""
        self._frames = 0
        self._silence = 0
        self._spoken = False

    def end(self, log_probs: np.ndarray) -> int | None:
        """Returns behind which of the next frames the utterance ends; None while it goes on."""
        for frame, silent in enumerate(np.isin(log_probs.argmax(axis=1), self._silent)):
            self._frames += 1
            self._silence = self._silence + 1 if silent else 0
            self._spoken |= not silent
            if self._ends():
                return frame + 1
        return None

    def _ends(self) -> bool:
        silence_s = self._silence * self._step_s
        rules = self._rules
        return (
            silence_s >= rules.silence_s
            or (self._spoken and silence_s >= rules.silence_after_speech_s)
            or self._frames * self._step_s >= rules.longest_s
        )
