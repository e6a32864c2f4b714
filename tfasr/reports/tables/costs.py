"""The table of cost and energy to each target, and the same for a program."""

from typing import TYPE_CHECKING, Any

from tfasr.analysis.charges import RunCharges, TargetCharge
from tfasr.analysis.findings import of_single_runs
from tfasr.analysis.names import target_label
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.table import NEVER, REFUSED, UNKNOWN, Table
from tfasr.reports.tables.runs import minutes_text
from tfasr.tta.costs.cost import relative_cost
from tfasr.tta.intervals import INTERVALS

if TYPE_CHECKING:
    from tfasr.analysis.report import Report

_NAMED = 3
_RULE = (
    "Charged: from the run's first event until the target was met, initialisation, evaluation and "
    "lost work included under every policy; downtime between sessions is not, though a rented "
    "machine may cost in it too. Relative: of dollars, else of the machines' relative prices. "
    f"{NEVER}: never reached. {UNKNOWN}: not known."
)


def cost_tables(report: "Report") -> list[Table]:
    """Returns for each target a table of cost and energy; none where nothing of it is known."""
    if not _known(report):
        return []
    return [_table(report, index) for index in range(len(report.targets))]


def charges_json(report: "Report", index: int, target: int) -> dict[str, Any]:
    """Returns a run's cost and energy to a target; {} where the report knows of none.

    What is not known, and everything of a target never reached, is null.
    """
    if not _known(report):
        return {}
    charges = report.runs[index].charges
    charge = charges.targets[target]
    cost, energy = (None, None) if charge is None else (charge.cost, charge.energy)
    return {
        "hardware": None if charges.hardware is None else charges.hardware.name,
        "charged_s": cost and cost.charged_s,
        "price_usd_per_hour": charges.hardware and charges.hardware.hourly_usd,
        "machine_usd": cost and cost.machine_usd,
        "electricity_usd": cost and cost.electricity_usd,
        "cost_usd": cost and cost.usd,
        "cost_relative": _relative(report, index, target),
        "energy_kwh": cost and cost.kwh,
        "energy_is": cost and cost.kwh_is,
        "energy_joules": energy and energy.total_joules,
        "energy_by_interval_joules": energy and energy.joules,
        "energy_unknown_s": energy and energy.total_unknown_s,
        "energy_counters": charges.counters,
    }


def _known(report: "Report") -> bool:
    return any(run.charges is not None and run.charges.known for run in report.runs)


def _table(report: "Report", target: int) -> Table:
    charged = [_charge(run.charges, target) for run in report.runs]
    intervals = _measured_intervals(charged)
    priced_beside = any(one and one.cost.electricity_usd is not None for one in charged)
    columns = ["Run", "charged\nmin", "USD/h"]
    columns += ["machine\nUSD", "electricity\nUSD"] if priced_beside else []
    columns += ["USD", *(["relative"] if len(report.runs) > 1 else []), "kWh"]
    columns += [f"{INTERVAL_LABELS[name]}\nJ" for name in intervals]
    rows = []
    for index, (run, charge) in enumerate(zip(report.runs, charged, strict=True)):
        hardware = run.charges.hardware if run.charges else None
        cells = _cells(report, charge, priced_beside, intervals)
        if len(report.runs) > 1:
            cells.insert(-1 - len(intervals), _relative_text(report, index, target, charge))
        rows.append([run.name, cells[0], _figure(hardware and hardware.hourly_usd), *cells[1:]])
    return Table(
        f"Cost and energy to {target_label(*report.targets[target])}",
        columns,
        rows,
        [_RULE, *_single(report), *_notes(report)],
    )


def _single(report: "Report") -> list[str]:
    said = of_single_runs([1] * len(report.runs))
    return [f"Relative costs go with times, of which {said}."] if said else []


def _cells(
    report: "Report", charge: TargetCharge | None, priced_beside: bool, intervals: list[str]
) -> list[str]:
    """Returns the cells after the name, without price and relative cost."""
    if charge is None:
        return [NEVER] * (3 + 2 * priced_beside + len(intervals))
    cost = charge.cost
    cells = [minutes_text(report, cost.charged_s)]
    cells += [_figure(cost.machine_usd), _figure(cost.electricity_usd)] if priced_beside else []
    cells += [_figure(cost.usd), _kwh(charge)]
    for name in intervals:
        joules = charge.energy.joules[name] if charge.energy else None
        unknown = charge.energy is not None and charge.energy.unknown_s[name] > 0
        cells.append(f"{'> ' if unknown and joules is not None else ''}{_figure(joules)}")
    return cells


def _kwh(charge: TargetCharge) -> str:
    text = _figure(charge.cost.kwh)
    return {"at least": f"> {text}", "estimate": f"{text} (est.)"}.get(charge.cost.kwh_is, text)


def _relative(report: "Report", index: int, target: int) -> float | None:
    own = _charge(report.runs[index].charges, target)
    first = _charge(report.runs[0].charges, target)
    if own is None or first is None or report.refused(index):
        return None
    return relative_cost(first.cost, own.cost)


def _relative_text(report: "Report", index: int, target: int, charge: TargetCharge | None) -> str:
    if report.refused(index):
        return REFUSED
    ratio = _relative(report, index, target)
    if ratio is None:
        return NEVER if charge is None else UNKNOWN
    return f"{100 * ratio:.0f} %"


def _charge(charges: RunCharges | None, target: int) -> TargetCharge | None:
    return None if charges is None else charges.targets[target]


def _measured_intervals(charged: list[TargetCharge | None]) -> list[str]:
    used = [charge.energy.joules for charge in charged if charge and charge.energy]
    return [name for name in INTERVALS if any(joules[name] != 0 for joules in used)]


def _notes(report: "Report") -> list[str]:
    """Returns what has to be said of the runs, once for all of whom it is true."""
    names: dict[str, list[str]] = {}
    for run in report.runs:
        machine = run.charges.hardware if run.charges else None
        source = f" ({machine.source})" if machine and machine.source else ""
        said = [f"machine {machine.name}{source}"] if machine and machine.name else []
        said += run.charges.notes if run.charges else []
        if said:
            names.setdefault("; ".join(said), []).append(run.name)
    return [f"{_shortened(of)}: {said}." for said, of in names.items()]


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _figure(value: float | None) -> str:
    """Four digits, more where there are more before the point."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
