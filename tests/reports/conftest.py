import json

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report

COMPARABLE = {"split": "validation", "beam_width": 8}


def ledger_of(cers, *, train_s=1.0, comparability=COMPARABLE, targets=(("cer", 0.1),)):
    """A run of 2 s of initialisation and two steps an epoch."""
    ledger = LedgerBuilder().begin(
        init_s=2, targets=targets, comparability=comparability
    )
    for number, cer in enumerate(cers, start=1):
        ledger.epoch(number, cer, train_s=train_s, loss=1 / number)

    return ledger.end()


def objects(*run_dirs, **options):
    """The report as JSON: one object for each run and target, or for each group."""
    return json.loads(report(run_dirs, output_format="json", **options))


@pytest.fixture
def small(tmp_path):
    """Reaches CER 10 % after 8 s in epoch 3."""
    return ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "small")


@pytest.fixture
def large(tmp_path):
    """Reaches CER 10 % after 12 s in epoch 5: 1.5 times as long."""
    return ledger_of([0.5, 0.4, 0.3, 0.1, 0.1]).write(tmp_path / "large")
