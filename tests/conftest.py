"""Fixtures that several tests share."""

import logging
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Property tests try the same examples in every run, so that `make test` doesn't depend
# on luck. With `--hypothesis-profile random`, as in `make fuzz`, they try others in
# each run. Neither profile limits an example's time, since a slow or busy machine would
# exceed any limit.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, **_UNTIMED)
settings.register_profile("random", derandomize=False, print_blob=True, **_UNTIMED)
settings.load_profile("fixed")

# Files that take more than 20 s: they come first, so that no core waits for one at the
# end.
_LONGEST = (
    *(
        "test_workers",
        "test_rounds",
        "test_resume",
        "test_other_models",
        "test_examples",
    ),
    *(
        "test_any_model",
        "test_train",
        "test_finer_grid",
        "test_short_campaigns",
        "test_placement",
    ),
    *(
        "test_warm_start",
        "test_own_workload",
        "test_wheel",
        "test_signals",
        "test_streams",
    ),
    *("test_model_files", "test_silence"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Prints the output of a failed command, whose error only names the command."""
    try:
        return (yield)
    except subprocess.CalledProcessError as error:
        for output in (error.stdout, error.stderr):
            if output:
                if isinstance(output, str):
                    text = output
                else:
                    text = output.decode(errors="replace")

                print(text[-4000:])

        raise


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Takes back how a test that ran the command line in this process set logging up.

    Its handler would write to what was standard error then, which is closed after the
    test.
    """
    root = logging.getLogger()
    ours = logging.getLogger("tfasr")
    handlers = list(root.handlers)
    level = root.level
    our_level = ours.level
    yield
    for handler in list(root.handlers):
        if handler not in handlers:
            root.removeHandler(handler)

    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.fixture(scope="session")
def shard_dir(tmp_path_factory) -> Path:
    """Shards of a small synthetic corpus: 96 training and 24 validation utterances."""
    pytest.importorskip(
        "espeakng_loader", reason="needs the demo extra: pip install 'tfasr[demo]'"
    )
    from tfasr.corpora.synthetic import make_synthetic_corpus
    from tfasr.data.prepare_corpus import prepare
    from tfasr.data.shards import ShardConfig

    folder = tmp_path_factory.mktemp("synthetic")
    make_synthetic_corpus(
        folder / "corpus", num_train=96, num_validation=24, num_test=12, num_voices=12
    )
    prepare(
        corpus="synthetic",
        corpus_dir=folder / "corpus",
        shard_dir=folder / "shards",
        shards=ShardConfig(utterances_per_shard=16),
    )
    return folder / "shards"
