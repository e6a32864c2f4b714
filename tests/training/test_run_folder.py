"""Which runs a folder may hold, and which may be resumed."""

import json

import pytest

from tfasr.alphabet import Alphabet
from tfasr.errors import UsageError
from tfasr.kit.files import EXPERIMENT_FILE
from tfasr.ledger.events import Ledger
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.run_folder import claim_run_folder


def test_a_run_of_an_older_tfasr_had_todays_defaults(tmp_path):
    Experiment().save(tmp_path, Alphabet())
    ledger = Ledger(tmp_path)
    ledger.event("session_start")
    ledger.event("run_start")
    ledger.close()
    path = tmp_path / EXPERIMENT_FILE
    saved = json.loads(path.read_text())
    del saved["training"]["gradient_accumulation_steps"]
    path.write_text(json.dumps(saved))
    assert claim_run_folder(tmp_path, Experiment(), resume=True) == 1
    in_parts = Experiment(training=TrainingConfig(gradient_accumulation_steps=2))
    with pytest.raises(UsageError, match="gradient_accumulation_steps: 1 then, 2 now"):
        claim_run_folder(tmp_path, in_parts, resume=True)
