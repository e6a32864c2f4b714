"""Looks of reports: tables, figures, page, files. `tfasr.report` is the function in `write`."""
