"""Times a study on several hosts against the same study on one.

    python benchmarks/study_hosts.py --hosts 2 --seeds 4   # about 10 minutes, as root

Hosts are network namespaces of one machine, each with an address, a Dask worker and one
core of its own; the one host has one core too. Cores of one machine slow each other
down (caches, memory, hardware threads that share a core), which hosts of their own
don't. So the benchmark first times a small study on one core, alone and with its twins
on the other cores, and says how much sooner so many hosts can be done at best:

    hosts * seconds alone / seconds beside the twins

What is missing from that is the cost of the scheduler, of starting workers, and of
hosts that have nothing left to do.
"""

import argparse
import tempfile
import time
from pathlib import Path

from campaigns.study_hosts import Hosts, Studies, perform


def together_s(folder: Path, count: int) -> float:
    """Returns the seconds until so many studies of one seed, each on a core, are
    done."""
    all_studies = []
    for core in range(count):
        own = folder / f"{count}-{core}"
        own.mkdir()
        all_studies.append(Studies(own, demo=True, seeds=1))

    began_s = time.monotonic()
    running = [
        studies.start("one", core=core) for core, studies in enumerate(all_studies)
    ]
    for process in running:
        if process.wait() != 0:
            raise SystemExit(f"A study failed: see {folder}.")

    return time.monotonic() - began_s


def on_one_host_s(studies: Studies) -> float:
    """Returns the seconds of the study on one core, without a scheduler."""
    began_s = time.monotonic()
    if studies.start("one", core=0).wait() != 0:
        raise SystemExit(f"The study failed: see {studies.folder / 'one.log'}.")

    return time.monotonic() - began_s


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--loopback", action="store_true", help="no network namespaces")
    parser.add_argument("--out", type=Path, help="keep studies and logs here")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.out or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)

        alone_s = together_s(folder, 1)
        beside_twins_s = together_s(folder, arguments.hosts)
        expected = arguments.hosts * alone_s / beside_twins_s
        print(
            f"A study of one seed takes {alone_s:.0f} s on one core, and {beside_twins_s:.0f} s "
            f"while its twins use the other cores: {arguments.hosts} hosts of this machine can "
            f"be {expected:.2f} times as fast as one.",
            flush=True,
        )

        studies = Studies(folder, demo=True, seeds=arguments.seeds)
        one_s = on_one_host_s(studies)
        print(f"One host: {one_s:.0f} s.", flush=True)

        hosts = Hosts(folder / "network", arguments.hosts, arguments.loopback)
        with hosts.up():
            hosts_s = perform(studies, hosts, "hosts", None, 0)

        ratio = one_s / hosts_s
        print(
            f"{arguments.hosts} hosts: {hosts_s:.0f} s, {ratio:.2f} times as fast, "
            f"{ratio / expected:.0%} of what was expected."
        )

        faults = studies.faults("hosts")
        print("Losses and verdicts are equal." if not faults else "\n".join(faults))


if __name__ == "__main__":
    main()
