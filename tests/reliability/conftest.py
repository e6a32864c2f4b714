"""One tiny prepared corpus and one tiny run that every case takes a copy of; the command line."""

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.data.made_corpus import make_utterances, write_tsv

TINY = Path(__file__).parents[1] / "training" / "tiny.gin"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


def snapshot(folder: Path) -> dict[str, str]:
    """Returns what a folder holds: each file's hash by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def tfasr(capsys, monkeypatch) -> Callable[..., Ended]:
    """Returns a function that runs a command of the command line in this process."""
    # The command line sets logging up for a process of its own.
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    from tfasr import cli

    def run(*words: object) -> Ended:
        capsys.readouterr()
        handler = logging.StreamHandler()  # to what stderr is now
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            status = cli.run(cli.parse(["tfasr", *map(str, words)]))
        finally:
            root.removeHandler(handler)

        out, err = capsys.readouterr()
        return Ended(status, out, err)

    return run


@pytest.fixture
def refused(tfasr) -> Callable[..., str]:
    """Returns a function that runs a command which must be refused in one message."""

    def run(
        *words: object, keeps: Path, status: int = 2, names: tuple[str, ...] = ()
    ) -> str:
        before = snapshot(keeps)
        ended = tfasr(*words)
        assert ended.status == status, ended.err
        assert "Traceback" not in ended.err
        for name in names:
            assert name in " ".join(ended.err.split()), ended.err
        assert snapshot(keeps) == before, "nothing of the user's may change"
        return ended.err

    return run


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Returns a folder with a tsv corpus of four utterances."""
    folder = tmp_path / "corpus"
    write_tsv(folder, make_utterances(folder, 4, text="a b"))
    return folder


@pytest.fixture(scope="session")
def trained_once(shard_dir, tmp_path_factory) -> Path:
    """Returns the folder of a finished run of one epoch on the synthetic shards."""
    from tfasr import cli

    run_dir = tmp_path_factory.mktemp("reliability") / "run"
    words = [
        "train",
        "--gin_file",
        TINY,
        "--shard_dir",
        shard_dir,
        "--run_dir",
        run_dir,
    ]
    words += ["--no_memory_probe", "--gin_binding", "TrainingConfig.epochs = 1"]
    assert cli.run(cli.parse(["tfasr", *map(str, words)])) == 0
    return run_dir


@pytest.fixture
def run_dir(trained_once, tmp_path) -> Path:
    """Returns a copy of that run."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))


@pytest.fixture
def shards(shard_dir, tmp_path) -> Path:
    """Returns a copy of the shards that it was trained on."""
    return Path(shutil.copytree(shard_dir, tmp_path / "shards"))
