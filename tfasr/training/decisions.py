"""What each setting of a run decides: the ground of `is_closed` and of a run's comparability.

The paper's systems are compared under one recipe, so that only their machines differ.
Recipes race on one measurement, so that only the recipe and the machine differ. Every
setting therefore has a decision here, and a test changes each and asks `is_closed` and
`comparability`.

Source: the paper (arXiv 2003.12366), sections 2.1, 4.1.2 and 4.4, Table 2; MLCommons'
training rules, whose closed division also fixes model and optimizer.
"""

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any

from tfasr.models.model import MODELS


class Decides(Enum):
    """What a setting decides."""

    MEASUREMENT = "what is measured: runs that differ in it aren't ranked"
    RECIPE = "the result: the closed division has the paper's value"
    FREE = "the result, but free in the closed division"
    DATA = "the data, of which texts, audio and alphabet are compared themselves"
    SPEED = "only how fast a run is"
    NEITHER = "neither result nor speed"


DECISIONS: dict[str, dict[Decides, tuple[str, ...]]] = {
    "FeatureConfig": {
        Decides.RECIPE: (
            "sample_rate_hz", "window_samples", "step_samples", "num_mel_bins", "num_mfcc",
            "lower_edge_hz", "upper_edge_hz", "normalisation", "spectrum",
        ),
    },
    "PipelineConfig": {
        # The paper's systems differ in the batch, and the paper gives no shuffle
        # buffer.
        Decides.FREE: ("global_batch_size", "shuffle_buffer"),
        Decides.RECIPE: (
            "padding", "num_buckets", "max_frames", "batch_size_schedule",
        ),
        Decides.SPEED: ("num_readers", "prefetch"),
    },
    "AugmentationConfig": {
        Decides.RECIPE: (
            "time_masks", "time_mask_frames", "time_mask_fraction", "frequency_masks",
            "frequency_mask_bins", "from_epoch", "tempo_change", "vocal_tract_change",
        ),
    },
    "DecoderConfig": {Decides.MEASUREMENT: ("name", "beam_width", "recombine")},
    "TrainingConfig": {
        # How error rates are evaluated. Batch normalisation's moving statistics exist
        # only for it.
        Decides.MEASUREMENT: (
            "batch_norm_window_utterances", "batch_norm_synchronised", "target_window",
            "evaluations_per_epoch",
        ),
        Decides.RECIPE: (
            "optimizer", "loss", "start_from", "zero_output_layer",
            "intermediate_loss_weight", "intermediate_labels",
            "consistency_weight", "gradient_accumulation_steps", "gradient_exchange", "exchange",
            "exchange_every_steps", "evaluate_averaged", "averaged_statistics_utterances",
        ),
        # The paper's systems differ in devices, and the paper gives no seed. Precision
        # is free by our choice, as in MLPerf's closed division: it is how a machine
        # computes. The paper trained all three systems in float32 (section 4.4.1).
        Decides.FREE: ("seed", "num_replicas", "precision"),
        Decides.DATA: ("evaluation_utterances",),
        Decides.SPEED: (
            "sentences_every_steps", "checkpoint_every_steps", "keep_checkpoints",
            "overlap_evaluation", "evaluation_placement", "evaluation_devices", "second_decoder",
        ),
        # When a run ends: one that ends before its target is censored.
        Decides.NEITHER: (
            "epochs", "targets", "stop_at_targets", "stop_after_hours", "give_up_after_hours",
        ),
    },
    "ShardConfig": {
        Decides.DATA: ("max_duration_s",),
        # Stored features are rounded by less than 0.1 %.
        Decides.SPEED: ("utterances_per_shard", "dtype", "compression"),
    },
    "AlphabetConfig": {
        Decides.DATA: (
            "source", "mapping", "keep_case", "language", "normaliser", "keep_punctuation",
            "units", "units_kind", "units_model",
        ),
    },
    "NoiseConfig": {
        Decides.DATA: ("copies", "snr_db", "speeds", "keep_clean", "splits", "seed"),
    },
    "HardwareConfig": {
        Decides.NEITHER: (
            "name", "price_usd_per_hour", "purchase_price_usd", "gpus_price_usd",
            "cpus_price_usd", "amortisation_years", "utilisation",
            "electricity_usd_per_kwh", "power_w", "num_hosts", "num_devices", "source",
        ),
    },
}  # fmt: skip

# Of a model's config, every other field is part of the model.
_MODELS_SPEED = ("lstm_kernel", "recurrent_kernel")


def decision(config: type, name: str) -> Decides:
    """Returns what a field of a config class decides.

    Args:
        config: the class, such as `TrainingConfig`.
        name: of its field.

    Raises:
        KeyError: if no one has decided that.
    """
    if any(MODELS[model] is config for model in MODELS):
        return Decides.SPEED if name in _MODELS_SPEED else Decides.RECIPE

    decisions = [
        decides
        for decides, names in DECISIONS[config.__name__].items()
        if name in names
    ]
    if len(decisions) != 1:
        raise KeyError(f"{config.__name__}.{name} needs one decision in {__name__}.")

    return decisions[0]


def settings_that_decide(config: Any, what: Decides) -> dict[str, Any]:
    """Returns a config's values that decide something.

    Values that change nothing, because of other values, are left out: the width of a
    beam that greedy decoding doesn't have must not make runs incomparable.

    Args:
        config: of a class in `DECISIONS`, or a model's.
        what: the values decide.

    Returns:
        The values, by their fields' names.
    """
    unused = set(_unused(config))
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in unused and decision(type(config), field.name) is what
    }


def _unused(config: Any) -> Iterator[str]:
    """Yields the fields that change nothing, given the others."""
    match type(config).__name__:
        case "AugmentationConfig":
            if not config.time_masks:
                yield from ("time_mask_frames", "time_mask_fraction")

            if not config.frequency_masks:
                yield "frequency_mask_bins"

            if not (config.time_masks or config.frequency_masks):
                yield "from_epoch"

        case "PipelineConfig":
            if config.padding == "fixed":
                yield "num_buckets"
            else:
                yield "max_frames"

        case "DecoderConfig":
            if config.name == "greedy":
                yield "beam_width"

            if config.name in ("greedy", "beam"):
                yield "recombine"

        case "TrainingConfig":
            if config.exchange == "synchronous":
                yield "exchange_every_steps"
