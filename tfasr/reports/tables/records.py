"""What the report's tables hold, unrounded: SI units, a heading that names them, no text cells.

Times are seconds, rates and shares are fractions; what is not known, and the time of a target
never reached, is None.
"""

from collections.abc import Sequence

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.report import Report, RunAnalysis, eval_s, train_s
from tfasr.display.table import Cell, Records, records_of
from tfasr.tta.intervals import INTERVALS


def accuracy_records(report: Report) -> Records:
    """Returns a row for each run and target: when, between what, and relative to the first run."""
    rows = [
        accuracy_row(report, index, target)
        for target in range(len(report.targets))
        for index in range(len(report.runs))
    ]
    empty = [{"run": run.name, "group": run.group, "epochs": run.epochs} for run in report.runs]
    return records_of(rows or empty)


def accuracy_row(report: Report, index: int, target: int) -> dict[str, Cell]:
    """Returns what is known of a run and a target, by heading."""
    run = report.runs[index]
    result = run.results[target]
    tta = result.tta
    return {
        "run": run.name,
        "group": run.group,
        "metric": tta.metric,
        "target": tta.target,
        "policy": report.policy.name,
        "window": tta.window,
        "time_to_accuracy_s": tta.seconds,
        "last_miss_s": result.bracket.last_miss_s,
        "first_hit_s": result.bracket.first_hit_s,
        "interpolated_s": result.bracket.interpolated_s,
        "epoch": tta.epoch,
        "value": tta.value,
        "utterances_per_s_until_then": result.parts and result.parts.utterances_per_s,
        "relative_to_first": report.relative(index, target),
        "comparison_refused": report.refused(index),
        "epochs": run.epochs,
    }


def time_records(report: Report) -> Records:
    """Returns a row for each run: the seconds of its intervals."""
    return records_of([time_row(run) for run in report.runs])


def time_row(run: RunAnalysis) -> dict[str, Cell]:
    """Returns a run's seconds by heading; those of the intervals add up to ``wall_s``."""
    spent = run.intervals_s
    return {
        "run": run.name,
        "group": run.group,
        "wall_s": round(run.wall_s, 6),
        "training_total_s": round(train_s(spent), 6),
        "evaluation_total_s": round(eval_s(spent), 6),
        **{f"{name}_s": spent[name] for name in INTERVALS},
    }


def throughput_records(report: Report) -> Records:
    """Returns a row for each run: its steady speed."""
    return records_of(
        [
            {
                "run": run.name,
                "group": run.group,
                "utterances_per_s": run.throughput.utterances_per_s,
                "audio_s_per_s": run.throughput.audio_s_per_s,
                "input_wait_share": run.throughput.input_wait_share,
                "padding_efficiency": run.throughput.padding_efficiency,
                "global_batch_size": run.facts.global_batch_size,
                "mean_batch": run.throughput.mean_batch,
                "steps_measured": run.throughput.steps,
                "warmup_steps_left_out": run.throughput.warmup_steps,
                "tracing_steps_left_out": run.throughput.traced_steps,
            }
            for run in report.runs
        ]
    )


def policy_records(report: Report, target: int) -> Records:
    """Returns a row for each run: its seconds to a target under each policy."""
    metric, value = report.targets[target]
    return records_of(
        [
            {
                "run": run.name,
                "group": run.group,
                "metric": metric,
                "target": value,
                **{f"{name}_s": s for name, s in run.results[target].by_policy_s.items()},
            }
            for run in report.runs
        ]
    )


def group_records(results: Sequence[GroupResult]) -> Records:
    """Returns a row for each group: its statistics, and how it stands to the first group."""
    return records_of([group_row(result) for result in results])


def group_row(result: GroupResult) -> dict[str, Cell]:
    """Returns what is known of a group of runs and a target, by heading."""
    found, compared = result.statistics, result.comparison
    low, high = found.interval_s or (None, None)
    ratio_low, ratio_high = (compared.interval if compared else None) or (None, None)
    return {
        "group": result.group,
        "metric": result.target[0],
        "target": result.target[1],
        "n": found.n,
        "reached": found.reached,
        "failure_probability": found.failure_probability,
        "median_s": found.median_s,
        "mean_without_extremes_s": found.mean_without_extremes_s,
        "mean_95_low_s": low,
        "mean_95_high_s": high,
        "coefficient_of_variation": found.coefficient_of_variation,
        "bracket_s": found.bracket_s,
        "restricted_mean_s": found.restricted_mean_s,
        "restriction_s": found.restriction_s,
        "ratio_to_first": compared.ratio if compared else None,
        "ratio_95_low": ratio_low,
        "ratio_95_high": ratio_high,
        "ratio_of_middles": compared.ratio_of_middles if compared else None,
        "interpolated_ratio": compared.interpolated_ratio if compared else None,
        "p_value": compared.p_value if compared else None,
        "p_adjusted": compared.adjusted_p if compared else None,
        "permutation_p": compared.permutation_p if compared else None,
    }


def factor_records(results: Sequence[GroupResult]) -> Records:
    """Returns a row for each group whose ratio to the first is known in factors."""
    return records_of(
        [
            {
                "group": result.group,
                "metric": result.target[0],
                "target": result.target[1],
                "ratio": result.decomposition.ratio,
                **{f"factor_{name}": f for name, f in result.decomposition.factors.items()},
                "utterances_ratio": result.decomposition.utterances_ratio,
                "throughput_ratio": result.decomposition.throughput_ratio,
                "evaluations_ratio": result.decomposition.evaluations_ratio,
                "runs_in_first": result.decomposition.runs[0],
                "runs": result.decomposition.runs[1],
                "never_in_first": result.decomposition.never[0],
                "never": result.decomposition.never[1],
            }
            for result in results
            if result.decomposition is not None
        ]
    )
