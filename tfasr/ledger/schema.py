"""The values of a ledger's events: one type for each key, to write, check and describe them.

`Ledger.write` takes an instance of the dataclasses here, `wrong_value` finds values of
another type when a run is read, and ``docs/ledger.schema.json`` is the same as JSON
Schema; ``python -m tfasr.ledger.schema > docs/ledger.schema.json`` renews it. A field
without a default is always written; one that is None by default is left out if it is
unknown. A reader ignores further fields. The value of every event may be null, which
means unknown. Keys that aren't listed here may have any JSON value, such as the facts
that `tfasr.Recorder.note` records.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

_METADATA = ("session", "epoch_num", "step")
_LATEST_MS = 1e15
_LARGEST = 2**53  # whole numbers up to here are exact as floats
Finite = Annotated[float, "a finite number"]
# Or infinite or NaN, after a diverged evaluation.
Rate = Annotated[float, "a number below 1e300"]
_Value = TypeVar("_Value")

EVENTS: dict[str, Any] = {}
"""The type of each key's value."""
KEYS: dict[type, str] = {}
"""The key of each dataclass."""


def event(key: str) -> Callable[[type[_Value]], type[_Value]]:
    """Makes a class the frozen dataclass of an event's value."""

    def register(cls: type[_Value]) -> type[_Value]:
        made = dataclass(frozen=True, kw_only=True)(cls)
        EVENTS[key] = made
        KEYS[made] = key
        return made

    return register


@event("session_start")
class SessionStart:
    """A process begins or continues a run; its metadata may have ``process_age_s``."""

    session: int  # 0 for the first process
    resumed_from_step: int | None  # None in the first session
    # Wall clock when the previous process was last known to run.
    alive_until_ms: float | None
    ledger_format: int | None = None
    # If a study started it, see `tfasr.ledger.declared`.
    declared: dict[str, Any] | None = None


@event("train_step")
class TrainStep:
    """One update of the weights; metadata ``epoch_num`` and ``step``, both from 1.

    ``input_wait_s``, ``compile_s`` and ``train_s`` are the seconds up to the event, in
    this order. A step that compiled counts as compiling altogether.
    """

    loss: float | None  # None if it was infinite or NaN
    utterances: float | None = None
    audio_s: float | None = None
    frames: float | None = None
    padded_frames: float | None = None
    input_wait_s: float | None = None
    compile_s: float | None = None
    train_s: float | None = None


@event("target_rule")
class TargetRule:
    """When a run meets its targets: once the median of its last evaluations does.

    The median covers the evaluations of the last ``window`` epochs, see
    `tfasr.tta.policies.evaluations_in`; with a window of 1, it is the first evaluation
    that meets them.
    """

    window: int
    evaluations_per_epoch: int = 1


@event("shared_with_training")
class SharedWithTraining:
    """How much of the validation split is trained on too."""

    utterances: int
    of_utterances: int
    speakers: int
    of_speakers: int


@event("instruction_set")
class InstructionSet:
    """The instructions that compiled layers use; null without such layers."""

    name: str
    forced: bool = False  # whether TFASR_INSTRUCTION_SET set it
    bfloat16_speedup: float | None = None  # None unless the precision was chosen by it


@event("evaluation_placement")
class EvaluationPlacement:
    """Where epochs are evaluated, see `TrainingConfig`."""

    name: str
    devices: list[str]


@event("start_from")
class StartFrom:
    """The trained weights that a run began with; ``seconds`` and ``joules`` are their cost."""

    run: str
    file: str
    sha256: str  # of that file
    ledger_hash: str | None
    seconds: float | None
    joules: float | None
    layers: list[str]  # copied
    new_layers: list[str]


@event("device_memory")
class DeviceMemory:
    """Bytes of variables on all devices while models are swapped."""

    training: int  # of the model that trains, and its optimizer
    evaluation: int  # of all models while that model is away


@event("evaluation_work")
class EvaluationWork:
    """Seconds that another process took for an evaluation."""

    load_s: float
    forward_s: float
    decode_s: float


@event("evaluator_died")
class EvaluatorDied:
    """The other process died."""

    exit_code: int | None
    deaths: int


@event("given_up")
class GivenUp:
    """A budget ended the run; metadata ``epoch_num``."""

    budget_s: Finite
    metric: str
    target: float
    not_before_s: float | None  # None if the budget was spent without a forecast


@event("extended")
class Extended:
    """A session trains a finished run longer; earlier work isn't lost."""

    after_epoch: int
    schedule: str  # what changed


@event("comparable_with")
class ComparableWith:
    """A recorder took over another run's comparability."""

    run: str
    stated: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Link:
    """How fast workers summed a buffer of the gradients' size before the first step."""

    bytes_per_s: float | None = None
    small_s: float | None = None  # to sum a few numbers


@event("cluster")
class Cluster:
    """Several workers train together; ``num_replicas`` then counts the replicas of all."""

    workers: int
    gradient_bytes: float = 0.0  # of one worker's gradients, in the type that is sent
    gradient_exchange: str = "float32"
    link: Link | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One worker's round."""

    rank: int
    utterances: float
    staleness: int  # others' changes that were added during it
    train_s: float
    link_s: float


@event("exchanged")
class Exchanged:
    """Workers exchanged their weights; precedes the last step of a segment."""

    utterances: float
    lost_utterances: float
    waited_s: float
    waited_for: int | None  # the rank that came last
    workers: list[Round]


@event("worker_left")
class WorkerLeft:
    """The others go on without a worker."""

    rank: int
    why: str


@event("worker_joined")
class WorkerJoined:
    """A worker joins a run in rounds."""

    rank: int


@event("worker_late")
class WorkerLate:
    """A worker's work came too late and was dropped."""

    rank: int
    lost_utterances: float


@event("worker_start")
class WorkerStart:
    """The first event of a worker's own file."""

    rank: int
    workers: int


@event("worker_step")
class WorkerStep:
    """A worker's part of a step, in its own file; metadata ``epoch_num`` and ``step``."""

    utterances: int  # of its share
    input_wait_s: Finite  # until its share was there
    step_s: Finite  # from then until all workers' gradients were applied
    # Until its gradients were computed (on a GPU: until they were requested). With
    # synchronised batch normalisation this includes waiting for the others' statistics.
    ready_s: Finite
    compiled: bool = False  # whether anything was traced or compiled in the step


@event("worker_machine")
class WorkerMachine:
    """The machine of a worker, in its own file."""

    host: str | None  # identifies it, None if unknown
    hostname: str
    counters: dict[str, str]  # each energy counter's identity by its name


@event("worker_sample")
class WorkerSample:
    """A machine's state, in the file of a worker; 100 % is all cores.

    The first sample has no percentages of processors.
    """

    cpu_percent: float | None  # all processes
    process_percent: float | None  # the worker and its children
    gpu_percent: list[Finite]  # each GPU that the worker sees
    # by counter: joules, and the value at which it restarts from 0 (None if it never
    # does)
    energy: dict[str, Annotated[tuple[Finite, Finite | None], "a pair of numbers"]]


EVENTS |= {
    # Facts of the run, written at its start
    # Of each session, see `tfasr.telemetry.machine.conditions`.
    "conditions": dict[str, Any],
    "shards": dict[str, str],  # each split's content hash
    "files": dict[str, str],  # SHA-256 of the run's settings, by file name
    "missing_compiled_parts": list[str],
    "global_batch_size": int,
    "num_replicas": int,
    "seed": int,
    "train_samples": int,
    "eval_samples": int,
    "parameters": int,
    "opt_name": str,
    "opt_base_learning_rate": float,
    "lstm_kernel": list[str],  # what computes the recurrent layers
    "targets": list[Annotated[tuple[str, Finite], "pairs of a metric and a number"]],
    # Declared ones: the fields of `tfasr.tta.metrics.Metric`.
    "metrics": dict[str, dict[str, Any]],
    "second_decoder": str,
    "comparability": dict[str, Any],  # what must be equal for results to be comparable
    # The machine's price, see `tfasr.tta.costs.HardwareConfig`.
    "hardware": dict[str, Any],
    # Evaluations: WER, then every metric and count
    "eval_accuracy": float,
    "tracked_stats": dict[str, Rate | None],
    "decode_work": float,  # seconds that the decoder's thread worked
    "second_decode_work": float,
    # The end of a finished run; `checkpoints` has their SHA-256 by file name
    "traces": dict[str, dict[str, Any]],  # of "training" and "evaluation"
    "checkpoints": dict[str, str],
}


def value_of(key: str, value: Any) -> Any:
    """Returns an event's value as its type; None stays None."""
    made = EVENTS[key]
    if value is None or not dataclasses.is_dataclass(made):
        return value
    return _made(made, value)


def _made(cls: type, value: Mapping[str, Any]) -> Any:
    values = {}
    for field in dataclasses.fields(cls):
        if field.name in value:
            values[field.name] = _part(_hints(cls)[field.name], value[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = None

    return cls(**values)


def _part(annotation: Any, value: Any) -> Any:
    inner = next(
        filter(dataclasses.is_dataclass, (annotation, *typing.get_args(annotation))),
        None,
    )
    if inner is None or value is None:
        return value
    if isinstance(value, list):
        return [_made(inner, item) for item in value]
    return _made(inner, value)


def to_json(value: Any) -> dict[str, Any]:
    """Returns the JSON value of a dataclass here, without what is unknown."""
    values = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if content is None and field.default is None:
            continue
        if dataclasses.is_dataclass(content):
            content = to_json(content)
        elif isinstance(content, list):
            content = [
                to_json(x) if dataclasses.is_dataclass(x) else x for x in content
            ]

        values[field.name] = content

    return values


def wrong_event(event: Mapping[str, Any]) -> str | None:
    """Returns why an event's key, time, metadata or value is invalid, or None."""
    if type(event["key"]) is not str:
        return f"an event's key must be text, not {shown(event['key'])}"
    time_ms = event["time_ms"]
    if not (type(time_ms) in (int, float) and abs(time_ms) <= _LATEST_MS):
        latest = f"a finite number up to {_LATEST_MS:g}"
        return f"time_ms must be {latest}, not {shown(time_ms)}"

    about = event.get("metadata")
    if about is not None and type(about) is not dict:
        return f"an event's metadata must be an object, not {shown(about)}"
    for name in _METADATA if about else ():
        number = about.get(name)
        if number is not None and not _holds(int, number):
            return f"{name} must be a whole number, not {shown(number)}"

    return wrong(event["key"], event.get("value"))


def wrong(key: str, value: Any) -> str | None:
    """Returns why an event's value is invalid, or None."""
    if value is None or key not in EVENTS:
        return None
    problem = _problem(EVENTS[key], value)
    if problem is None:
        return None
    place, kind, found = problem
    text = f"the value of {key} must be {_kind(EVENTS[key])}"
    if place:
        return f"{text}: {place} must be {kind}, not {shown(found)}"
    return f"{text}, not {shown(found)}"


# The place within the value, what must be there, what is.
_Problem = tuple[str, str, Any]
_NUMBERS = {int, float, types.NoneType}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _of_numbers(cls: type) -> bool:
    """Whether all fields are optional numbers, which is quick to check."""
    return all(hint == float | None for hint in _hints(cls).values())


@functools.cache
def _needed(cls: type) -> list[str]:
    """Returns the fields that a value must have; any other one that is missing is unknown."""
    hints = _hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    return [
        f.name for f in fields if types.NoneType not in typing.get_args(hints[f.name])
    ]


def _problem(annotation: Any, value: Any) -> _Problem | None:
    if dataclasses.is_dataclass(annotation):
        return _problem_of_fields(annotation, value)
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is types.UnionType or origin is typing.Union:
        problems = [_problem(option, value) for option in arguments]
        if None in problems:
            return None
        within = problems[0]
        return within if within[0] else ("", _kind(annotation), value)

    if origin is list and type(value) is list:
        return _first_problem(arguments[0], enumerate(value))
    if origin is dict and type(value) is dict:
        return _first_problem(arguments[1], value.items())
    if _holds(annotation, value):
        return None
    return "", _kind(annotation), value


def _problem_of_fields(cls: type, value: Any) -> _Problem | None:
    if type(value) is not dict:
        return "", "an object", value
    if _of_numbers(cls) and _NUMBERS.issuperset(map(type, value.values())):
        return None
    for name, hint in _hints(cls).items():
        if name in value:
            problem = _problem(hint, value[name])
            if problem is not None:
                return _within(name, problem)
        elif name in _needed(cls):
            return name, _kind(hint), "missing"

    return None


def _first_problem(annotation: Any, items: Any) -> _Problem | None:
    for name, value in items:
        problem = _problem(annotation, value)
        if problem is not None:
            return _within(name, problem)

    return None


def _within(name: object, problem: _Problem) -> _Problem:
    place, kind, found = problem
    return f"{name}.{place}" if place else str(name), kind, found


def _holds(annotation: Any, value: Any) -> bool:
    kind = type(value)
    if annotation is Any:
        return True
    if annotation is int:
        return kind is int and abs(value) <= _LARGEST
    if annotation is float:
        return kind in (int, float)
    if annotation == Finite:
        return kind in (int, float) and abs(value) < 1e300
    if annotation == Rate:
        return kind in (int, float) and not 1e300 <= abs(value) < math.inf
    if typing.get_origin(annotation) is Annotated:  # a pair
        kinds = typing.get_args(typing.get_args(annotation)[0])
        fits = kind is list and len(value) == len(kinds)
        return fits and all(
            _problem(*pair) is None for pair in zip(kinds, value, strict=True)
        )

    return kind is (types.NoneType if annotation is None else annotation)


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _kind(annotation: Any) -> str:
    if dataclasses.is_dataclass(annotation):
        return "an object"
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return arguments[1]
    if origin is list:
        return f"a list of {_kind(arguments[0])}"
    if origin is dict:
        return "an object"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_kind(option) for option in arguments)
    return _KINDS.get(annotation, "null")


def shown(value: object) -> str:
    """Returns a wrong value as messages show it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def json_schema() -> dict[str, Any]:
    """Returns the schema of a ledger's line, for any validator of JSON Schema."""
    values = {key: _schema(kind) for key, kind in EVENTS.items()}
    typed = [
        {
            "if": {"properties": {"key": {"const": key}}},
            "then": {"properties": {"value": {"anyOf": [schema, {"type": "null"}]}}},
        }
        for key, schema in values.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of tfasr's ledger, events.jsonl",
        "type": "object",
        "required": ["key", "time_ms"],
        "properties": {
            "namespace": {"const": ""},
            "time_ms": {"type": "number", "description": "wall clock, since 1970"},
            "event_type": {"enum": ["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]},
            "key": {"type": "string"},
            "metadata": {"type": ["object", "null"]},
            "chain": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
        "allOf": typed,
    }


_TYPES = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    types.NoneType: "null",
}


def _schema(annotation: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(annotation):
        return {
            "description": " ".join(annotation.__doc__.split()),
            "type": "object",
            "properties": {
                name: _schema(hint) for name, hint in _hints(annotation).items()
            },
            "required": _needed(annotation),
        }

    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return {"description": arguments[1], **_schema(arguments[0])}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": list(map(_schema, arguments)),
            "items": False,
        }
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": list(map(_schema, arguments))}
    return {} if annotation is Any else {"type": _TYPES[annotation]}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))
