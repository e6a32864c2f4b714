"""The statements of gin files: what stands where, and what is no gin."""

import gin
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.kit.gin import COMMAND_LINE, Line, parse, presets_folder, read_gin

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


def lines(text: str) -> list[Line]:
    return [Line("a.gin", n, line) for n, line in enumerate(text.split("\n"), start=1)]


def test_every_statement_knows_its_lines():
    found = parse(lines(TEXT))
    assert [(s.kind, s.name, s.lines[0].number, s.lines[-1].number) for s in found] == [
        ("import", "my_lab.models", 2, 2),
        ("binding", "Alpha.one", 4, 4),
        ("binding", "scope/Beta.two", 5, 9),
        ("block", "Gamma", 10, 11),
        ("binding", "Gamma.three", 12, 13),
        ("binding", "Gamma.four", 14, 14),
        ("binding", "lr", 15, 15),
        ("binding", "Delta.five", 16, 16),
    ]
    assert found[5].text == "Gamma.four = @Alpha()"
    assert found[2].place == "a.gin:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A.b = 1\n\n# c\nA.b = [1,\n", r"a\.gin:4: a bracket or a quotation mark is not closed"),
        ("A.b = (1,\nA.c = 2\n", r"a\.gin:2: "),
        ("A.b = 'x\n", r"a\.gin:1: "),
        ("A.b = '''x\n\n\n", r"a\.gin:1: a bracket or a quotation mark is not closed"),
        ("A.b = \n", r"a\.gin:1: Unable to parse value"),
        ("A.b = 1\nA.b = lr\n", r"a\.gin:2: a value must be a number, a text in quot.*@name"),
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
    flag = Line(COMMAND_LINE, 1, "A.b = 1\nA.c = [\n2]")
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
