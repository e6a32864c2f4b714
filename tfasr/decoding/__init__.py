"""Decoders: from log-probabilities to text."""

from tfasr.decoding.bigram_counts import BigramCounts
from tfasr.decoding.decoder import Decoder, Hypothesis
from tfasr.decoding.lexicon import lexicon_from_transcripts
from tfasr.decoding.word_beam_search import WordBeamSearch

__all__ = ["BigramCounts", "Decoder", "Hypothesis", "WordBeamSearch", "lexicon_from_transcripts"]
