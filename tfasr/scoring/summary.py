"""One system's error rates on a set of utterances, with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.metrics import ErrorCounts
from tfasr.scoring.alignment import Scored
from tfasr.scoring.bootstrap import CONFIDENCE, Interval, rate_interval
from tfasr.scoring.speakers import speaker_blocks


@dataclass(frozen=True)
class RateSummary:
    """Error rates with their 95 % intervals by the bootstrap; None where data are too few."""

    counts: ErrorCounts  # of all utterances
    wer_interval: Interval | None  # of the WER, over utterances
    cer_interval: Interval | None  # of the CER, over utterances
    wer_interval_by_speaker: Interval | None  # of the WER, over speakers
    cer_interval_by_speaker: Interval | None  # of the CER, over speakers
    speakers: int | None = None  # how many were resampled for those two; None where they were not

    def to_json(self) -> dict[str, Any]:
        return {
            **self.counts.to_json(),
            "confidence": CONFIDENCE,
            "wer_interval": self.wer_interval,
            "cer_interval": self.cer_interval,
            "wer_interval_by_speaker": self.wer_interval_by_speaker,
            "cer_interval_by_speaker": self.cer_interval_by_speaker,
            "speakers_resampled": self.speakers,
        }


def summarise(counts: Sequence[ErrorCounts], speakers: Sequence[str] = ()) -> RateSummary:
    """Returns error rates and their intervals."""
    of_words = [one.word_edits for one in counts], [one.words for one in counts]
    of_characters = (
        [one.character_edits for one in counts],
        [one.longer_characters for one in counts],
    )
    blocks = speaker_blocks(speakers) if speakers else None
    return RateSummary(
        sum(counts, ErrorCounts()),
        rate_interval(*of_words),
        rate_interval(*of_characters),
        blocks and rate_interval(*of_words, blocks=blocks),
        blocks and rate_interval(*of_characters, blocks=blocks),
        blocks and len(set(blocks)),
    )


def summarise_scored(scored: Sequence[Scored]) -> RateSummary:
    return summarise(
        [utterance.counts for utterance in scored],
        [utterance.transcript.speaker for utterance in scored],
    )
