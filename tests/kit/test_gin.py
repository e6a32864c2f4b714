"""Bindings on top of a preset, and files that are no gin, through the command line too."""

import dataclasses
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Literal

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require, to_json
from tfasr.kit.gin import COMMAND_LINE, GinLine, parse, presets_folder, read_gin
from tfasr.studies.plan import load_plan
from tfasr.training.from_gin import load_config
from tfasr.tta.costs import load_hardware


def optimizer_of(config) -> str:
    return type(config.experiment.training.optimizer()).__name__


def test_another_optimizer_on_top_of_a_preset_drops_what_only_the_presets_own_used(
    caplog,
):
    caplog.set_level(logging.INFO, "tfasr")
    config = load_config(
        "an4.gin", ["TrainingConfig.optimizer = @Adam", "Adam.beta_1 = 0.8"]
    )

    assert optimizer_of(config) == "Adam"

    (line,) = [record.getMessage() for record in caplog.records]

    assert line.startswith("Dropped, since later bindings leave them unused: ")
    for name in ("Adadelta.learning_rate", "CosineDecay.initial_learning_rate"):
        assert f"{name} (" in line
    assert line.count("an4.gin:") == 4
    assert "# dropped, because later bindings leave it unused: Adadelta" in config.given
    assert "Adadelta" not in config.operative


def test_many_dropped_bindings_are_counted_not_listed(caplog):
    caplog.set_level(logging.INFO, "tfasr")
    load_plan("study/an4_levers.gin", ["StudyConfig.experiments = ('fast', 'muon')"])

    (line,) = [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("Dropped")
    ]

    assert line.count("an4_levers.gin:") == 6
    assert re.search(r", and \d\d more$", line)


def test_the_text_that_is_kept_reads_to_the_same_configs(tmp_path, caplog):
    bindings = [
        "TrainingConfig.optimizer = @Adam",
        "Adam.beta_1 = 0.8",
        "TrainingConfig.seed = 7",
    ]
    config = load_config("an4.gin", bindings)
    caplog.clear()
    caplog.set_level(logging.INFO, "tfasr")
    (tmp_path / "config.gin").write_text(config.given)

    again = load_config(str(tmp_path / "config.gin"))

    assert again.operative == config.operative
    assert again.given.strip() == config.given.strip()
    assert not caplog.records


def test_what_an_included_file_binds_is_dropped_too(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text(
        "include 'train/paper_states.gin'\nTrainingConfig.optimizer = @SGD\n"
    )

    assert optimizer_of(load_config(str(own))) == "SGD"


def test_what_an_earlier_file_binds_is_dropped_too(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text(
        "include 'train/paper_states.gin'\nTrainingConfig.optimizer = @SGD\n"
    )
    (tmp_path / "later.gin").write_text("TrainingConfig.optimizer = @Adam\n")
    config = load_config([str(own), str(tmp_path / "later.gin")])

    assert optimizer_of(config) == "Adam"


def test_what_only_a_file_and_its_include_bind_together_is_dropped_too(tmp_path):
    own = tmp_path / "own.gin"
    (tmp_path / "rate.gin").write_text("AdamW.learning_rate = 0.5\n")
    own.write_text("include 'rate.gin'\nTrainingConfig.optimizer = @AdamW\n")

    assert (
        optimizer_of(load_config(str(own), ["TrainingConfig.optimizer = @SGD"]))
        == "SGD"
    )


def test_a_block_is_dropped_whole_or_in_part(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text(
        "TrainingConfig.optimizer = @Adam\nAdam:\n    # why\n    beta_1 = 0.5\n    beta_2 = 0.7\n"
    )
    config = load_config(str(own), ["TrainingConfig.optimizer = @SGD"])

    (tmp_path / "again.gin").write_text(config.given)

    assert optimizer_of(load_config(str(tmp_path / "again.gin"))) == "SGD"


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (
            ["Adam.learning_rate = 1.0"],
            "--gin_binding:1: Adam.learning_rate is bound but",
        ),
        (
            ["TrainingConfig.optimizer = @SGD", "Adadelta.rho = 0.5"],
            r"--gin_binding:2: Adadelta",
        ),
        (["TrainingConfig.optimizer = @SDG"], "--gin_binding:1: .*SDG"),
        (
            ["TrainingConfig.epochs = 3", "TrainingConfig.epochz = 3"],
            "--gin_binding:2: .*epochz",
        ),
        (["TrainingConfig.epochs = [1,"], "--gin_binding:1: a bracket"),
        (
            ["TrainingConfig.seed = 100000000000000000000"],
            r"--gin_binding:1: .*seed.*64 bits",
        ),
        (
            ["import no_such_module_anywhere"],
            "--gin_binding:1: .*no_such_module_anywhere",
        ),
    ],
)
def test_ones_own_mistakes_are_still_refused(bindings, message):
    with pytest.raises(UsageError, match=message):
        load_config("an4.gin", bindings)


def test_a_presets_own_typo_is_not_taken_for_an_idle_binding(tmp_path):
    (tmp_path / "own.gin").write_text(
        "TrainingConfig.optimizer = @Adam\nAdam.beta_1 = 0.5\nAdamW.beta_1 = 0.5\n"
    )

    with pytest.raises(UsageError, match=r"own\.gin:3: AdamW\.beta_1"):
        load_config(str(tmp_path / "own.gin"), ["TrainingConfig.optimizer = @SGD"])


NO_GIN = [
    (
        b"TrainingConfig.epochs = [1,\n",
        ":1: a bracket or a quotation mark is not closed",
    ),
    (
        "# ok\n# caf\u00e9\n".encode("latin-1"),
        ":2: a gin file must be text in UTF-8.*0xe9.*UTF-8",
    ),
    (
        b"\x7fELF\x02\x01\x01\x00\x00\x00\n",
        ":1: a gin file must be text.*control character",
    ),
    (b"\x89PNG\r\n\x1a\n", ":1: a gin file must be text in UTF-8.*0x89"),
    (b"\n\nimport no_such_module_anywhere\n", ":3"),
]


@pytest.mark.parametrize(("content", "message"), NO_GIN)
@pytest.mark.parametrize("read", [load_config, load_hardware])
def test_what_is_no_gin_file_is_refused_by_file_and_line(
    tmp_path, content, message, read
):
    (tmp_path / "bad.gin").write_bytes(content)

    with pytest.raises(UsageError, match=rf"bad\.gin{message}"):
        read(str(tmp_path / "bad.gin"))


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path):
    (tmp_path / "own.gin").write_bytes(
        b"\xef\xbb\xbfTrainingConfig.epochs = 3\r\n# end\r\n"
    )

    assert load_config(str(tmp_path / "own.gin")).experiment.training.epochs == 3


def test_a_machines_description_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")

    (tmp_path / "machine.gin").write_text(
        "import evil\nHardwareConfig.price_usd_per_hour = 3\n"
    )

    with pytest.raises(
        UsageError, match=r"machine\.gin:1: .*must only describe a machine"
    ):
        load_hardware("machine.gin")

    assert not (tmp_path / "ran").exists()


def test_the_command_line_says_it_in_a_line_and_exits_with_2(tmp_path):
    (tmp_path / "bad.gin").write_bytes(NO_GIN[0][0])
    (tmp_path / "run").mkdir()
    for arguments in (
        ("train", "--gin_file", "bad.gin", "--shard_dir", "s", "--run_dir", "r"),
        ("bench", "--gin_file", "bad.gin"),
    ):
        command = [sys.executable, "-m", "tfasr.cli", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )

        assert done.returncode == 2
        assert "bad.gin:1: a bracket" in done.stderr
        assert "Traceback" not in done.stderr


# The statements of gin files: what stands where, and what is no gin.

TEXT = """# A comment.
import my_lab.models

Alpha.one = 1  # with a comment
scope/Beta.two = [
    # in the middle
    1,
    2,
]
Gamma:
    # of a block
    three = {'a': 3}

    four = @Alpha()
lr = 0.1
Delta.five = %lr
"""


def lines(text: str) -> list[GinLine]:
    return [
        GinLine("a.gin", n, line) for n, line in enumerate(text.split("\n"), start=1)
    ]


def test_every_statement_knows_its_lines():
    result = parse(lines(TEXT))

    assert [
        (s.kind, s.name, s.lines[0].number, s.lines[-1].number) for s in result
    ] == [
        ("import", "my_lab.models", 2, 2),
        ("binding", "Alpha.one", 4, 4),
        ("binding", "scope/Beta.two", 5, 9),
        ("block", "Gamma", 10, 11),
        ("binding", "Gamma.three", 12, 13),
        ("binding", "Gamma.four", 14, 14),
        ("binding", "lr", 15, 15),
        ("binding", "Delta.five", 16, 16),
    ]
    assert result[5].text == "Gamma.four = @Alpha()"
    assert result[2].place == "a.gin:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "A.b = 1\n\n# c\nA.b = [1,\n",
            r"a\.gin:4: a bracket or a quotation mark is not closed",
        ),
        ("A.b = (1,\nA.c = 2\n", r"a\.gin:2: "),
        ("A.b = 'x\n", r"a\.gin:1: "),
        ("A.b = '''x\n\n\n", r"a\.gin:1: a bracket or a quotation mark is not closed"),
        ("A.b = \n", r"a\.gin:1: Unable to parse value"),
        (
            "A.b = 1\nA.b = lr\n",
            r"a\.gin:2: a value must be a number, a text in quot.*@name",
        ),
        ("A.b = {[1]: 2}\n", r"a\.gin:1: unhashable"),
        ("A.b = " + "[" * 3000, r"a\.gin:1: "),
        ("A:\nA.b = 3\n", r"a\.gin:2: Expected indentation"),
        ("A:\n    b = 1\n  c = 1\n", r"a\.gin:3: unindent"),
        ("A.b = 1 A.c = 1\n", r"a\.gin:1: Expected newline"),
        ("include \\\n  'x.gin'\n", r"a\.gin:1: an include must stand alone"),
        ("$\n", r"a\.gin:1: "),
    ],
)
def test_what_is_no_gin_is_refused_by_file_and_line(text, message):
    with pytest.raises(UsageError, match=message) as error:
        parse(lines(text))
    assert len(str(error.value)) < 300


def test_a_bracket_that_is_open_does_not_swallow_the_next_file(tmp_path):
    (tmp_path / "a.gin").write_text("A.b = [1,\n")
    (tmp_path / "b.gin").write_text("A.c = 3]\n")

    with pytest.raises(UsageError, match=r"a\.gin:1: "):
        read_gin([str(tmp_path / "a.gin"), str(tmp_path / "b.gin")])
    with pytest.raises(UsageError, match="--gin_binding:1: "):
        read_gin([], ["A.b = [1,", "2]"])


def test_a_binding_of_the_command_line_may_have_several_lines():
    flag = GinLine(COMMAND_LINE, 1, "A.b = 1\nA.c = [\n2]")

    assert [(s.name, s.place) for s in parse([flag])] == [
        ("A.b", "--gin_binding:1"),
        ("A.c", "--gin_binding:1"),
    ]


@pytest.mark.parametrize(
    "path", sorted(presets_folder().rglob("*.gin")), ids=lambda path: path.name
)
def test_presets_are_cut_into_what_gin_reads_whole(path):
    text = read_gin([str(path)])
    cut = "\n".join(s.text for s in text.statements)
    try:
        gin.parse_config("\n".join(line.text for line in text.lines), skip_unknown=True)
        whole = gin.config_str()
        gin.clear_config()

        gin.parse_config(cut, skip_unknown=True)

        assert gin.config_str() == whole
    finally:
        gin.clear_config()


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_by_its_place(text):
    try:
        parse(lines(text))
    except UsageError as error:
        assert str(error).startswith("a.gin:")


@config_class
class ExampleConfig:
    count: int = 1
    share: float = 0.5
    name: Literal["a", "b"] = "a"
    maybe: int | None = None
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[str, ...] = ()
    function: Callable[[], int] | None = None
    flag: bool = False

    def check(self):
        require(self.count > 0, self, "count", "positive")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", 1.0),
        ("count", "1"),
        ("count", True),
        ("count", None),
        ("share", "0.5"),
        ("share", False),
        ("name", "c"),
        ("name", ["a"]),
        ("maybe", 1.5),
        ("pair", (1,)),
        ("pair", (1.5, 2.0)),
        ("pair", "ab"),
        ("many", "ab"),
        ("many", ("a", 1)),
        ("function", 3),
        ("flag", 1),
    ],
)
def test_values_of_another_type_are_refused_by_name(field, value):
    with pytest.raises(TypeError, match=f"ExampleConfig.{field} must be") as error:
        ExampleConfig(**{field: value})
    assert f"Received: {value!r}" in str(error.value)


def test_right_types_are_taken():
    config = ExampleConfig(share=2, maybe=3, pair=[1, 2], many=["x", "y"], function=len)

    assert config.pair == (1, 2)
    assert config.many == ("x", "y")
    assert isinstance(config.share, float)

    hash(config)


def test_values_that_make_no_sense_are_refused():
    with pytest.raises(
        ValueError, match=r"ExampleConfig\.count must be positive. Received: 0\."
    ):
        ExampleConfig(count=0)


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExampleConfig().count = 2
    with pytest.raises(TypeError):
        ExampleConfig(2)


def test_a_plain_call_behaves_as_written_whatever_gin_parsed():
    try:
        gin.parse_config("ExampleConfig.count = 7")

        assert ExampleConfig().count == 1
        assert gin.get_configurable(ExampleConfig)().count == 7
    finally:
        gin.clear_config()


def test_a_config_becomes_json():
    plain = to_json(ExampleConfig(function=len, many=["x"]))

    assert json.loads(json.dumps(plain)) == plain
    assert plain["function"] == "len"
    assert plain["many"] == ["x"]
    assert json.dumps(to_json(ExampleConfig(share=2))) == json.dumps(
        to_json(ExampleConfig(share=2.0))
    )
