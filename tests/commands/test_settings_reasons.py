"""Every setting has a reason to exist: a preset that binds it, a source, or a measurement."""

import re

from tests.warm import run_tfasr
from tfasr.kit.gin import presets_folder

MOST = 198
# The reasons of settings that no preset binds.
REASONS = {
    # Sources
    "TrainingConfig.gradient_accumulation_steps": "the paper's batches, on smaller devices",
    "TrainingConfig.overlap_evaluation": "the paper, section 4.4.2; benchmarks/overlap.py",
    "TrainingConfig.evaluation_devices": "the paper, section 4.4.2: another process evaluates",
    "TrainingConfig.loss": "docs/extending.md: a loss of one's own",
    "TrainingConfig.exchange": "the paper, section 5.2: asynchronous SGD; Stich 2019: local SGD",
    "TrainingConfig.exchange_every_steps": "docs/benchmarks/scaling.md: 4, 16 and 64 are measured",
    "TrainingConfig.evaluate_averaged": "Defazio et al. 2024: averages are evaluated, or not",
    "AugmentationConfig.time_mask_fraction": "SpecAugment, Park et al. 2019: the upper bound p",
    "ConformerConfig.num_heads": "Gulati et al. 2020, Table 1: S and L differ in it",
    "RooflineConfig.thread_counts": "the keyword talk: ERT_OPENMP_THREADS",
    "DecoderConfig.recombine": "benchmarks/decoder.py: equal beams merged, and not",
    "DeepMarkConfig.num_devices": "DeepMark: one and four devices",
    "KeywordTrainingConfig.framework": "the keyword talk: Keras and PyTorch",
    "NoiseConfig.copies": "docs/preparing_at_scale.md measures training in noise",
    "NoiseConfig.snr_db": "docs/preparing_at_scale.md measures training in noise",
    "NoiseConfig.keep_clean": "docs/preparing_at_scale.md scores a split in noise alone",
    "NoiseConfig.splits": "docs/preparing_at_scale.md scores a split in noise alone",
    "NoiseConfig.speeds": "speed perturbation, Ko et al. 2015",
    # Measurements
    "TrainingConfig.gradient_exchange": "benchmarks/results: float32 against bfloat16",
    "TrainingConfig.batch_norm_synchronised": "docs/cluster.md: equal to one process",
    "TrainingConfig.averaged_statistics_utterances": "docs/training.md: steadier WER, slower saves",
    "TrainingConfig.evaluations_per_epoch": "docs/statistics.md: sooner decisions",
    "TrainingConfig.evaluation_utterances": "docs/statistics.md: sooner decisions",
    "TrainingConfig.give_up_after_hours": "docs/seeds_and_forecasts.md: measured on published runs",
    "TrainingConfig.start_from": "docs/recipes.md: AN4 from mini LibriSpeech's weights",
    "ShardConfig.compression": "docs/preparing_at_scale.md: GZIP, ZLIB and none",
    "ShardConfig.dtype": "float16 is half the size; features beyond its range need float32",
    # What differs between users: their seeds, languages, machines and studies
    "TrainingConfig.seed": "times to accuracy need several seeds",
    "NoiseConfig.seed": "noise of several seeds",
    "TrainingConfig.keep_checkpoints": "a disk's size",
    "AlphabetConfig.mapping": "docs/languages.md: a language's spelling",
    "AlphabetConfig.keep_case": "docs/languages.md: German nouns",
    "AlphabetConfig.language": "docs/languages.md: case by language",
    "AlphabetConfig.normaliser": "docs/languages.md: normalisers of other leaderboards",
    "AlphabetConfig.keep_punctuation": "docs/languages.md: texts with punctuation",
    "AlphabetConfig.units_model": "units of another toolkit's model",
    "FeatureConfig.lower_edge_hz": "a telephone's band, 300 to 3400 Hz",
    "FeatureConfig.upper_edge_hz": "a telephone's band, 300 to 3400 Hz; half of 8 kHz",
    "HardwareConfig.utilisation": "docs/cost_and_energy.md: an idle machine costs, too",
    "HardwareConfig.electricity_usd_per_kwh": "docs/cost_and_energy.md: a price of electricity",
    "HardwareConfig.power_w": "docs/cost_and_energy.md: a machine without counters",
    "HardwareConfig.num_hosts": "machines of MLPerf's logs",
    "ExperimentConfig.seeds": "docs/studies.md: seeds that one experiment lacks",
    "StudyConfig.most_taken": "docs/quiet_machine.md: benchmarks/quiet_rule.py simulates it",
    "StudyConfig.test": "docs/statistics.md: groups of runs or pairs of seeds",
    "StudyConfig.policy": "docs/time_to_accuracy.md: the clocks of four benchmarks",
    "StudyConfig.level": "docs/records.md: races are decided at 0.01, studies at 0.05",
    "TrackConfig.window": "docs/records.md: MLPerf's rule has a window of 1",
    "TrackConfig.decoder": "docs/records.md: a track with a language model",
    "TrackConfig.division": "MLCommons: closed and open divisions",
    "TrackConfig.kind": "docs/records.md: seconds or utterances",
    "TrackConfig.policy": "docs/time_to_accuracy.md: the clocks of four benchmarks",
    "TrackConfig.level": "docs/records.md: races are decided at 0.01",
    # Sizes of models beside those that presets bind
    "DeepSpeech2Config.recurrent_kernel": "docs/recipes.md: models for other backends use a loop",
}


def settings() -> dict[str, str]:
    """Returns the default of each setting that ``tfasr settings`` lists, as its text."""
    listed = run_tfasr("settings", check=True).stdout
    return dict(re.findall(r"^(\w+\.\w+)\s+= (.*?)(?:\s+#|$)", listed, re.MULTILINE))


def test_every_setting_is_bound_in_a_preset_or_has_a_stated_reason():
    texts = [path.read_text() for path in presets_folder().rglob("*.gin")]
    bound = {
        name for text in texts for name in re.findall(r"\b(\w+Config\.\w+)\b", text)
    }
    listed = settings().keys()
    assert sorted(listed - bound - REASONS.keys()) == []
    # A reason stays only as long as it is needed.
    assert sorted(REASONS.keys() - (listed - bound)) == []
    assert len(listed) <= MOST


def test_defaults_are_shown_as_values():
    # A constant's name, such as WINDOW, tells a reader nothing.
    named = [
        name
        for name, default in settings().items()
        if default.isidentifier() and default.isupper()
    ]
    assert named == []
