"""Each setting of each config has a written decision, which division and ranking follow."""

import dataclasses
import json
import typing
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import soundfile

from tests.data.made_corpus import HEADER, TINY_FEATURES, make_utterances, write_tsv
from tfasr.alphabet import WORD_START, Alphabet
from tfasr.data.alphabets import AlphabetConfig
from tfasr.data.augmentation import NoiseConfig
from tfasr.data.prepare_corpus import prepare
from tfasr.data.shards import ShardConfig, open_split
from tfasr.decoding.choice import DecoderConfig
from tfasr.models.build import know_models
from tfasr.models.model import MODELS
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.decisions import DECISIONS, Decides, decision, settings_that_decide
from tfasr.training.experiment import Experiment, is_closed, open_settings, paper_recipe
from tfasr.training.train import comparability
from tfasr.tta.costs import HardwareConfig

know_models()
# The configs of an experiment, and those of preparing its data and describing its
# machine.
GROUPS = {
    field.name: type(getattr(paper_recipe(), field.name))
    for field in dataclasses.fields(Experiment)
}
OTHERS = (ShardConfig, AlphabetConfig, NoiseConfig, HardwareConfig)
ASKED = [
    (group, field.name)
    for group, config in GROUPS.items()
    for field in dataclasses.fields(config)
]
# Another value, where the type doesn't suggest one.
VALUES = {
    "sample_rate_hz": 22050,
    "lower_edge_hz": 20.0,
    "upper_edge_hz": 7600.0,
    "normalisation": "corpus",
    "batch_size_schedule": ((2, 48),),
    "name": "beam",
    "optimizer": lambda: keras.optimizers.Adadelta(0.5),
    "loss": "another",
    "precision": "mixed_bfloat16",
    "start_from": "runs/before",
    "targets": (("cer", 0.5),),
    "evaluation_devices": ("cpu:0",),
    "second_decoder": "beam",
    "give_up_after_hours": 2.0,
}
# Settings without which another one must have its default, or has no effect.
WITH = {
    "num_buckets": {"padding": "bucketed"},
    "time_mask_frames": {"time_masks": 1},
    "time_mask_fraction": {"time_masks": 1},
    "frequency_mask_bins": {"frequency_masks": 1},
    "from_epoch": {"time_masks": 1},
    "intermediate_labels": {"intermediate_loss_weight": 0.3},
    "exchange_every_steps": {"exchange": "local"},
    "evaluation_devices": {"evaluation_placement": "beside"},
    "give_up_after_hours": {"targets": (("cer", 0.5),)},
}


def another(config, name):
    hint = typing.get_type_hints(type(config))[name]
    value = getattr(config, name)
    if name in VALUES:
        return VALUES[name]
    if typing.get_origin(hint) is typing.Literal:
        return next(other for other in typing.get_args(hint) if other != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 + 0.01
    raise AssertionError(
        f"{type(config).__name__}.{name} needs a value in this test's VALUES"
    )


def split(*texts, content="00ff"):
    utterances = [
        SimpleNamespace(id=f"u{number}", text=text, content=content)
        for number, text in enumerate(texts)
    ]
    return SimpleNamespace(utterances=utterances, index={})


def compared(experiment):
    facts = comparability(experiment, split("yes", "no"), Alphabet(), ["yes", "no"])
    return {
        name: value for name, value in facts.items() if name not in ("hash", "division")
    }


@pytest.mark.parametrize(("group", "name"), ASKED)
def test_every_setting_decides_what_is_written_of_it(group, name):
    paper = dataclasses.replace(paper_recipe(), decoder=DecoderConfig(name="word_beam"))
    config = dataclasses.replace(getattr(paper, group), **WITH.get(name, {}))
    base = dataclasses.replace(paper, **{group: config})
    other = dataclasses.replace(config, **{name: another(config, name)})
    changed = dataclasses.replace(paper, **{group: other})
    written = decision(type(config), name)
    assert (compared(changed) != compared(base)) is (written is Decides.MEASUREMENT)
    of_recipe = [settings_that_decide(one, Decides.RECIPE) for one in (config, other)]
    assert (of_recipe[0] != of_recipe[1]) is (written is Decides.RECIPE)
    if written is Decides.RECIPE and name not in (
        "evaluate_averaged", "averaged_statistics_utterances",
    ):  # fmt: skip
        assert f"{group}.{name}" in open_settings(changed)
    elif name not in WITH:
        assert is_closed(changed) is is_closed(base) is True


def test_no_setting_and_no_config_lacks_a_decision():
    for config in (*GROUPS.values(), *OTHERS, *(MODELS[name] for name in MODELS)):
        for field in dataclasses.fields(config):
            assert decision(config, field.name) in Decides

    known = {config.__name__: config for config in (*GROUPS.values(), *OTHERS)}
    for name, written in DECISIONS.items():
        fields = {field.name for field in dataclasses.fields(known[name])}
        assert sorted(fields) == sorted(
            field for group in written.values() for field in group
        )

    for config in OTHERS:
        for field in dataclasses.fields(config):
            assert decision(config, field.name) not in (
                Decides.MEASUREMENT,
                Decides.RECIPE,
            )


def test_the_page_shows_the_same_decisions():
    page = (Path(__file__).parents[2] / "docs" / "time_to_accuracy.md").read_text()
    paragraphs = page.replace("\n  ", " ").split("\n")
    for decides in Decides:
        (shown,) = [
            line for line in paragraphs if line.startswith(f"- **{decides.value}**")
        ]
        for config, written in DECISIONS.items():
            names = [config] if list(written) == [decides] else written.get(decides, ())
            assert [name for name in names if f"`{name}`" not in shown] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "greedy", "beam_width": 8}, {"name": "greedy", "beam_width": 512}),
        ({"name": "greedy", "recombine": True}, {"name": "greedy", "recombine": False}),
        ({"name": "beam", "recombine": True}, {"name": "beam", "recombine": False}),
    ],
)
def test_what_a_decoder_does_not_use_is_no_difference(one, other):
    facts = [
        comparability(
            dataclasses.replace(paper_recipe(), decoder=DecoderConfig(**settings)),
            split("yes"), Alphabet(), ["yes"],
        )
        for settings in (one, other)
    ]  # fmt: skip
    assert facts[0] == facts[1]


def test_units_and_noise_are_no_part_of_the_closed_division():
    letters = Alphabet()
    units = Alphabet(
        characters=letters.characters, separator=None,
        units=tuple((character.replace(" ", WORD_START), -1.0) for character in letters.characters),
    )  # fmt: skip
    for alphabet, closed in ((letters, True), (units, False)):
        facts = comparability(paper_recipe(), split("yes"), alphabet, ["yes"])
        assert ("division" in facts) is closed


def prepared(corpus, shard_dir, split="validation", **shards):
    prepare(
        corpus="tsv", corpus_dir=corpus, manifest="train.tsv", split=split, shard_dir=shard_dir,
        features=TINY_FEATURES, shards=ShardConfig(**shards),
        model=AcousticModelConfig(conv_kernel=5, conv_stride=2),
    )  # fmt: skip
    return open_split(shard_dir, split)


def facts_of(validation, training=None):
    facts = comparability(Experiment(), validation, Alphabet(), [], training=training)
    return json.loads(json.dumps(facts))


def test_splits_are_compared_by_what_they_hold(tmp_path):
    utterances = make_utterances(tmp_path / "corpus", 6)
    write_tsv(tmp_path / "corpus", utterances)
    first = prepared(tmp_path / "corpus", tmp_path / "a", max_duration_s=17.0)
    packed = {"max_duration_s": 20.0, "utterances_per_shard": 2, "dtype": "float32"}
    again = prepared(tmp_path / "corpus", tmp_path / "b", **packed)
    assert first.index["content_hash"] != again.index["content_hash"]
    assert facts_of(first, first) == facts_of(again, again)
    # Other audio under the same ids and transcripts.
    path = sorted((tmp_path / "corpus").rglob("*.flac"))[0]
    samples, rate_hz = soundfile.read(path)
    soundfile.write(path, samples[::-1], rate_hz)
    other = prepared(tmp_path / "corpus", tmp_path / "c", max_duration_s=17.0)
    differing = {
        name
        for name, value in facts_of(other).items()
        if value != facts_of(first)[name]
    }
    assert differing == {"validation_audio", "hash"}
    assert (
        facts_of(first, other)["training_audio"]
        != facts_of(first, first)["training_audio"]
    )
    # Less to learn from.
    three = type(first.utterances)(first.utterances[:3])
    fewer = SimpleNamespace(utterances=three, index=first.index)
    few = facts_of(first, fewer)
    all_of_them = facts_of(first, first)
    assert (few["training_recordings"], all_of_them["training_recordings"]) == (3, 6)
    assert few["training_audio"] != all_of_them["training_audio"]


def test_a_recordings_hash_does_not_depend_on_its_lossless_format(tmp_path):
    samples = np.random.default_rng(1).integers(-3000, 3000, 16000).astype(np.int16)
    hashes = set()
    for kind in ("wav", "flac"):
        folder = tmp_path / kind
        folder.mkdir()
        soundfile.write(folder / f"u.{kind}", samples, 16000)
        (folder / "train.tsv").write_text(f"{HEADER}u.{kind}\ta speaker\t1.0\tyes\n")
        hashes.add(
            facts_of(prepared(folder, tmp_path / f"shards_{kind}"))["validation_audio"]
        )

    assert len(hashes) == 1
