"""What newcomers mistype is answered before TensorFlow is loaded, with what to do at the end."""

import subprocess
import sys

import pytest

from tests.reports.conftest import ledger_of
from tfasr import cli

TRAIN = "train --shard_dir shards --run_dir new "
BIND = TRAIN + "--gin_binding "
# What is typed, and what the last words of the answer must hold.
MISTAKES = [
    ("trian", "Did you mean train instead of trian?"),
    ("Train", "Did you mean train instead of Train?"),
    ("help trian", "Did you mean train instead of trian?"),
    ("train", "tfasr help train lists them."),
    ("train --shard_dir shards", "tfasr help train lists them."),
    (
        "train --shard-dir shards --run-dir new",
        "Did you mean --shard_dir instead of --shard-dir?",
    ),
    (TRAIN + "--batchsize 5", "Did you mean --batch_size instead of --batchsize?"),
    (TRAIN + "--learning_rate 0.1", "tfasr help train lists them."),
    (TRAIN + "--epochs ten", "invalid whole_number value: 'ten'"),
    (TRAIN + "--epochs 0", "must be at least 1. Received: 0"),
    (TRAIN + "--seed 1.5", "invalid whole_number value: '1.5'"),
    (TRAIN + "--log_to tensorbord", "Did you mean tensorboard instead of tensorbord?"),
    (TRAIN + "--lexicon words.txt", "Did you mean word.txt?"),
    (TRAIN + "--import own.py", "Correct the path."),
    (TRAIN + "--gin_file ann4", "Did you mean an4?"),
    (TRAIN + "--gin_file fast/an4.gn", "Did you mean fast/an4?"),
    (TRAIN + "--gin_file something_else", "tfasr presets lists all presets."),
    (TRAIN + "--gin_file own.gin", "own.gin:2", "Did you mean TrainingConfig?"),
    (BIND + "TrainingConfig.epoch=5", "Did you mean TrainingConfig.epochs?"),
    (BIND + "trainingconfig.epochs=5", "Did you mean TrainingConfig?"),
    (BIND + "epochs=5", "Did you mean TrainingConfig.epochs?"),
    (BIND + "batch_size=5", "Did you mean PipelineConfig.global_batch_size?"),
    (BIND + "TrainingConfig.optimizer=@Adamm", "Did you mean @Adam?"),
    (BIND + "TrainingConfig.optimizer=Adam", "TrainingConfig.optimizer = @Adam."),
    (BIND + "Adam.learning_rat=0.1", "Did you mean Adam.learning_rate?"),
    (BIND + "CosineDecay.decay_step=9", "Did you mean CosineDecay.decay_steps?"),
    (
        BIND + "TrainingConfig.epochs='ten'",
        "TrainingConfig.epochs must be int. Received: 'ten'.",
    ),
    (BIND + "TrainingConfig.epochs=%many", "there is no setting %many"),
    (BIND + "TrainingConfig.epochs", "A binding looks like TrainingConfig.epochs = 5"),
    (BIND + "Nothing.alike=1", "tfasr settings lists what can be bound"),
    ("train --shard_dir shard --run_dir new", "Did you mean shards?"),
    ("train --shard_dir nowhere --run_dir new", "Run tfasr prepare for 'train'"),
    (
        "train --shard_dir shards --run_dir recorded",
        "--resume, or choose another folder.",
    ),
    (
        "prepare --corpus librispeach",
        "Did you mean librispeech instead of librispeach?",
    ),
    ("prepare --corpus librispeech --corpus_dir corpsu --shard_dir s", "corpus?"),
    (
        "prepare --corpus tsv --corpus_dir corpus --shard_dir s --split train",
        "--manifest",
    ),
    ("evaluate --run_dir runs --split test", "Name a run in it: a."),
    ("evaluate --run_dir runz --split test", "Did you mean runs?"),
    ("evaluate --run_dir runs/a --split test --checkpoint bst", "Did you mean best?"),
    (
        "evaluate --run_dir runs/a --split tran --shard_dir shards",
        "Did you mean train?",
    ),
    (
        "evaluate --run_dir runs/a --split test --decoder gredy",
        "Did you mean greedy instead",
    ),
    (
        "evaluate --run_dir runs/a --split test --language_model lm.arpa",
        "Correct the path.",
    ),
    ("ngram --shard_dir shards --split trian --out x.arpa", "Did you mean train?"),
    ("transcribe b.wav --run_dir runs/a", "Did you mean a.wav?"),
    ("transcribe a.wav", "tfasr help transcribe lists them."),
    ("export --run_dir runs/a --to onxx --out e", "Did you mean onnx instead of onxx?"),
    (
        "export --run_dir runs/a --to keras --int8 --out e",
        "Leave --int8 out, or choose another",
    ),
    ("serve --run_dir runs/aa", "Correct the path."),
    ("bench decodr", "Did you mean decoder instead of decodr?"),
    ("bench --gin_file bench/ds3", "Did you mean bench/ds2?"),
    ("study --gin_file study/demos", "Did you mean study/demo?"),
    ("settings epochz", "Did you mean epochs?"),
    ("settings fats/an4", "Did you mean fast/an4?"),
    ("report recorded --policy mlpref", "Did you mean mlperf instead of mlpref?"),
    ("report --fromat json recorded", "Did you mean --format instead of --fromat?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("newcomer")
    for split in ("train", "validation"):
        (place / "shards" / split).mkdir(parents=True)
        (place / "shards" / split / "index.json").write_text("{}")

    (place / "corpus").mkdir()
    (place / "runs" / "a").mkdir(parents=True)
    (place / "runs" / "a" / "experiment.json").write_text("{}")
    for name in ("a.wav", "word.txt"):
        (place / name).write_text("")
    (place / "own.gin").write_text(
        "TrainingConfig.epochs = 5\nTrainingConfg.seed = 1\n"
    )
    ledger_of([0.5]).write(place / "recorded")
    return place


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_answered_with_the_remedy_at_the_end(
    folder, mistake, monkeypatch, capsys
):
    typed, *facts = mistake
    monkeypatch.chdir(folder)
    # What gets past the check of flags and paths would load TensorFlow, or begin its
    # work.
    monkeypatch.setattr(
        "tfasr.kit.process.load_tensorflow", lambda: pytest.fail("too late")
    )
    monkeypatch.setattr(sys, "argv", ["tfasr", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    answer = capsys.readouterr().err
    last = answer.strip().splitlines()[-1]
    assert all(fact in last for fact in facts)
    assert facts[-1] in last[-120:]
    assert "Traceback" not in answer


def test_a_flag_like_no_other_gets_no_suggestion(capsys):
    with pytest.raises(SystemExit):
        cli.parse(["tfasr", "report", "runs", "--zzz"])
    assert "Did you mean" not in capsys.readouterr().err


def run(script, **options):
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )


def test_a_mistake_is_found_before_tensorflow_is_loaded(folder):
    words = f"{BIND} TrainingConfig.epoch=5".split()
    script = (
        "import sys; from tfasr import cli; cli.run(cli.parse(sys.argv[1:]));"
        "assert not {'tensorflow', 'keras'} & sys.modules.keys()"
    )
    done = run(script.replace("sys.argv[1:]", repr(["tfasr", *words])), cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")


def test_tensorflow_is_loaded_without_its_lines_about_devices():
    script = (
        "from tfasr.kit.process import load_tensorflow; load_tensorflow();"
        "import tensorflow as tf; tf.reduce_sum(tf.ones(3))"
    )
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_process_writes_before_it_dies_is_shown(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'I0000 00:00:17.2  33 port.cc:1] oneDNN\\nF illegal\\nlast')\n"
        "os.abort()\n"
    )
    script = (
        "import sys; sys.path.insert(0, '.');"
        "from tfasr.kit.process import load_tensorflow; load_tensorflow()"
    )
    done = run(script, cwd=tmp_path)
    assert done.returncode < 0
    assert "F illegal\nlast" in done.stderr
    assert "oneDNN" not in done.stderr


def test_a_presets_settings_leave_out_the_optimizer_that_a_later_line_replaced(
    capsys, monkeypatch
):
    def shown(preset):
        monkeypatch.setattr(sys, "argv", ["tfasr", "settings", preset])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    fast = shown("fast/an4")
    assert "Adadelta" not in fast
    assert "TrainingConfig.optimizer = @Adam " in fast
    assert "Adam.learning_rate = @CosineDecay()" in fast
    assert "CosineDecay.decay_steps = 800" in fast
    assert "Adadelta.learning_rate" in shown("an4")
