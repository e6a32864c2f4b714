"""docs/sources.md: its commands run, and every row that is done has a test that exists."""

import ast
import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reports.conftest import COMPARABLE, ledger_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.partition(" #")[0].strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("tfasr ")
]
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in PAGE[PAGE.index("## The paper") :].splitlines()
    if re.match(r"\| \S", line) and not line.startswith(("| row", "| ---"))
]
SECTIONS = re.split(r"^## ", PAGE[PAGE.index("## The paper") :], flags=re.MULTILINE)[1:]
CHECKS = {
    code: (ROOT / "tests" / file, test)
    for code, file, test in re.findall(
        r"^\| ([A-Z]\d+) \| (\S+) \| (\w+) \|$",
        (ROOT / "docs" / "sources_checks.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
BY_LETTER = {
    letter: block.replace("\\\n", " ")
    for letter, block in re.findall(
        r"^### ([A-Z])\b.*?```sh\n(.*?)```", PAGE, re.DOTALL | re.M
    )
}
# Rows that say little without an option or a preset of their own: what a command of
# theirs has.
NEEDED = {
    "a language model trained on text": "tfasr ngram",
    "dictionary of another source": "--lexicon",
    "Table 3: widths 64 to 4096": "--beam_widths 64,128,256,512,1024,2048,4096",
    "as splits of their names": "--split test",
    "processors, memory, cores and links": "doctor --beside paper",
    "published rows: 1 and 4 Titan": "--beside deepmark",
    "the spotter learns in Keras and in PyTorch": "bench/backends",
    "NHWC against NCHW": "bench/backends",
    "accuracy by precision, of a converged model": "--run_dir",
}
REASON = re.compile(r"(?:deviation|not built) \((\d+)\)")
PATIENCE_S = 1500


def is_quick(command: str) -> bool:
    """Whether a command needs no TensorFlow and nothing but runs' ledgers."""
    words = shlex.split(command)
    return (
        words[1] == "report" or "study --gin_file" in command and "--dry_run" in words
    )


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "tfasr.cli", *words],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (
        f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return done.stdout


def test_the_page_is_read_as_it_is_written():
    assert len(COMMANDS) >= 12
    assert len(ROWS) >= 100
    assert len(CHECKS) >= 70
    assert sum(map(is_quick, COMMANDS)) >= 3


def test_every_row_has_a_state_and_a_command_or_a_check():
    letters = set(re.findall(r"^### ([A-Z])\b", PAGE, re.MULTILINE))
    for row in ROWS:
        assert len(row) == 4, row
        _, state, commands, checks = row
        assert state in ("done", "no task") or REASON.fullmatch(state), row
        assert commands == "—" or set(commands.split(", ")) <= letters, row
        codes = [] if checks == "—" else checks.split(", ")
        assert set(codes) <= CHECKS.keys(), row
        assert codes or state != "done", f"{row}: nothing checks that it is done"


@pytest.mark.parametrize("named", NEEDED)
def test_a_rows_commands_have_the_option_that_it_is_about(named):
    (row,) = (row for row in ROWS if named in row[0])
    assert any(NEEDED[named] in BY_LETTER[letter] for letter in row[2].split(", ")), row


def test_every_deviation_has_a_reason_and_every_reason_a_row():
    for section in SECTIONS:
        numbers = set(re.findall(r"^(\d+)\. ", section, re.MULTILINE))
        assert set(REASON.findall(section)) == numbers, section.splitlines()[0]


def test_every_check_exists_and_is_used():
    for code, (path, test) in CHECKS.items():
        assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), (
            code,
            path,
            test,
        )
    used = {code for row in ROWS for code in row[3].split(", ")}
    assert used - {"—"} == CHECKS.keys()


def may_be_skipped(path, test):
    """Whether a test is left out of `make test`, or skips for lack of a package or of data."""
    text = path.read_text(encoding="utf-8")
    (function,) = (
        node for node in ast.parse(text).body if getattr(node, "name", "") == test
    )
    first = min(
        [function.lineno, *(decorator.lineno for decorator in function.decorator_list)]
    )
    itself = "\n".join(text.splitlines()[first - 1 : function.end_lineno])
    if "import tensorflow_io" in text or "pytestmark = pytest.mark.skipif" in text:
        return True
    return bool(re.search(r"pytest\.skip|importorskip|mark\.long|\bsource\(", itself))


def test_checks_that_may_be_skipped_are_named_with_what_they_need():
    page = (ROOT / "docs" / "sources_checks.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b[A-Z]\d+\b", page.partition("| code")[0]))
    assert {code for code, where in CHECKS.items() if may_be_skipped(*where)} == named


def test_pictures_and_pages_that_are_named_exist():
    linked = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE)
    missing = [
        one for one in linked if "://" not in one and not (ROOT / "docs" / one).exists()
    ]
    assert missing == []


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A folder whose study ``small`` has ledgers written by hand."""
    folder = tmp_path_factory.mktemp("page")
    for number, name in enumerate(("sys1", "sys2", "sys10"), start=1):
        ledger = ledger_of(
            [0.5, 0.1, 0.07 * number, 0.06, 0.06, 0.05], comparability=COMPARABLE
        )
        ledger.write(folder / "small" / "runs" / name)

    return folder


@pytest.mark.parametrize("command", [one for one in COMMANDS if is_quick(one)])
def test_commands_that_need_no_training_run(command, stand_in):
    assert run(command, stand_in).strip()


@pytest.mark.parametrize(
    ("source", "row"),
    [("paper", "Sys2$ (published)"), ("deepmark", "1 x Titan (published)")],
)
def test_a_command_shows_what_each_source_published(source, row, stand_in):
    (command,) = (
        one for one in COMMANDS if one.endswith(f"--beside {source}") and is_quick(one)
    )
    assert row in run(command, stand_in)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What every command of the page printed, run in its order; and the folder they ran in."""
    folder = tmp_path_factory.mktemp("commands")
    texts = {}
    for command in COMMANDS:
        print(f"$ {command}", flush=True)
        texts[command] = run(command, folder)
        assert texts[command].strip(), command

    return folder, texts


def table(folder, number):
    """A table's own and published rows, from the study's report."""
    with (folder / "small" / "report" / f"beside_table_{number}.csv").open() as file:
        rows = list(csv.DictReader(file))
    published = [row for row in rows if row["published"].lower() == "true"]
    assert published
    return [row for row in rows if row not in published], published


@pytest.mark.long
def test_every_command_shows_what_its_rows_say(shown):
    folder, texts = shown
    systems, _ = table(folder, 1)
    assert [float(row["total_usd"]) for row in systems[:3]] == [
        2605.29,
        5699.95,
        25999.00,
    ]
    widths = {int(row["beam_width"]) for row in table(folder, 3)[0]}
    assert widths >= {64, 128, 256, 512, 1024, 2048, 4096}
    for number, rates in ((4, (22, 20.2, 19.2)), (6, (22, 20, 19))):
        own, published = table(folder, number)
        assert len(own) == len(published) == 3
        names = [f"cer_{rate / 100:g}_s" for rate in (10, 8, 7)]
        assert {*names, *(f"wer_{rate / 100:g}_s" for rate in rates)} <= own[0].keys()

    own, _ = table(folder, 5)
    assert all(
        float(row[f"clean {split}"]) < 1
        for row in own
        for split in ("validation", "test")
    )
    for figure in ("7a", "7b", "7c", "8", "9", "10"):
        assert (
            f"As Figure {figure} of the paper"
            in (folder / "small" / "report" / "report.html").read_text()
        )

    log = (folder / "small" / "logs" / "sys1.log").read_text()
    assert "target met: CER 10 %" in log
    ledger = (folder / "small" / "runs" / "sys1" / "events.jsonl").read_text()
    events = [json.loads(line)["key"] for line in ledger.splitlines()]
    assert events.count("swap_stop") == 2 * events.count("epoch_stop") > 0
    assert events.count("sentences_stop") > 0
    index = json.loads((folder / "paper_shards" / "train" / "index.json").read_text())
    assert index["features"]["spectrum"] == "magnitude"
    assert len(index["alphabet"]["characters"]) == 29  # and the blank
    assert index["kept_share"] == 1.0
    dry = next(text for command, text in texts.items() if "--run_dir unused" in command)
    assert "TrainingConfig.evaluation_placement = 'swapped'" in dry
    assert "56.67 h" in dry
    (row,) = json.loads((folder / "other_words" / "scores.json").read_text())["rows"]
    assert row["lexicon"].endswith("sys2/lexicon.txt")
