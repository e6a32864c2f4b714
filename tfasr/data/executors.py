"""Having tasks done elsewhere: by any `concurrent.futures.Executor`, such as a Dask cluster's."""

import concurrent.futures
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from tfasr.errors import RunError, UsageError

# Enough for some hundred workers that take seconds a task, and little memory.
AT_ONCE = 512
_CONNECT_WITHIN_S = 10
_REMEDY = "Start one with dask scheduler, and workers with dask worker ADDRESS."

log = logging.getLogger("tfasr")


def completed(
    executor: Executor,
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
    at_once: int = AT_ONCE,
) -> Iterator[Any]:
    """Yields what ``function(*task)`` returns for every task, as soon as each is done.

    When it ends early, tasks that have not begun are cancelled; none is waited for.

    Args:
        function: at the top level of a module, if another process is to call it.
        at_once: most tasks submitted and not yet done: what bounds the memory.

    Raises:
        RunError: if the executor, not the function, fails.
        Exception: what the function raised.
    """
    tasks = iter(tasks)
    running: set[Future] = set()
    try:
        while True:
            for task in itertools.islice(tasks, at_once - len(running)):
                running.add(_submitted(executor, function, task))
            if not running:
                return
            done, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            while done:  # no name stays for a failed future: see _result
                yield _result(done.pop())
    finally:
        for future in running:
            future.cancel()


def _submitted(executor: Executor, function: Callable[..., Any], task: tuple[Any, ...]) -> Future:
    try:
        return executor.submit(function, *task)
    except RuntimeError as error:  # it was shut down, or is broken
        raise _lost(error) from error


def _result(future: Future) -> Any:
    try:
        return future.result()
    except (concurrent.futures.CancelledError, concurrent.futures.BrokenExecutor) as error:
        raise _lost(error) from error
    except Exception as error:
        # Dask's own, such as KilledWorker: a task at which several workers died.
        if type(error).__module__.partition(".")[0] == "distributed":
            raise _lost(error) from error
        raise
    finally:
        # Its error knows this frame: a circle would keep what the task had open, such as a file
        # on a full disk.
        del future


def _lost(error: BaseException) -> RunError:
    cause = " ".join(str(error).split())[:400]
    return RunError(
        "The executor must do every task. It gave up with "
        f"{type(error).__name__}{': ' + cause if cause else ''}. Finished shards are kept: see why "
        "its workers ended (their memory, most often), and run tfasr prepare again; it resumes."
    )


@contextlib.contextmanager
def cluster_executor(address: str) -> Iterator[Executor]:
    """Connects to a Dask cluster for as long as the block runs.

    Yields:
        An executor whose tasks Dask's workers do. Dask gives the tasks of a lost worker to others.

    Raises:
        UsageError: if Dask is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "--scheduler needs Dask distributed, which is not installed: "
            f"pip install 'tfasr[cluster]'. ({error})"
        ) from error
    with contextlib.ExitStack() as open_client:
        with _quiet_dask():
            try:
                client = open_client.enter_context(Client(address, timeout=_CONNECT_WITHIN_S))
            except (OSError, ValueError, TypeError, ImportError) as error:
                raise UsageError(
                    "--scheduler must be the address of a Dask scheduler that runs, such as "
                    f"tcp://host:8786. Received: {address}, where none answers "
                    f"({type(error).__name__}). {_REMEDY}"
                ) from error
        threads = client.nthreads()
        if threads:
            total = sum(threads.values())
            log.info("%s: %d workers, %d threads.", address, len(threads), total)
        else:
            log.warning("%s has no workers: the shards wait for one. %s", address, _REMEDY)
        yield client.get_executor(pure=False)


@contextlib.contextmanager
def _quiet_dask() -> Iterator[None]:
    # Of a connection that fails the error says enough.
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
