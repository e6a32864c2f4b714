import csv
import gzip
import json
import subprocess
import sys

import pytest

from tests.reports.conftest import ledger_of
from tests.reports.test_page import Checked
from tfasr.cli import parse, run
from tfasr.commands.report import report
from tfasr.errors import RunError, UsageError

SAID = ["a b c d", "a b", "c d e", "a e", "b c d e", "e d c"]
SPEAKERS = ["ann", "bob", "cat", "dan", "eve", "ann"]


def write_hypotheses(path, heard, *, said=SAID, speakers=SPEAKERS):
    """Writes what was said and heard as tfasr's own hypotheses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"id": f"u{i}", "reference": r, "hypothesis": h, "score": -1.0, "speaker": s}
        for i, (r, h, s) in enumerate(zip(said, heard, speakers, strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return path


def run_with_hypotheses(run_dir, *epochs, cers=None, **options):
    """A run whose epochs heard these texts."""
    ledger_of(cers or [0.5, 0.1, 0.3], **options).write(run_dir)
    for number, heard in enumerate(epochs, start=1):
        path = run_dir / "hypotheses" / f"validation-epoch-{number:04}.jsonl"
        write_hypotheses(path, heard)

    return run_dir


WRONG = ["x b c d", "a", "c d e e", "", "b c d e", "e d c"]


@pytest.fixture
def perfect(tmp_path):
    """A run whose best epoch makes no errors."""
    return run_with_hypotheses(tmp_path / "perfect", WRONG, SAID, WRONG)


@pytest.fixture
def faulty(tmp_path):
    """A run whose best epoch makes five errors in 18 words."""
    return run_with_hypotheses(tmp_path / "faulty", SAID, WRONG, SAID)


def objects(*paths, **options):
    return json.loads(report(paths, errors=True, output_format="json", **options))


def test_each_run_is_judged_by_its_best_epoch(perfect, faulty):
    first, second = objects(perfect, faulty)["systems"]

    assert first["system"] == "perfect"
    assert first["wer"] == 0
    assert first["wer_interval"] == [0, 0]
    assert first["path"].endswith("validation-epoch-0002.jsonl")
    # One replaced, one and two left out, one added, of 18 words.
    assert second["wer"] == pytest.approx(5 / 18)
    assert second["wer_interval"][0] < 5 / 18 < second["wer_interval"][1]
    assert second["confidence"] == 0.95
    assert second["substitutions_by_pair"] == [["a", "x", 1]]
    assert second["deletions_by_word"] == [["a", 1], ["b", 1], ["e", 1]]
    assert [one["id"] for one in second["worst"]] == ["u3", "u1", "u2", "u0"]
    assert {one["speaker"]: one["wer"] for one in second["speakers"]}["dan"] == 1


def test_an_epoch_whose_hypotheses_are_gone_does_not_count(perfect):
    (perfect / "hypotheses" / "validation-epoch-0002.jsonl").unlink()
    (result,) = objects(perfect)["systems"]

    assert result["path"].endswith("validation-epoch-0003.jsonl")


def test_hypotheses_of_epochs_without_a_cer_are_called_the_last_ones(tmp_path):
    run = run_with_hypotheses(tmp_path / "run", SAID, WRONG, cers=[0.5])
    (run / "hypotheses" / "validation-epoch-0001.jsonl").unlink()

    text = " ".join(report([run], errors=True).split())

    assert "its hypotheses of epoch 2 are scored, the last ones" in text
    assert "lowest CER" not in text


def test_systems_are_compared_with_the_first(perfect, faulty):
    (result,) = objects(perfect, faulty)["comparisons"]

    assert result["first"] == "perfect"
    assert result["second"] == "faulty"
    assert result["refused"] is None
    assert result["wer_difference"] == pytest.approx(5 / 18)
    assert (result["fewer_errors"], result["more_errors"]) == (0, 4)
    assert result["permutation_p"] == pytest.approx(2 / 16)


def test_a_comparison_of_errors_is_stated_in_words(perfect, faulty):
    text = " ".join(report([perfect, faulty], errors=True).split())

    # By speaker: ann, bob and cat one error more, dan two, eve none.
    assert "faulty: no difference shown (p = 0.12, by 5 speakers" in text
    assert "+27.78" in text


def test_the_text_has_tables_and_alignments(faulty):
    text = report([faulty], errors=True, worst=2)
    rows = [line.split() for line in text.splitlines()]

    assert ["dan", "1", "2", "0.0", "0.0", "100.0", "0.0", "100.0", "100.0"] in rows
    assert ["Sum/Avg", "6", "18", "77.8", "5.6", "16.7", "5.6", "27.8", "66.7"] in rows
    assert "faulty: the 2 utterances with the most word errors" in text
    assert "REF:  A E\nHYP:  * *\nEval: D D\n" in text
    assert "id: u2" not in text


def test_markdown_has_tables_and_alignments(faulty):
    markdown = report([faulty], errors=True, output_format="markdown", worst=2)

    assert "```\nid: u3 (dan)\n" in markdown
    assert "| Sum/Avg | 6 | 18 |" in markdown


def test_other_references_are_refused_by_name_and_the_rest_goes_on(
    perfect, faulty, tmp_path
):
    said = ["a b c x", *SAID[1:]]
    other = write_hypotheses(tmp_path / "other.jsonl", WRONG, said=said)

    result = objects(perfect, other, faulty)

    assert len(result["systems"]) == 3
    assert (
        "1 of 6 that differ (u0: 'a b c d' and 'a b c x')"
        in result["comparisons"][0]["refused"]
    )
    assert result["comparisons"][1]["refused"] is None


def test_a_refused_comparison_is_stated_in_words(perfect, faulty, tmp_path):
    said = ["a b c x", *SAID[1:]]
    other = write_hypotheses(tmp_path / "other.jsonl", WRONG, said=said)

    text = report([perfect, other, faulty], errors=True)

    assert "refused" in text
    assert "other.jsonl is not compared with perfect." in text


@pytest.fixture
def nemo(tmp_path):
    """A perfect system's hypotheses in NeMo's format."""
    path = tmp_path / "nemo.json"
    lines = [
        {
            "audio_filepath": f"/wav/u{i}.wav",
            "text": said.upper(),
            "pred_text": said.upper(),
        }
        for i, said in enumerate(SAID)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return path


def test_files_of_other_toolkits_are_compared_with_runs(faulty, nemo):
    result = objects(nemo, faulty)

    assert [one["system"] for one in result["systems"]] == ["nemo.json", "faulty"]
    assert result["comparisons"][0]["wer_difference"] == pytest.approx(5 / 18)


def test_a_file_of_another_toolkit_named_twice_has_a_page_of_its_own(nemo, tmp_path):
    alone = objects(nemo, nemo.parent / "nemo.json", out=tmp_path / "out")
    assert [one["wer"] for one in alone["systems"]] == [0]

    page = (tmp_path / "out" / "report.html").read_text()
    assert "errors by speaker" in "".join(Checked(page).texts)


def test_a_run_without_hypotheses_is_refused_with_the_command_that_writes_them(small):
    with pytest.raises(
        UsageError, match="tfasr evaluate --run_dir .* --hypotheses FILE.jsonl"
    ):
        report([small], errors=True)


def test_runs_without_hypotheses_are_left_out_of_many(small, faulty):
    result = objects(faulty, small)

    assert [one["system"] for one in result["systems"]] == ["faulty"]
    assert "small has no hypotheses" in result["notes"][0]


def test_a_broken_file_names_its_line(faulty):
    path = faulty / "hypotheses" / "validation-epoch-0002.jsonl"
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(UsageError, match=r"line 6 of .*validation-epoch-0002\.jsonl"):
        report([faulty], errors=True)


def test_missing_utterances_are_said(tmp_path):
    comparability = {"validation_utterances": 7}
    run_dir = run_with_hypotheses(
        tmp_path / "run", WRONG, cers=[0.1], comparability=comparability
    )

    (result,) = objects(run_dir)["systems"]

    assert "holds 6 of the split's 7 utterances" in result["notes"][1]


def test_files_and_page_have_everything(perfect, faulty, tmp_path):
    out = tmp_path / "out"
    text = report([perfect, faulty], errors=True, out=out)

    assert (out / "errors.txt").read_text() == text

    with (out / "errors.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == 2 * len(SAID)

    edits = sum(
        int(r[k]) for r in rows for k in ("substitutions", "deletions", "insertions")
    )
    assert edits == 5

    texts = "".join(Checked((out / "report.html").read_text()).texts)

    assert "Time to accuracy" in texts
    assert "Word errors against perfect" in texts
    assert "HYP:  * *" in texts
    assert json.loads((out / "errors.json").read_text())["comparisons"]
    assert "## Errors" in (out / "errors.md").read_text()


def test_what_was_said_is_escaped(tmp_path):
    texts = ["<b>&", "a|b ```", "日本", "[red]x", "ab " * 50, "a"]
    path = write_hypotheses(tmp_path / "markup.jsonl", ["x y"] * 6, said=texts)

    text = report([path], errors=True, out=tmp_path / "out")

    assert "[RED]X" in text

    page = (tmp_path / "out" / "report.html").read_text()

    assert "<b>" not in page.lower().split("<body>")[1]
    assert "<B>&" in "".join(Checked(page).texts)

    markdown = (tmp_path / "out" / "errors.md").read_text()
    assert "~~~~~~" in markdown


def test_wrong_use_is_refused(faulty, tmp_path):
    with pytest.raises(UsageError, match="--worst must be 0"):
        report([faulty], errors=True, worst=-1)
    with pytest.raises(UsageError, match="Received: "):
        report([write_hypotheses(tmp_path / "h.jsonl", SAID)])
    with pytest.raises(RunError, match="Choose another --out"):
        report([faulty], errors=True, out=faulty / "events.jsonl" / "below")


def one_utterance(path, said, heard, encode=str.encode):
    """Writes the hypotheses of a single utterance."""
    line = {"id": "u", "reference": said, "hypothesis": heard}
    path.write_bytes(encode(json.dumps(line, ensure_ascii=False) + "\n"))
    return path


@pytest.mark.parametrize(
    ("rule", "said", "heard"),
    [
        ({"language": "tr"}, "İstanbul IŞIK", "istanbul ışık"),
        ({"language": "az-AZ"}, "QIZIL", "qızıl"),
        ({"normalise": "plain-1"}, "It’s fine, Mr. Smith!", "its fine mr smith"),
        ({"normalise": "plain-1"}, "[laughter] Oﬃce \u2028 hours", "office hours"),
        ({"normalise": "plain-1", "language": "tr"}, "Açık, ILIK.", "açık ılık"),
    ],
)
def test_texts_are_compared_by_the_rule_that_was_asked_for(tmp_path, rule, said, heard):
    path = one_utterance(tmp_path / "h.jsonl", said.replace("It’s", "Its"), heard)

    plain = objects(path)
    by_rule = objects(path, **rule)

    assert plain["systems"][0]["wer"] > 0
    assert by_rule["systems"][0]["wer"] == 0
    assert plain["text_normalisation"] == "lower case"
    assert by_rule["text_normalisation"] != "lower case"
    assert by_rule["text_normalisation"] in by_rule["notes"][0]
    assert by_rule["text_normalisation"] in report([path], errors=True, **rule)


def test_errors_are_shown_in_the_capitals_of_the_language(tmp_path):
    path = one_utterance(tmp_path / "h.jsonl", "iki", "ıki")

    assert "REF:  İKİ\nHYP:  IKİ\n" in report([path], errors=True, language="tr")


@pytest.mark.parametrize(
    "encode",
    [lambda text: text.encode("utf-8-sig"), lambda text: gzip.compress(text.encode())],
)
def test_hypotheses_are_read_however_they_were_written(tmp_path, encode):
    path = one_utterance(tmp_path / "h.jsonl", "a\u2028b c\x85d", "a b c d", encode)

    assert objects(path)["systems"][0]["wer"] == 0


def test_a_rule_needs_errors_and_must_be_known(tmp_path, capsys):
    path = str(one_utterance(tmp_path / "h.jsonl", "a", "a"))

    assert run(parse(["tfasr", "report", path, "--normalise", "plain-1"])) == 2
    assert "need --errors" in capsys.readouterr().err
    with pytest.raises(UsageError, match="one of plain-1, "):
        report([path], errors=True, normalise="plain")
    with pytest.raises(UsageError, match="BCP 47"):
        report([path], errors=True, language="turkish language")


def test_the_command_never_loads_tensorflow(perfect, faulty):
    script = (
        "import sys; from tfasr.cli import parse, run\n"
        "status = run(parse(['tfasr', 'report', *sys.argv[1:]]))\n"
        "sys.exit('loaded' if 'tensorflow' in sys.modules else status)"
    )
    arguments = [perfect, faulty, "--errors", "--worst", "1", "--format", "json"]

    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["systems"]) == 2
