"""`tfasr bench decoder` on a file and on a run."""

import json
from pathlib import Path

import pytest

from tests.bench.conftest import spoken
from tests.warm import run_tfasr
from tfasr.bench.decoder import DecoderBenchConfig
from tfasr.bench.perform import run_workload
from tfasr.bench.workload import Context
from tfasr.cli import parse
from tfasr.errors import UsageError

LEXICON = ("ab", "ba", "cab", "a")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "log_probs.npz"
    spoken(["ab ba", "cab", "a"], LEXICON).save(path)
    return path


def bench_decoder(capsys, **options) -> str:
    """What the command prints, asked in this process."""
    words = ["tfasr", "bench", "decoder"]
    for name, value in options.items():
        words += [
            f"--{name}",
            ",".join(map(str, value)) if isinstance(value, list) else str(value),
        ]

    arguments = parse(words)
    arguments.run(arguments)
    return capsys.readouterr().out


def rows_of(text: str) -> dict[tuple[str, int | None, bool], dict]:
    rows = json.loads(text)["rows"]
    return {(row["decoder"], row["beam_width"], row["recombine"]): row for row in rows}


def test_a_file_gives_json_on_stdout_and_a_folder_of_results(file, tmp_path):
    words = ["--log_probs", file, "--out", tmp_path / "out", "--format", "json"]
    words += ["--beam_widths", "4,1", "--recombine"]

    finished = run_tfasr("bench", "decoder", *words, check=True)

    rows = rows_of(finished.stdout)
    assert list(rows) == [
        *(("word_beam", width, way) for way in (False, True) for width in (1, 4)),
        ("greedy", None, False),
    ]
    assert all(row["wer"] == 0 for row in rows.values())
    assert "word beam, beam width 4" in finished.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"decoder.png", "decoder.svg", "results.json", "table.md"}
    assert (tmp_path / "out" / "results.json").read_text() == finished.stdout
    assert "| word beam | 4 |" in (tmp_path / "out" / "table.md").read_text()


def test_a_dictionary_of_ones_own_takes_the_files_place(file, tmp_path, capsys):
    words = tmp_path / "words.txt"
    words.write_text("ab\n\ncab\n")
    options = {"decoders": ["word_beam"], "beam_widths": [4], "format": "json"}
    own = rows_of(bench_decoder(capsys, log_probs=file, lexicon=words, **options))
    assert own["word_beam", 4, False]["wer"] > 0
    assert (
        rows_of(bench_decoder(capsys, log_probs=file, **options))[
            "word_beam", 4, False
        ]["wer"]
        == 0
    )


def test_a_run_is_scored_as_evaluate_scores_it(shard_dir, tmp_path, capsys):
    from tests.training.test_train import experiment
    from tfasr.training.train import train
    from tfasr.training.trained import evaluate

    train(experiment(), shard_dir=shard_dir, run_dir=tmp_path / "run")
    options = {"beam_widths": [16], "format": "json"}
    saved = tmp_path / "saved.npz"
    rows = rows_of(
        bench_decoder(
            capsys,
            run_dir=tmp_path / "run",
            split="test",
            decoders=["word_beam", "greedy", "beam"],
            save_log_probs=saved,
            **options,
        )
    )

    for (name, beam_width, _), row in rows.items():
        expected = evaluate(
            run_dir=tmp_path / "run", split="test", decoder=name, beam_width=beam_width
        )
        assert {
            key: row[key] for key in expected.counts.to_json()
        } == expected.counts.to_json()

    again = rows_of(bench_decoder(capsys, log_probs=saved, **options))
    key = ("word_beam", 16, False)
    assert again[key]["wer"] == rows[key]["wer"]
    assert again[key]["character_edits"] == rows[key]["character_edits"]


def test_what_was_measured_before_a_failure_is_kept(file, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("xyz\n")
    with pytest.raises(UsageError, match="'xyz'"):
        bench_decoder(
            capsys,
            log_probs=file,
            lexicon=tmp_path / "words.txt",
            decoders=["greedy", "word_beam"],
            beam_widths=[4],
            out=tmp_path / "out",
        )

    kept = rows_of((tmp_path / "out" / "results.json").read_text())
    assert list(kept) == [("greedy", None, False)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run_dir": "/nowhere"}, "--split"),
        ({"run_dir": "/nowhere", "split": "test"}, "lexicon.txt"),
        ({"run_dir": "/nowhere", "split": "test", "decoders": ["beam"]}, "tfasr train"),
        ({"log_probs": "/nowhere.npz"}, r"/nowhere\.npz.*doesn't exist"),
        ({"log_probs": "/nowhere.npz", "split": "test"}, "--split"),
        ({"log_probs": "/nowhere.npz", "num_threads": 0}, "--num_threads"),
        ({"log_probs": "/nowhere.npz", "decoders": ["dance"]}, "dance"),
        ({"log_probs": "/nowhere.npz", "beam_widths": [0]}, "beam_width"),
    ],
)
def test_wrong_use_is_named(options, message, capsys):
    with pytest.raises(UsageError, match=message):
        bench_decoder(capsys, **{"decoders": ["word_beam"], **options})


def test_there_must_be_something_to_decode_and_a_decoder():
    with pytest.raises(UsageError, match="--run_dir or from --log_probs"):
        run_workload("decoder", [DecoderBenchConfig()], Context())

    nothing = DecoderBenchConfig(decoders=("word_beam",), beam_widths=())
    with pytest.raises(UsageError, match="decoder and a beam width"):
        run_workload("decoder", [nothing], Context(log_probs=Path("/nowhere.npz")))


def test_a_dictionary_that_is_missing_is_named(tmp_path, capsys):
    spoken(["ab"]).save(tmp_path / "without.npz")
    with pytest.raises(UsageError, match="--lexicon"):
        bench_decoder(capsys, log_probs=tmp_path / "without.npz")

    with pytest.raises(UsageError, match="nowhere"):
        bench_decoder(
            capsys, log_probs=tmp_path / "without.npz", lexicon="/nowhere.txt"
        )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["decoder"],
        ["decoder", "--log_probs", "/nowhere.npz", "--beam_widths", "4,many"],
        ["decoder", "--log_probs", "/nowhere.npz"],
    ],
)
def test_wrong_use_exits_with_2_and_a_message(arguments):
    finished = run_tfasr("bench", *arguments)

    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.strip()
    assert "Traceback" not in finished.stderr
