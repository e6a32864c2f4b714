"""A column is written once; readers and programs get what is theirs of it."""

from tfasr.display.table import (
    NEVER,
    Column,
    column_records,
    fixed,
    for_readers,
    table_of,
    table_to_csv,
    to_markdown,
    values_of,
)

ROWS = [("small", 90.0, 3), ("large", None, 0)]
COLUMNS = [
    Column("Run", "run", lambda row: row[0]),
    Column("", "seed", lambda row: 1),
    Column("time\nmin", "time_s", lambda row: row[1], fixed(2, 1 / 60), NEVER),
    Column("epochs", "", lambda row: row[2]),
    Column("", "note", lambda row: None),
]


def test_readers_and_programs_get_their_columns():
    table = table_of("Times", COLUMNS, ROWS)

    assert table.columns == ["Run", "time\nmin", "epochs"]
    assert table.rows == [["small", "1.50", "3"], ["large", "NA", "0"]]
    assert table_to_csv(table) == "run,seed,time_s,note\nsmall,1,90.0,\nlarge,1,,\n"
    assert values_of(COLUMNS, ROWS[0]) == {
        "run": "small",
        "seed": 1,
        "time_s": 90.0,
        "note": None,
    }
    assert "| small | 1.50 | 3 |" in to_markdown([table])


def test_columns_that_no_row_has_can_be_left_out():
    table = table_of("Times", COLUMNS, ROWS[1:], leave_out_empty=True)

    assert table.columns == ["Run", "epochs"]
    assert table.records.columns == ["run", "seed"]


def test_what_is_missing_may_depend_on_the_row():
    column = Column("n", "n", lambda row: row[1], missing=lambda row: f"{row[0]}: none")

    assert [column.cell(row) for row in ROWS] == ["90.0", "large: none"]


def test_a_text_of_several_values_stands_for_the_first_of_them():
    column = Column(
        "span", "low", lambda row: row[2], shown=lambda row: f"{row[2]} to {row[1]}"
    )
    table = table_of("Spans", [column], ROWS)

    assert table.rows == [["3 to 90.0"], ["0 to None"]]
    assert table.records.rows == [[3], [0]]


def test_columns_serve_other_rows():
    wide = table_of("Wide", for_readers(COLUMNS, ROWS.__getitem__), [1, 0])

    assert wide.rows == [["large", "NA", "0"], ["small", "1.50", "3"]]
    assert wide.records is None
    assert column_records(COLUMNS[:1], ROWS).rows == [["small"], ["large"]]


def test_a_table_without_rows_or_names_has_no_records():
    assert table_of("Empty", COLUMNS, []).rows == []
    assert table_to_csv(table_of("Empty", COLUMNS, [])) == "\n"
    assert table_of("Text", COLUMNS[3:4], ROWS).records is None
