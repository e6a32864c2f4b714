"""Rows of the sources' tables as they are printed, but for the thousands' marks."""

# arXiv 2003.12366. A row begins with what is in its first column; NA is printed, too.
PAPER = {
    # total, GPUs, CPUs, in dollars
    "Table 1": """
        Sys1$   2605.29   1980.00   354.25
        Sys2$   5699.95   3599.97   97.98
        Sys10$  25999.00  17956.00  5422.20
    """,
    # beam width, seconds, WER, CER
    "Table 3": """
        64    154   25.20  9.315
        128   187   25.02  9.179
        256   266   24.95  9.069
        512   443   24.78  9.029
        1024  849   24.75  8.993
        2048  1860  24.68  8.968
        4096  4200  24.62  8.943
    """,
    # minutes to each CER, then to each WER; then their share of those of Sys1$
    "Table 4": """
        Sys     10.0  8.0   7.0   22.0  20.2  19.2
        Sys1$   820   1641  2450  1908  2174  2725
        Sys1$   100%  100%  100%  100%  100%  100%
        Sys2$   672   1118  2429  1251  1980  2834
        Sys2$   82%   62%   99%   66%   91%   104%
        Sys10$  511   974   NA    1143  2840  NA
        Sys10$  62%   59%   NA    59%   131%  NA
    """,
    # WER: clean validation and test, other validation and test
    "Table 5": """
        Sys1$           17.90  17.32  41.85  45.04
        Sys2$           18.50  18.68  44.31  48.15
        Sys10$          19.86  19.45  45.86  49.43
        Deep_Speech_2   NA     5.15   NA     12.73
        Lüscher_et_al.  1.90   2.30   4.50   5.00
    """,
    "Table 6": """
        Sys     10.0  8.0   7.0   22.0  20.0  19.0
        Sys1$   771   1291  2322  1806  2322  2322
        Sys1$   100%  100%  100%  100%  100%  100%
        Sys2$   791   1571  2091  1571  2091  2352
        Sys2$   103%  122%  90%   87%   90%   101%
        Sys10$  479   879   1600  1197  1600  2078
        Sys10$  62%   68%   69%   66%   68%   89%
    """,
}

# The DeepMark thread: seconds, percent of the utterances, characters; and the published
# steps.
LENGTHS = """
    1   3.0   7
    2   10.0  17
    3   11.0  35
    4   13.0  48
    5   14.0  62
    6   13.0  78
    7   9.0   93
    8   8.0   107
    9   5.0   120
    10  4.0   134
    11  3.0   148
    12  2.0   163
    13  2.0   178
    14  2.0   193
    15  1.0   209
"""
STEPS = """
    1x_Titans  154  83  72  128000  32   189  4013
    4x_Titans  180  99  81  128000  106  632  1204
"""


def rows(table: str) -> list[list[str]]:
    """Returns a table's cells."""
    return [
        [cell.replace("_", " ") for cell in line.split()]
        for line in table.strip().split("\n")
    ]
