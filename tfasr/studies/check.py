"""Whether every experiment of a study can be trained at all, asked before the first one is."""

from collections.abc import Sequence

from tfasr.errors import UsageError


def check_runs(requests: Sequence[tuple[str, list[str], list[str]]]) -> int:
    """Reads each experiment as its training will, and returns how many there are.

    Raises:
        UsageError: if one has an unknown name, a wrong value or a binding that nothing uses.
    """
    # Imported here: it loads Keras, which the study's own process does without.
    from tfasr.training.build import check_batch_size
    from tfasr.training.from_gin import load_config

    for name, gin_files, bindings in requests:
        try:
            check_batch_size(load_config(gin_files, bindings).experiment)
        except UsageError as error:
            raise UsageError(f"The experiment {name} cannot be trained. {error}") from error
    return len(requests)
