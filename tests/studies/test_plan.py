"""What a study's gin file asks for, and what is refused before anything is trained."""

from pathlib import Path

import pytest

from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.studies.plan import begin, load_plan
from tfasr.studies.steps import study_steps

STUDIES = sorted(path.name for path in (presets_folder() / "study").glob("*.gin"))
SMALL = "study/paper_small.gin"
TWO = """\
StudyConfig.experiments = ('slow', 'fast')
StudyConfig.seeds = (1, 2)
ExperimentConfig.gin_files = ('demo.gin',)
slow/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 8',)
fast/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 64',)
fast/ExperimentConfig.seeds = (1, 2, 3)
"""


def written(folder, text=TWO):
    path = folder / "mine.gin"
    path.write_text(text)
    return str(path)


def test_runs_take_turns_and_carry_their_seeds(tmp_path):
    plan = load_plan(written(tmp_path))
    assert [str(run.folder) for run in plan.runs] == [
        "runs/slow/seed_1", "runs/fast/seed_1", "runs/slow/seed_2", "runs/fast/seed_2",
        "runs/fast/seed_3",
    ]  # fmt: skip
    assert plan.runs[3].bindings == (
        "PipelineConfig.global_batch_size = 64", "TrainingConfig.seed = 2",
    )  # fmt: skip
    assert plan.runs[0].gin_files[0].endswith("gin/demo.gin")
    assert plan.runs[4].name == "fast-seed_3"
    # One seed is one folder.
    one = load_plan(
        written(tmp_path), ["StudyConfig.seeds = (7,)", "fast/ExperimentConfig.seeds = ()"]
    )
    assert [str(run.folder) for run in one.runs] == ["runs/slow", "runs/fast"]


def test_a_preset_beside_the_studys_file_is_found_there(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "own.gin").write_text("TrainingConfig.epochs = 2\n")
    path = written(tmp_path / "there", TWO.replace("demo.gin", "own.gin"))
    monkeypatch.chdir(tmp_path)
    assert load_plan(path).runs[0].gin_files == (str(tmp_path / "there" / "own.gin"),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("('slow', 'fast')", "('slow', 'fats')"), r"mine\.gin:1.*'fats'.*Described: slow, fast"),
        (("('slow', 'fast')", "('slow', 'slow')"), r"mine\.gin:1.*Received twice: slow"),
        (("('slow', 'fast')", "('slow',)"), r"mine\.gin:5.*nothing uses it"),
        (("('slow', 'fast')", "()"), r"mine\.gin:1.*at least one"),
        (("demo.gin", "nowhere.gin"), r"nowhere\.gin.*study/paper_small\.gin"),
        (("(1, 2, 3)", "(3, 3)"), r"mine\.gin:6.*different"),
        (("(1, 2, 3)", "3"), r"mine\.gin:6.*seeds must be"),
        (("fast/ExperimentConfig.seeds", "fast/ExperimentConfig.sed"), r"mine\.gin:6.*sed"),
        (("slow/ExperimentConfig.bindings", "slow/ExperimentConfig.label = 'fast'\n#"),
         "label of its own.*'fast'"),
        (("seeds = (1, 2)\n", "corpus = 'mine'\n"), r"mine\.gin:2.*corpus must be"),
        (("seeds = (1, 2)\n", "beam_widths_of = 'mine'\n"), r"mine\.gin:2.*slow, fast.*'mine'"),
    ],
)  # fmt: skip
def test_bad_studies_are_refused_by_file_and_line(tmp_path, change, message):
    assert change[0] in TWO
    with pytest.raises(UsageError, match=message):
        load_plan(written(tmp_path, TWO.replace(*change)))


def test_a_folder_keeps_the_study_it_was_begun_with(tmp_path):
    path, folder = written(tmp_path), tmp_path / "study"
    folder.mkdir()
    begin(folder, load_plan(path), None, resume=False)
    with pytest.raises(UsageError, match="must not hold a study yet.*--resume"):
        begin(folder, load_plan(path), None, resume=False)
    # What only the report shows may change, and so may comments.
    written(tmp_path, f"# again\n{TWO}StudyConfig.title = 'Another title'\n")
    begin(folder, load_plan(path), None, resume=True)
    for change, message in (
        ("StudyConfig.seeds = (1, 3)", "runs/slow/seed_2: planned then"),
        ("slow/ExperimentConfig.bindings = ()", "runs/slow/seed_1: a statement is gone"),
        ("StudyConfig.corpus = 'synthetic'", "corpus: '' then, 'synthetic' now"),
    ):
        with pytest.raises(UsageError, match=message):
            begin(folder, load_plan(path, [change]), None, resume=True)
    with pytest.raises(UsageError, match=r"shard_dir: None then, .*/shards' now"):
        begin(folder, load_plan(path), tmp_path / "shards", resume=True)


def test_recordings_must_come_prepared(tmp_path):
    with pytest.raises(UsageError, match="--shard_dir.*Received: none"):
        study_steps(load_plan(written(tmp_path)), tmp_path, None)


@pytest.mark.parametrize("name", STUDIES)
def test_presets_are_made_of_presets_and_not_of_studies(name):
    for run in load_plan(f"study/{name}").runs:
        assert not [file for file in run.gin_files if Path(file).parent.name == "study"]


def test_the_papers_studies_are_alike():
    small, paper = load_plan(SMALL), load_plan("study/paper.gin")
    assert list(small.experiments) == list(paper.experiments)
    assert small.parts() == paper.parts()
    assert small.config.beam_widths == paper.config.beam_widths
    tables = [one.published_table for one in paper.experiments.values()]
    assert tables == ["Table 4"] * 3 + ["Table 6"] * 3
