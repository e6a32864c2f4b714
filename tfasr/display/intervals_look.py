"""How the ledger's intervals are called in tables and figures."""

# With line breaks where a narrow column needs them.
INTERVAL_LABELS = {
    "init": "init",
    "compile": "compile",
    "input_wait": "input\nwait",
    "train": "train",
    "averaging": "averaging",
    "swap": "swap",
    "eval_forward": "eval\nforward",
    "decode": "decode",
    "eval_wait": "eval\nwait",
    "checkpoint": "checkpoint",
    "sentences": "sentences",
    "logging": "logging",
    "overhead": "overhead",
    "lost_work": "lost\nwork",
}
