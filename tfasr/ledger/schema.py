"""The values of a ledger's events: one type for each key, to write, check and describe them.

`Ledger.write` takes an instance of the dataclasses here, `wrong_value` finds values of
another type when a run is read, and ``docs/ledger.schema.json`` is the same as JSON
Schema: renew it with ``python -m tfasr.ledger.schema``. A field without a default is
always written; one that is None by default is left out if it is unknown. A reader
ignores further fields. The value of every event may be null, which means unknown. Keys
that aren't listed here may have any JSON value, such as the facts that
`tfasr.Recorder.note` records.

A new kind of event is a dataclass below, registered with `event`, and the code that
writes it, such as ``ledger.write(WorkerJoined(rank=2))``.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

_METADATA = ("session", "epoch_num", "step")  # whole numbers, where an event has them
_LATEST_MS = 1e15  # the year 33 658, far below what overflows the clock of a run
_LARGEST = 2**53  # whole numbers up to here are exact as floats
_LARGEST_RATE = 1e300  # sums and products of a few such numbers are still finite
_SHOWN_CHARACTERS = 60  # of a wrong value, in messages

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

    # `tfasr.ledger.events.LEDGER_FORMAT` of the tfasr that wrote it.
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

    # The global batch: all replicas of all workers together.
    utterances: float | None = None
    audio_s: float | None = None
    frames: float | None = None  # without padding
    padded_frames: float | None = None  # with padding

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

    window: int  # in epochs; the paper's is 3

    # More than 1 if a run also evaluates within its epochs.
    evaluations_per_epoch: int = 1


@event("shared_with_training")
class SharedWithTraining:
    """How much of the validation split is trained on too."""

    # In both splits, and in the validation split.
    utterances: int
    of_utterances: int

    # The same for their speakers.
    speakers: int
    of_speakers: int


@event("instruction_set")
class InstructionSet:
    """The instructions that compiled layers use; null without such layers."""

    name: str  # such as "avx2"
    forced: bool = False  # whether TFASR_INSTRUCTION_SET set it

    # How much faster than float32 this processor computes with bfloat16.
    bfloat16_speedup: float | None = None  # None unless the precision was chosen by it


@event("evaluation_placement")
class EvaluationPlacement:
    """Where epochs are evaluated, see `TrainingConfig`."""

    name: str
    devices: list[str]


@event("start_from")
class StartFrom:
    """The trained weights that a run began with; ``seconds`` and ``joules`` are their cost."""

    # The folder of the other run, and the file of weights in it.
    run: str
    file: str
    sha256: str  # of that file

    # The other run's last hash, which shows later whether its ledger is still the same.
    ledger_hash: str | None

    # What the other run took up to these weights; None if its ledger doesn't say it.
    seconds: float | None
    joules: float | None

    # The names of layers whose weights were copied, and of those that start anew.
    layers: list[str]
    new_layers: list[str]


@event("device_memory")
class DeviceMemory:
    """Bytes of variables on all devices while models are swapped."""

    training: int  # of the model that trains, and its optimizer
    evaluation: int  # of all models while that model is away


@event("evaluation_work")
class EvaluationWork:
    """Seconds that another process took for an evaluation."""

    load_s: float  # to read the checkpoint
    forward_s: float
    decode_s: float


@event("evaluator_died")
class EvaluatorDied:
    """The other process died."""

    exit_code: int | None  # None if it is unknown
    deaths: int  # one after the other, without an evaluation in between


@event("given_up")
class GivenUp:
    """A budget ended the run; metadata ``epoch_num``."""

    budget_s: Finite

    # The target that the run would have missed.
    metric: str
    target: float

    # By the forecast, the run meets the target later than this.
    not_before_s: float | None  # None if the budget was spent without a forecast


@event("extended")
class Extended:
    """A session trains a finished run longer; earlier work isn't lost."""

    after_epoch: int  # with which the run was finished before
    schedule: str  # what changed, such as the number of epochs


@event("comparable_with")
class ComparableWith:
    """A recorder took over another run's comparability."""

    run: str
    stated: dict[str, Any]  # what `tfasr.Recorder` was given as its own


@dataclass(frozen=True, kw_only=True)
class Link:
    """How fast workers summed a buffer of the gradients' size before the first step."""

    bytes_per_s: float | None = None
    small_s: float | None = None  # to sum a few numbers


@event("cluster")
class Cluster:
    """Several workers train together; ``num_replicas`` then counts the replicas of all."""

    workers: int

    # One worker's gradients in the type that is sent, and that type.
    gradient_bytes: float = 0.0
    gradient_exchange: str = "float32"

    # None if it wasn't measured.
    link: Link | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One worker's round."""

    rank: int
    utterances: float
    staleness: int  # others' changes that were added during it

    # The seconds in which it trained, and sent and received weights.
    train_s: float
    link_s: float


@event("exchanged")
class Exchanged:
    """Workers exchanged their weights; precedes the last step of a segment."""

    # Trained on since the last exchange by all workers together, and those of the
    # segment that nobody delivered.
    utterances: float
    lost_utterances: float

    # How long the chief waited, and the rank that came last.
    waited_s: float
    waited_for: int | None

    workers: list[Round]  # what each of them delivered


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

    rank: int  # of the worker whose file it is
    workers: int  # of the cluster


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

    # By counter: joules, and the value at which it restarts from 0 (None if it never
    # does).
    energy: dict[str, Annotated[tuple[Finite, Finite | None], "a pair of numbers"]]


# Events whose value needs no class.
EVENTS |= {
    # Facts of the run, written at its start. The first one is of each session, see
    # `tfasr.telemetry.machine.conditions`.
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
    # Evaluations: WER, then every metric and count.
    "eval_accuracy": float,
    "tracked_stats": dict[str, Rate | None],
    "decode_work": float,  # seconds that the decoder's thread worked
    "second_decode_work": float,
    # The end of a finished run; `checkpoints` has their SHA-256 by file name.
    "traces": dict[str, dict[str, Any]],  # of "training" and "evaluation"
    "checkpoints": dict[str, str],
}


def value_of(key: str, value: Any) -> Any:
    """Returns an event's value as its type; None stays None.

    The value must have passed `wrong`: this function doesn't check it again.
    """
    made = EVENTS[key]
    if value is None or not dataclasses.is_dataclass(made):
        return value

    return _made(made, value)


def _made(cls: type, value: Mapping[str, Any]) -> Any:
    """Returns an instance of a dataclass; fields without a default may be missing."""
    values = {}
    for field in dataclasses.fields(cls):
        if field.name in value:
            values[field.name] = _part(_hints(cls)[field.name], value[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = None

    return cls(**values)


def _part(annotation: Any, value: Any) -> Any:
    """Returns a field's value, with instances where the annotation names a dataclass.

    The annotation may be such a class, a list of it, or either of them or None.
    """
    options = (annotation, *typing.get_args(annotation))
    inner = next(filter(dataclasses.is_dataclass, options), None)
    if inner is None or value is None:
        return value

    if isinstance(value, list):
        return [_made(inner, item) for item in value]

    return _made(inner, value)


def to_json(value: Any) -> Any:
    """Returns the JSON value of a dataclass here, without what is unknown.

    Anything else is returned as it is.

    Example:
        >>> to_json(TrainStep(loss=None, train_s=0.5))
        {'loss': None, 'train_s': 0.5}
    """
    if not dataclasses.is_dataclass(value):
        return value

    values = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if content is None and field.default is None:
            continue

        if isinstance(content, list):
            values[field.name] = list(map(to_json, content))
        else:
            values[field.name] = to_json(content)

    return values


def wrong_event(event: Mapping[str, Any]) -> str | None:
    """Returns why an event's key, time, metadata or value is invalid, or None."""
    key = event["key"]
    if type(key) is not str:
        return f"an event's key must be text, not {shown(key)}"

    time_ms = event["time_ms"]
    if type(time_ms) not in (int, float) or not abs(time_ms) <= _LATEST_MS:
        latest = f"a finite number up to {_LATEST_MS:g}"
        return f"time_ms must be {latest}, not {shown(time_ms)}"

    about = event.get("metadata")
    if about is not None and type(about) is not dict:
        return f"an event's metadata must be an object, not {shown(about)}"

    if about:
        for name in _METADATA:
            number = about.get(name)
            if number is not None and not _holds(int, number):
                return f"{name} must be a whole number, not {shown(number)}"

    return wrong(key, event.get("value"))


def wrong(key: str, value: Any) -> str | None:
    """Returns why an event's value is invalid, or None.

    Example:
        >>> wrong("seed", "one")
        "the value of seed must be a whole number, not 'one'"

    Args:
        key: the event's key; values of unknown keys are never wrong.
        value: the event's value.
    """
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


# Where within a value a problem is, such as "workers.0.rank" ("" for the whole value),
# what must be there in words, and what is.
_Problem = tuple[str, str, Any]

# Types of values that need no closer look if all fields are optional numbers.
_NUMBERS = {int, float, types.NoneType}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Returns the type of each field of a dataclass, with the words of `Annotated`."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _of_numbers(cls: type) -> bool:
    """Whether all fields are optional numbers, which is quick to check."""
    return all(hint == float | None for hint in _hints(cls).values())


@functools.cache
def _needed(cls: type) -> list[str]:
    """Returns the fields that a value must have; any other one that is missing is unknown."""
    hints = _hints(cls)
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING
        and types.NoneType not in typing.get_args(hints[field.name])
    ]


def _problem(annotation: Any, value: Any) -> _Problem | None:
    """Returns the first problem of a value that must be of a type, or None."""
    if dataclasses.is_dataclass(annotation):
        return _problem_of_fields(annotation, value)

    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if _is_union(origin):
        problems = [_problem(option, value) for option in arguments]
        if None in problems:
            return None

        # The first option is the usual one. If the value is of that kind, but one of
        # its parts is wrong, that part is named.
        place, _, _ = problems[0]
        if place:
            return problems[0]

        return "", _kind(annotation), value

    if origin is list and type(value) is list:
        return _first_problem(arguments[0], enumerate(value))

    if origin is dict and type(value) is dict:
        return _first_problem(arguments[1], value.items())

    if _holds(annotation, value):
        return None

    return "", _kind(annotation), value


def _is_union(origin: Any) -> bool:
    """Whether this is the origin of ``A | B`` or ``Optional[A]``."""
    return origin in (types.UnionType, typing.Union)


def _problem_of_fields(cls: type, value: Any) -> _Problem | None:
    """Returns the first problem of a value that must have a dataclass's fields."""
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


def _first_problem(
    annotation: Any, items: Iterable[tuple[object, Any]]
) -> _Problem | None:
    """Returns the first problem of named values that must all be of a type, or None."""
    for name, value in items:
        problem = _problem(annotation, value)
        if problem is not None:
            return _within(name, problem)

    return None


def _within(name: object, problem: _Problem) -> _Problem:
    """Returns a problem of a part as one of the whole, in which the part has a name."""
    place, kind, found = problem
    if place:
        return f"{name}.{place}", kind, found

    return str(name), kind, found


def _holds(annotation: Any, value: Any) -> bool:
    """Whether a value that has no parts, or is a pair, is of a type.

    A bool is no number here, though it is an ``int`` in Python.
    """
    kind = type(value)
    is_number = kind in (int, float)
    if annotation is Any:
        return True

    if annotation is int:
        return kind is int and abs(value) <= _LARGEST

    if annotation is float:
        return is_number

    if annotation == Finite:
        return is_number and abs(value) < _LARGEST_RATE

    if annotation == Rate:
        return is_number and not _LARGEST_RATE <= abs(value) < math.inf

    if typing.get_origin(annotation) is Annotated:  # a pair
        kinds = typing.get_args(typing.get_args(annotation)[0])
        if kind is not list or len(value) != len(kinds):
            return False

        return all(_problem(*pair) is None for pair in zip(kinds, value, strict=True))

    if annotation is None:
        return value is None

    return kind is annotation


# Types in words. What is not among them is None.
_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
}


def _kind(annotation: Any) -> str:
    """Returns a type in words, for messages."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is dict or dataclasses.is_dataclass(annotation):
        return "an object"

    if origin is Annotated:
        return arguments[1]

    if origin is list:
        return f"a list of {_kind(arguments[0])}"

    if _is_union(origin):
        return " or ".join(map(_kind, arguments))

    return _KINDS.get(annotation, "null")


def shown(value: object) -> str:
    """Returns a wrong value as messages show it, cut to 60 characters."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text

    return f"{text[: _SHOWN_CHARACTERS - 1]}…"


def json_schema() -> dict[str, Any]:
    """Returns the schema of a ledger's line, for any validator of JSON Schema."""
    typed = [
        {
            "if": {"properties": {"key": {"const": key}}},
            "then": {
                "properties": {"value": {"anyOf": [_schema(kind), {"type": "null"}]}}
            },
        }
        for key, kind in EVENTS.items()
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


# The same in JSON Schema.
_TYPES = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    types.NoneType: "null",
}


def _schema(annotation: Any) -> dict[str, Any]:
    """Returns the JSON Schema of a type."""
    if annotation is Any:
        return {}

    if dataclasses.is_dataclass(annotation):
        fields = {name: _schema(hint) for name, hint in _hints(annotation).items()}
        return {
            "description": " ".join(annotation.__doc__.split()),
            "type": "object",
            "properties": fields,
            "required": _needed(annotation),
        }

    origin = typing.get_origin(annotation)
    if origin is None:
        return {"type": _TYPES[annotation]}

    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return {"description": arguments[1], **_schema(arguments[0])}

    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}

    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}

    options = list(map(_schema, arguments))
    if origin is tuple:
        return {"type": "array", "prefixItems": options, "items": False}

    return {"anyOf": options}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))
