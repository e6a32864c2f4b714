"""CSV whose cells come from files that nobody vouches for."""

import csv
import io

import pytest

from tfasr.display.table import Records, Table, table_to_csv


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_text_that_a_spreadsheet_would_run_is_quoted(text):
    records = Records([text, "n"], [[text, -1.5]])
    rows = list(csv.reader(io.StringIO(table_to_csv(Table("t", ["A", "n"], [], records=records)))))
    assert rows == [["'" + text, "n"], ["'" + text, "-1.5"]]


def test_a_carriage_return_begins_no_line(tmp_path):
    table = Table("t", ["A", "B"], [], records=Records(["A", "B"], [["a\r=1", "\r=2"]]))
    rows = list(csv.reader(io.StringIO(table_to_csv(table))))
    assert rows == [["A", "B"], ["a\n=1", "'\n=2"]]


@pytest.mark.parametrize("text", ["-1.5", "+3", "a=b", "", "don't", "-inf"])
def test_numbers_and_words_stay_as_they_are(text):
    table = Table("t", ["A", "B"], [], records=Records(["A", "B"], [[text, "x"]]))
    assert table_to_csv(table) == f"A,B\n{text},x\n"
