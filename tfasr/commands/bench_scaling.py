"""``tfasr bench scaling``: steps per second and time to accuracy of N workers, predicted.

From runs that were measured: their steps, the utterances that they needed at their batch sizes, and
a link. ``tfasr bench --gin_file bench/scaling.gin`` measures devices of one process instead.
"""

import argparse
import sys
from pathlib import Path

from tfasr.commands.flags import numbers
from tfasr.display.writers import formats
from tfasr.tta.policies import PAPER, POLICIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the prediction's flags."""
    parser.add_argument("run_dirs", nargs="*", metavar="RUN_DIR", help="runs of several batches")
    parser.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="FILE",
        help="results.json of tfasr bench --gin_file bench/scaling.gin: steps; repeatable",
    )
    parser.add_argument(
        "--target", metavar="METRIC=VALUE", help="such as cer=0.10; default: steps alone"
    )
    parser.add_argument("--policy", choices=sorted(POLICIES), default=PAPER.name)
    parser.add_argument("--window", type=int, help="evaluations whose median must meet the target")
    parser.add_argument("--workers", default="1,2,4,8,16", help="default: %(default)s")
    parser.add_argument(
        "--global_batch_size", metavar="N,...", help="over all workers; default: the runs' own"
    )
    parser.add_argument(
        "--rows_per_worker", metavar="N,...", help="instead: the batch grows with the workers"
    )
    parser.add_argument(
        "--link_gbit_s", type=float, help="between workers; default: the runs' own exchanges"
    )
    parser.add_argument(
        "--link_latency_us", type=float, default=0.0, help="of a message; default: %(default)s"
    )
    parser.add_argument(
        "--over_loopback",
        action="store_true",
        help="the runs' exchanges went over no network: the link comes on top of them",
    )
    parser.add_argument(
        "--measure_exchange",
        action="store_true",
        help="measure one between two processes here, by the loopback; the link comes on top",
    )
    parser.add_argument("--gradient_mb", type=float, help="of a step; default: the runs'")
    parser.add_argument(
        "--overlap", type=float, default=0.0, help="share of the exchange that is hidden"
    )
    parser.add_argument("--out", metavar="DIR|FILE.json", help="gets tables, JSON and a figure")
    parser.add_argument("--format", choices=formats(), default="table", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Predicts."""
    from tfasr.bench.scaling.predict import Asked, predict

    def listed(flag: str) -> tuple[int, ...]:
        text = getattr(arguments, flag)
        return numbers(f"--{flag}", text) if text else ()

    asked = Asked(
        run_dirs=[Path(path) for path in arguments.run_dirs],
        results=[Path(path) for path in arguments.measured],
        target=arguments.target or "",
        policy=arguments.policy,
        window=arguments.window,
        workers=listed("workers"),
        global_batch_sizes=listed("global_batch_size"),
        rows_per_worker=listed("rows_per_worker"),
        link_gbit_s=arguments.link_gbit_s,
        link_latency_us=arguments.link_latency_us,
        over_loopback=arguments.over_loopback,
        measure_exchange=arguments.measure_exchange,
        gradient_mb=arguments.gradient_mb,
        overlap=arguments.overlap,
    )
    sys.stdout.write(predict(asked, out=arguments.out, output_format=arguments.format))
