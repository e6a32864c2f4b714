"""``tfasr COMMAND`` for a study: ends, as after SIGTERM, when the study's process has ended.

A study that is killed leaves no training behind, which would hold its run's folder and the machine.
"""

import os
import runpy
import signal
import sys
import threading
import time

_LOOKS_EVERY_S = 0.5


def end_with(parent: int) -> None:
    """Sends this process SIGTERM once it has another parent than the process of that id."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKS_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="study's end", daemon=True).start()


if __name__ == "__main__":
    end_with(int(sys.argv.pop(1)))
    runpy.run_module("tfasr.cli", run_name="__main__", alter_sys=True)
