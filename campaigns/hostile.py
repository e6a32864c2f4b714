"""The third hostile list: wrong words, damaged files and wrong calls, each with the right answer.

``python -m campaigns.hostile`` makes a small corpus, its shards, a run, an export and a recorded
run, and then meets each case of `campaigns.hostile_cases` in a process of its own, with a folder of
its own. ``--only WORD,...`` takes the cases whose names hold a word; ``--every N`` takes each N-th.

A case is *bad* if work was lost (a file that was there is not as it was), a result is wrong (a
status that the table does not have: what must be refused was done, or the reverse), or the command
had no end. It is *weak* if it ends in a traceback, lacks a line of its own or a fact that the
message must hold, or takes too long. The last line counts both; the exit status is 1 if any is.
"""

import argparse
import functools
import os
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaigns.children import Ended, load, run_forked
from campaigns.hostile_cases import CASES
from campaigns.hostile_words import COMMAND, HTTP, PYTHON, Case
from campaigns.small_work import CONFIGURATIONS, SmallWork

_LONGEST_S = 90.0  # then it counts as a hang
_SLOW_S = 15.0  # of the processors' time, whatever else the machine does
_HTTP_S = 10.0
_MORE_BYTES = (
    6 << 30
)  # of address space: what reads without end shall not take the machine's memory


@dataclass(frozen=True)
class Judged:
    """What came of a case: why it is bad, why it is weak, and how long it took."""

    case: Case
    bad: tuple[str, ...]
    weak: tuple[str, ...]
    seconds: float


class World:
    """What all cases look at and none may change.

    Attributes:
        folder: holds all of it; its files are the values of ``{name}`` in a case's
            words.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.work = SmallWork(folder)
        self._log = folder.with_name(folder.name + "-messages.txt")
        self._server: subprocess.Popen | None = None
        self._port = 0

    def build(self) -> None:
        """Makes corpus, shards, run, export, log-probabilities and a recorded run."""
        self.work.write()
        words = [
            self.work.prepare(self.work.shards),
            self.work.train(CONFIGURATIONS[0], self.folder / "run"),
            ["export", "--to", "onnx", "--run_dir", self.folder / "run"]
            + ["--out", self.folder / "export"],
        ]
        for command in words:
            ended = run_forked(command, self._log)
            if ended.status:
                sys.exit(
                    f"Without hostility this must succeed: {command}\n{ended.output}"
                )

        ended = self._program(Case("", ""), _RECORDED, self.folder)
        if ended.status:
            sys.exit(ended.output)
        (self.folder / "words.txt").write_text("ab\ncd\nabc\n")

    def values(self, place: Path) -> dict[str, Path]:
        """Returns what a case's ``{name}`` stand for."""
        named = {path.stem: path for path in self.folder.iterdir()}
        audio = self.folder / "corpus" / "audio" / "validation-00.wav"
        return {
            **named,
            "p": place,
            "w": self.folder,
            "wav": audio,
            "presets": _presets(),
        }

    def filled(self, words: str, place: Path) -> str:
        """Returns words with each ``{name}`` replaced."""
        for name, path in self.values(place).items():
            words = words.replace(f"{{{name}}}", str(path))
        return words

    def meet(self, case: Case, place: Path) -> Ended:
        """Runs a case in its folder."""
        if case.kind == HTTP:
            return self._request(case.words)
        words = self.filled(case.words, place)
        if case.kind == COMMAND:
            command = shlex.split(words)
            inside = functools.partial(_confined, place, case)
            return run_forked(
                command, self._log, prepare=inside, kill_after_s=_LONGEST_S
            )

        if case.kind == PYTHON:
            return self._program(case, words, place)
        return self._shell(words, place)

    def _program(self, case: Case, text: str, place: Path) -> Ended:
        def run() -> None:
            _confined(place, case)
            from tfasr.errors import RunError, UsageError

            status = 0
            try:
                exec(
                    compile(text, "program", "exec"),
                    {"place": place, "world": self.folder},
                )
            except (UsageError, RunError) as error:
                status = 2 if isinstance(error, UsageError) else 1
                print(f"tfasr program: {error}", file=sys.stderr)
            except BaseException:
                traceback.print_exc()
                status = 70

            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

        return run_forked(["program"], self._log, prepare=run, kill_after_s=_LONGEST_S)

    def _shell(self, line: str, place: Path) -> Ended:
        root = Path(__file__).parents[1]
        path = os.pathsep.join(
            filter(None, [str(root), os.environ.get("PYTHONPATH", "")])
        )
        tfasr = f"{shlex.quote(sys.executable)} -m tfasr.cli"
        begun = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", line.replace("tfasr ", f"{tfasr} ")],
            cwd=place,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, 9)
            output, _ = process.communicate()

        status = process.returncode
        number = -status if status < 0 else None
        seconds = time.monotonic() - begun
        return Ended(
            None if number else status, number, seconds, output.decode(errors="replace")
        )

    def _request(self, content: bytes) -> Ended:
        """Sends bytes to a server that all such cases share; its answer's number is the
        status.
        """
        if self._server is None:
            self._begin_server()
        begun = time.monotonic()
        answer = b""
        address = ("127.0.0.1", self._port)
        with (
            socket.create_connection(address, _HTTP_S) as connection,
            suppress(ConnectionError),
        ):
            connection.sendall(content.replace(b"PORT", str(self._port).encode()))
            while b"\r\n\r\n" not in answer and (more := connection.recv(1 << 16)):
                answer += more

        seconds = time.monotonic() - begun
        if self._server.poll() is not None:
            return Ended(None, 9, seconds, "the server is gone")
        words = answer.split()
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        return Ended(status, None, seconds, answer.decode(errors="replace"))

    def _begin_server(self) -> None:
        words = [
            sys.executable,
            "-m",
            "tfasr.cli",
            "serve",
            "--port",
            "0",
            "--idle_s",
            "3",
        ]
        words += ["--run_dir", str(self.folder / "export"), "--max_upload_mb", "1"]
        root = Path(__file__).parents[1]
        path = os.pathsep.join(
            filter(None, [str(root), os.environ.get("PYTHONPATH", "")])
        )
        self._server = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        line = self._server.stdout.readline()
        self._port = int(line.split("://")[1].split("/")[0].rpartition(":")[2])

    def close(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


_RECORDED = """
import tfasr
with tfasr.Recorder(world / "recorded", train_samples=4, targets=["cer=0.5"], seed=1) as run:
    for epoch in range(3):
        run.epoch()
        for _ in range(2):
            with run.step(utterances=2) as step:
                step.loss = 1.0
        with run.evaluation() as e:
            e.score(["a b c d"], ["a b c x"])
        run.checkpoint()
"""


def _confined(place: Path, case: Case) -> None:
    """Lets a process write "." below its folder, and keeps what has no end from the memory."""
    os.chdir(place)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "/dev/" in case.words or "sparse" in case.name:
        has_bytes = (
            int(Path("/proc/self/statm").read_text().split()[0])
            * resource.getpagesize()
        )
        resource.setrlimit(resource.RLIMIT_AS, (has_bytes + _MORE_BYTES,) * 2)


def _presets() -> Path:
    from tfasr.kit.gin import presets_folder

    return presets_folder()


def _state(folder: Path) -> dict[str, tuple]:
    """Returns what tells whether a file changed, by its path."""
    state = {}
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):
            about = path.lstat()
            if not path.is_dir() or path.is_symlink():
                state[str(path.relative_to(folder))] = (
                    about.st_mode,
                    about.st_size,
                    about.st_mtime_ns,
                )

    return state


def judge(case: Case, world: World, place: Path) -> Judged:
    """Meets a case, and says what is wrong with what came of it."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "mine").mkdir(parents=True)
    (place / "mine" / "text.txt").write_text("of the user's\n")
    if case.make is not None:
        case.make(place, world)
    before = _state(place) | {f"world/{k}": v for k, v in _state(world.folder).items()}
    used_s = _processor_s()
    ended = world.meet(case, place)
    used_s = _processor_s() - used_s
    after = _state(place) | {f"world/{k}": v for k, v in _state(world.folder).items()}
    lost = [
        name
        for name, state in before.items()
        if after.get(name) != state and not name.startswith(case.changes or ("\0",))
    ]
    # What comes into the world was written where nobody asked for it.
    lost += [name for name in after.keys() - before.keys() if name.startswith("world/")]
    bad = []
    weak = []
    if lost:
        bad.append(f"changed: {', '.join(lost[:5])}")
    if ended.killed and ended.seconds >= _LONGEST_S:
        bad.append("no end")
    elif ended.status not in case.statuses:
        told = ended.output.strip()[-300:]
        ended_by = ended.status if ended.signal is None else f"signal {ended.signal}"
        bad.append(f"ended with {ended_by}, not {case.statuses}: {told}")

    if "Traceback (most" in ended.output:
        weak.append(f"a traceback: {ended.output.strip()[-300:]}")
    if case.kind == COMMAND and ended.status == 2 and "tfasr" not in ended.output:
        weak.append(f"no line of its own: {ended.output[-300:]}")
    shown = " ".join(ended.output.split()).lower()
    lacking = [
        fact for fact in case.facts if world.filled(fact, place).lower() not in shown
    ]
    if lacking:
        weak.append(f"lacks {lacking}: {ended.output.strip()[-400:]}")
    if used_s > _SLOW_S:
        weak.append(f"took {used_s:.0f} s of processor time")
    return Judged(case, tuple(bad), tuple(weak), ended.seconds)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def campaign(cases: list[Case], folder: Path, *, quiet: bool = False) -> list[Judged]:
    """Meets cases in a world of their own below a folder, and prints what is wrong."""
    world = World(folder / "world")
    world.folder.mkdir(parents=True, exist_ok=True)
    world.build()
    results = []
    try:
        for case in cases:
            result = judge(case, world, folder / "case")
            results.append(result)
            for reason in result.bad:
                print(f"BAD {case.name}: {reason}\n", flush=True)
            for reason in () if result.bad else result.weak:
                print(f"WEAK {case.name}: {reason}\n", flush=True)
            if not quiet:
                print(f"{result.seconds:6.2f} s {case.name}", flush=True)
    finally:
        world.close()

    return results


def summary(results: list[Judged]) -> str:
    """Returns how many cases are good, weak and bad."""
    bad = sum(bool(result.bad) for result in results)
    weak = sum(bool(result.weak) and not result.bad for result in results)
    return f"{len(results)} cases: {len(results) - bad - weak} good, {weak} weak, {bad} bad"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.hostile", description=__doc__
    )
    parser.add_argument(
        "--only", default="", metavar="WORD,...", help="cases whose names hold one"
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="each N-th of them"
    )
    parser.add_argument(
        "--out", type=Path, help="gets the work; default: a temporary folder"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print what is wrong alone"
    )
    arguments = parser.parse_args()
    load()
    begun = time.monotonic()
    words = arguments.only.split(",")
    cases = [case for case in CASES if any(word in case.name for word in words)]
    cases = cases[:: arguments.every]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.out or Path(temporary)).resolve()
        results = campaign(cases, folder, quiet=arguments.quiet)

    print(f"{summary(results)}, in {time.monotonic() - begun:.0f} s")
    sys.exit(any(result.bad or result.weak for result in results))


if __name__ == "__main__":
    main()
