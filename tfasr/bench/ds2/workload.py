"""DeepMark's Deep Speech 2, forward and backward, over an epoch of lengths."""

import keras

from tfasr.bench.ds2.config import DeepMarkConfig
from tfasr.bench.ds2.data import COUNTS, HUNDREDS, utterance_counts
from tfasr.bench.ds2.figure import lengths_figure
from tfasr.bench.ds2.measure import measure_epoch
from tfasr.bench.ds2.tables import deepmark_tables
from tfasr.bench.probes.make_stepper import make_strategy
from tfasr.bench.workload import Context, Result, Workload
from tfasr.models.deep_speech_2 import DeepSpeech2Config


def run(network: DeepSpeech2Config, bench: DeepMarkConfig, context: Context) -> Result:
    """Measures an epoch, on one device and, where there are more, on all of them."""
    setting = (network, bench, utterance_counts(context.fraction))
    # Before anything is computed: only then can a processor be cut into devices.
    strategy = make_strategy(bench.num_devices)
    alone, parameters, warmups = measure_epoch(*setting)
    measured = [alone]
    if bench.num_devices > 1:
        several, _, more = measure_epoch(*setting, strategy)
        measured.append(several)
        warmups += more
    backend = keras.backend.backend()
    return Result(
        tables=deepmark_tables(measured, backend, parameters, warmups),
        values={
            "parameters": parameters,
            "full_counts": [HUNDREDS * count for count in COUNTS],
            "runs": [measurement.to_json() for measurement in measured],
            "scaling": measured[-1].scaling(alone) if len(measured) > 1 else None,
        },
        warmup_steps=warmups,
        figures={"ds2": lambda: lengths_figure(measured[-1], backend)},
    )


DS2 = Workload(run, (DeepSpeech2Config, DeepMarkConfig))
