"""Coefficients of the forecast's quantile regressions, fitted to published runs.

By the rule, one evaluation or a median of several. Each row is of the logarithm of the
evaluations left over those so far, on the features of `tfasr.tta.forecast.course`: the
quantiles of 10, 50 and 90 %, and one for runs that are given up. Written by
``benchmarks/forecast.py --coefficients``.
"""

COEFFICIENTS = {
    "single": {
        "not_before": (-0.4885, 0.6264),
        "low": (0.2772, 0.5255),
        "high": (1.6138, 0.4275),
        "middle": (1.2663, 0.5107),
    },
    "median": {
        "not_before": (-0.9439, 0.4073),
        "low": (-0.2182, 0.4382),
        "high": (1.113, 0.3621),
        "middle": (0.5461, 0.4148),
    },
}
