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
    edits = [errors.word_edits for errors in counts], [errors.character_edits for errors in counts]
    lengths = [errors.words for errors in counts], [errors.longer_characters for errors in counts]
    wer, cer = (rate_interval(*pair) for pair in zip(edits, lengths, strict=True))
    blocks = speaker_blocks(speakers) if speakers else None
    by_speaker = [
        blocks and rate_interval(*pair, blocks=blocks) for pair in zip(edits, lengths, strict=True)
    ]
    found = None if blocks is None else len(set(blocks))
    return RateSummary(sum(counts, ErrorCounts()), wer, cer, *by_speaker, found)


def summarise_scored(scored: Sequence[Scored]) -> RateSummary:
    return summarise(
        [utterance.counts for utterance in scored],
        [utterance.transcript.speaker for utterance in scored],
    )
