"""A training-time card: what a reader of a model's description wants to know of its training.

``card.json`` follows docs/card.schema.json; ``card.md`` shows the same values. Seconds and
fractions, unrounded; None means unknown, or a target that was never met.
"""

from statistics import median
from typing import Any

from tfasr.display.table import to_json_text
from tfasr.ledger.events import last_value
from tfasr.reports.numbers import Report, RunAnalysis, target_label
from tfasr.scoring.errors import read_transcripts, score
from tfasr.scoring.summary import summarise_scored

CARD, CARD_JSON = "card", "card_json"
_RATES = ("wer", "cer")


def card(report: Report) -> dict[str, Any]:
    """Returns a card's values, by groups of runs of one configuration."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in report.runs:
        groups.setdefault(run.group, []).append(_run(run, report))
    return {
        "card": 1,
        "targets": [{"metric": metric, "value": value} for metric, value in report.targets],
        "groups": [{"name": name, "runs": runs} for name, runs in groups.items()],
        "notes": report.notes,
    }


def _run(run: RunAnalysis, report: Report) -> dict[str, Any]:
    from tfasr.reports.errors import best_hypotheses  # imported here: it needs SciPy

    hypotheses = best_hypotheses(run)
    rates = summarise_scored(score(read_transcripts(hypotheses))) if hypotheses else None
    system, charges = run.facts.system, run.charges
    policies = [policy.name for policy in report.question.beside]
    targets = []
    for number, result in enumerate(run.results):
        charge = charges.targets[number] if charges else None
        targets.append(
            {
                "seconds": {name: result.by_policy_s.get(name) for name in policies},
                "bracket_s": [result.bracket.last_miss_s, result.bracket.first_hit_s],
                "usd": charge and charge.cost.usd,
                "kwh": charge and charge.cost.kwh,
                "kwh_is": charge and charge.cost.kwh_is,
            }
        )
    return {
        "name": run.name,
        "seed": last_value(run.path, "seed") if run.path.is_dir() else None,
        "status": run.status,
        "sessions": run.sessions,
        "wall_s": run.wall_s,
        "error_rates": {
            name: rates
            and {
                "value": getattr(rates.counts, name),
                "interval": getattr(rates, f"{name}_interval"),
            }
            for name in _RATES
        },
        "targets": targets,
        "device": {name: system.get(name) for name in ("processor", "cores", "gpus", "packages")},
        "utterances": run.facts.train_samples,
        "batch_size": run.facts.global_batch_size,
        "decoder": run.facts.decoder,
    }


def card_text(report: Report, output_format: str) -> str:
    """Returns a card as Markdown, or as JSON for the format "card_json"."""
    values = card(report)
    if output_format == CARD_JSON:
        return to_json_text(values)
    lines = ["# Training-time card", ""]
    for group in values["groups"]:
        runs = group["runs"]
        device = runs[0]["device"]
        machine = ", ".join([*(device["gpus"] or ()), f"{device['processor'] or 'n/a'}"])
        packages = device["packages"] or {}
        software = ", ".join(f"{name} {packages[name]}" for name in ("tfasr", "tensorflow", "keras")
                             if name in packages)  # fmt: skip
        seeds = ", ".join(str(run["seed"]) for run in runs)
        lines += [f"## {group['name']}", "", "| what | value |", "|---|---|"]
        lines += [f"| device | {machine}, {device['cores'] or 'n/a'} cores |"]
        lines += [f"| software | {software or 'n/a'} |", f"| runs, seeds | {len(runs)}: {seeds} |"]
        for name in _RATES:
            rates = [rate for run in runs if (rate := run["error_rates"][name])]
            lines += [f"| best {name.upper()} % of each run, 95 % interval | {_rates(rates)} |"]
        for number, target in enumerate(report.targets):
            of_runs = [run["targets"][number] for run in runs]
            for policy in of_runs[0]["seconds"]:
                label = f"seconds to {target_label(*target)}, {policy}"
                lines.append(f"| {label} | {_numbers([t['seconds'][policy] for t in of_runs])} |")
            for unit in ("usd", "kwh"):
                label = f"{unit} to {target_label(*target)}"
                lines.append(f"| {label} | {_numbers([t[unit] for t in of_runs])} |")
        lines.append("")
    lines += ["NA: unknown, or never reached.", *values["notes"]]
    return "\n".join(lines) + "\n"


def _rates(rates: list[dict[str, Any]]) -> str:
    texts = []
    for rate in rates:
        interval = rate["interval"]
        ends = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""
        texts.append(f"{100 * rate['value']:.1f}{ends}")
    return ", ".join(texts) or "NA"


def _numbers(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    texts = ", ".join("NA" if value is None else f"{value:.4g}" for value in values)
    return f"{texts}; median {median(known):.4g}" if len(known) == len(values) > 1 else texts
