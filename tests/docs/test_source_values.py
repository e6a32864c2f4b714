"""Values of the sources that no other test asserts, for rows of docs/sources.md."""

import re
from pathlib import Path

import pytest

from tfasr.bench.perform import load_bench
from tfasr.bench.sweep import INFERENCE_BATCHES
from tfasr.kit.gin import presets_folder
from tfasr.reports.figures.time import WINDOW_S
from tfasr.reports.series import SIGMA
from tfasr.telemetry.samplers import CPU_INTERVAL_S
from tfasr.training.experiment import Experiment
from tfasr.training.from_gin import load_config
from tfasr.tta.published.results import published

ROOT = Path(__file__).parents[2]
SEEDS = ROOT.parent / "shared" / "seeds"


def source(name):
    path = SEEDS / name
    if not path.is_file():
        pytest.skip(f"needs the source documents in {SEEDS}")
    return path.read_text(encoding="utf-8")


def decimals(value, places, factor=1.0):
    return f"{factor * value:.{places}f}"


def test_published_tables_have_the_numbers_that_the_paper_prints():
    text = source("paper_arxiv_2003.12366.txt").replace("'", "")
    tables = published("paper").tables
    printed = [decimals(row[name], 2) for row in tables["Table 1"].rows
               for name in ("total_usd", "gpus_usd", "cpus_usd")]  # fmt: skip
    for row in tables["Table 3"].rows:
        printed += [str(row["evaluation_s"]), decimals(row["wer"], 2, 100)]
        printed.append(decimals(row["cer"], 3, 100))
    for name in ("Table 4", "Table 6"):
        for row in tables[name].rows:
            if row["seconds"] is not None:
                printed.append(f"{row['seconds'] / 60:.0f}")
                printed.append(f"{100 * row['printed_relative']:.0f}%")
    printed += [decimals(r["wer"], 2, 100) for r in tables["Table 5"].rows if r["wer"] is not None]
    missing = [number for number in printed if not re.search(rf"(?<![\d.]){number}", text)]
    assert missing == []
    assert len(printed) > 100
    rows = [(row["global_batch_size"], row["per_replica_batch_size"], row["readers"],
             row["buffer_batches"]) for row in tables["Table 2"].rows]  # fmt: skip
    assert rows == [(96, 24, 8, 40), (240, 60, 16, 100), (300, 150, 16, 100)]
    shares = [f"{100 * row['gpu_share']:.0f}%" for row in tables["Section 5.3"].rows]
    assert "going from {} utilization to {} on average".format(*shares) in text


def test_published_steps_have_the_numbers_of_the_thread():
    line = {
        1: "154 83 72 128000 32 189 4013",
        4: "180 99 81 128000 106 632 1204",
    }
    (table,) = published("deepmark").tables.values()
    for row in table.rows:
        values = [f"{1000 * row[name]:.0f}" for name in ("total_s", "forward_s", "backward_s")]
        values += ["128000", *(f"{row[n]:.0f}" for n in ("utterances_per_s", "audio_s_per_s"))]
        assert " ".join([*values, f"{row['epoch_s']:.0f}"]) == line[row["num_devices"]]
        assert line[row["num_devices"]] in source("deepmark_deep_speech_2.txt")


def test_figures_have_the_papers_smoothing_window_and_sampling():
    assert SIGMA == 10  # section 5.1: standard deviation of the Gaussian filter of Figure 7a
    assert WINDOW_S == 25  # Figure 8
    assert CPU_INTERVAL_S == 0.03  # section 4.1.4


def test_greedy_is_the_default_and_word_beam_search_is_bound_where_the_paper_is_meant():
    decoders = {name: load_config(f"{name}.gin").experiment for name in ("demo", "an4")}
    assert Experiment().decoder.name == "greedy"
    assert Experiment().second_decoder is None
    assert {e.decoder.name for e in decoders.values()} == {"greedy"}
    assert {e.second_decoder.name for e in decoders.values()} == {"word_beam"}
    for system in ("sys1", "sys2", "sys10"):
        assert load_config(f"paper_{system}.gin").experiment.decoder.name == "word_beam"


def test_deepmarks_network_and_data_are_those_of_the_thread():
    from tfasr.bench import ds2

    thread = source("deepmark_deep_speech_2.txt")
    rows = re.findall(r"^(\d+) (\d+\.0) (\d+)$", thread, re.MULTILINE)
    seconds, percents, labels = zip(*rows, strict=True)
    assert tuple(map(int, seconds)) == ds2.LENGTHS_S
    assert tuple(int(float(share)) for share in percents) == ds2.COUNTS
    assert tuple(map(int, labels)) == ds2.LABEL_LENGTHS
    network, measured = load_bench("bench/ds2.gin").configs[:2]
    sizes = (network.num_bins, network.conv_filters, network.num_recurrent_layers, network.units)
    assert (*sizes, network.clip, network.num_classes) == (161, 32, 7, 1760, 20.0, 29)
    assert {8, 9, 64, 96} < set(measured.search_batches)  # the thread's cliffs
    assert max(measured.search_batches) == 128


def test_the_hardware_sweep_has_the_talks_batches_and_precisions():
    sweep = load_bench("bench/hardware_sweep.gin").configs[0]
    assert INFERENCE_BATCHES == (1, 2, 3, 4)
    # The paper: per GPU in Table 2, and of 160 on Sys1$'s four GPUs, where 96 were faster (4.4.1).
    assert {24, 60, 150, 160 // 4} <= set(sweep.training_batches)
    assert {"float32", "mixed_float16", "int8"} <= set(sweep.precisions)
    assert {"tensorflow", "tensorflow_xla", "jax", "torch"} <= set(sweep.runtimes)
    assert len(sweep.networks) >= 2
    assert len(sweep.lengths) >= 2
    assert {threads[0] for threads in sweep.threads} >= {1, 2}


def test_the_roofline_has_erts_intensities_experiments_and_the_k80():
    roofline = load_bench("bench/roofline.gin").configs[0]
    assert roofline.sweep_flops == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert {"float32", "float64"} <= set(roofline.sweep_precisions)
    assert roofline.experiments == 5
    assert ("float64", 2 * 1455.0) in [line[1:] for line in roofline.reference_gflops]


def test_the_keyword_preset_is_the_talks_task():
    network, training = load_bench("bench/keyword_spotting.gin").configs[:2]
    assert network.num_words == 30
    clips = training.num_train + training.num_validation + training.num_test
    assert clips == pytest.approx(65_000, rel=0.01)
    assert (presets_folder() / "bench" / "keyword_spotting_small.gin").is_file()
