"""Coefficients of the forecast's quantile regressions, fitted to published runs.

By the rule, one evaluation or a median of several. Each row is of the logarithm of the
evaluations left over those so far, on the features of `tfasr.tta.forecast.course`: the
quantiles of 10, 50 and 90 %, and one for runs that are given up. Written by
``benchmarks/forecast.py --coefficients``.
"""

COEFFICIENTS = {
    "single": {
        "not_before": (-0.181, 0.6343),
        "low": (0.1829, 0.5319),
        "high": (1.4993, 0.3984),
        "middle": (1.0434, 0.473),
    },
    "median": {
        "not_before": (-0.4131, 0.599),
        "low": (-0.191, 0.4794),
        "high": (1.0094, 0.3547),
        "middle": (0.5246, 0.4353),
    },
}
