"""DeepMark's Deep Speech 2, forward and backward, over an epoch of lengths."""

import logging

import keras

from tfasr.bench.ds2.config import DeepMarkConfig
from tfasr.bench.ds2.data import COUNTS, HUNDREDS, LENGTHS_S, utterance_counts
from tfasr.bench.ds2.figure import lengths_chart, search_chart
from tfasr.bench.ds2.measure import DeepMarkTimer
from tfasr.bench.ds2.tables import deepmark_tables
from tfasr.bench.probes.backend import visible_gpus
from tfasr.bench.probes.make_stepper import make_strategy
from tfasr.bench.workload import Context, Result, Workload
from tfasr.models.deep_speech_2 import DeepSpeech2Config

_log = logging.getLogger(__name__)


def run(network: DeepSpeech2Config, bench: DeepMarkConfig, context: Context) -> Result:
    """Searches for the fastest batch and measures an epoch, on one device and on all asked for."""
    counts = utterance_counts(context.fraction)
    occurring = [length for length, count in zip(LENGTHS_S, counts, strict=True) if count]
    compared = bench.search_lengths_s or tuple(occurring)
    longest_s = max((*occurring, *(compared if bench.search_batches else ())))
    # Before anything is computed: only then can a processor be cut into devices.
    strategy = make_strategy(bench.num_devices)
    timers = [DeepMarkTimer(network, bench, longest_s)]
    search, size = None, bench.batch_size
    if bench.search_batches:
        search = timers[0].search(compared)
        size = search.fastest.batch
        _log.info("fastest batch: %d utterances", size)
    measured = [timers[0].epoch(counts, size)]
    if strategy is not None:
        timers.append(DeepMarkTimer(network, bench, longest_s, strategy))
        measured.append(timers[1].epoch(counts, size))
    parameters, warmups = timers[0].parameters, sum(timer.warmups for timer in timers)
    backend, gpus = keras.backend.backend(), visible_gpus()
    figures = {"ds2": lambda: lengths_chart(measured[-1], backend)}
    if search is not None:
        figures["ds2_search"] = lambda: search_chart(search, backend)
    return Result(
        tables=deepmark_tables(measured, search, backend, parameters, warmups, gpus),
        values={
            "parameters": parameters,
            "full_counts": [HUNDREDS * count for count in COUNTS],
            "search": search and search.to_json(),
            "runs": [measurement.to_json() for measurement in measured],
            "visible_gpus": gpus,
            "scaling": measured[-1].scaling(measured[0]) if len(measured) > 1 else None,
        },
        warmup_steps=warmups,
        figures=figures,
    )


DS2 = Workload(run, (DeepSpeech2Config, DeepMarkConfig))
