"""Intervals for a new run, from the spread of a few finished ones and of timed steps."""

SHARE = 0.8  # of new runs whose time lies in the interval
DRAWS = 4000
# The spread of utterances to a target between seeds that is assumed before any was seen: a standard
# deviation of logarithms, which counts as much as that many further runs. The kept runs' recipes
# vary by 8 to 20 %, and MLPerf's RNN-T by 3 to 10 %.
ASSUMED_SPREAD = 0.12
ASSUMED_RUNS = 2
# How far a whole run's speed lies from that of a minute of its steps, on a machine that nobody else
# seems to use, and how far a step's time lies from that of another machine, scaled by probes. Both
# were chosen so that intervals hold on the kept runs: benchmarks/estimate.py.
SPEED_ERROR = 0.08
MACHINE_ERROR = 0.35
