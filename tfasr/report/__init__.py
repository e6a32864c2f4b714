"""Looks of reports: tables, figures, page, files. Called, the report itself.

``tfasr.report`` is this package and, to whoever calls it, the function `tfasr.report.write.report`:
Python gives a package's name to its parent whenever a part of it is imported, so a function of
that name would come and go.
"""

import sys
from types import ModuleType
from typing import Any


class _ReportPackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Returns the report on runs, see `tfasr.report.write.report`."""
        from tfasr.report.write import report

        return report(*args, **kwargs)


sys.modules[__name__].__class__ = _ReportPackage
