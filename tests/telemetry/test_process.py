import subprocess
import sys
import time

from tfasr.telemetry.machine import process_age_s


def test_a_process_knows_what_it_took_before_it_asked():
    script = (
        "import time; time.sleep(0.3); from tfasr.telemetry.machine import process_age_s; "
        "print(process_age_s())"
    )
    began = time.monotonic()
    said = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    # No earlier than the sleep allows, no more than the whole took; a tick of the clock is 10 ms.
    assert 0.3 - 0.02 <= float(said.stdout) <= time.monotonic() - began + 0.02


def test_the_age_grows_with_the_clock():
    first = process_age_s()
    assert process_age_s() >= first > 0
