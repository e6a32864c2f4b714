"""What comes from elsewhere, damaged or forged: it is read as it is, or refused by name."""

import copy
import json
import re
import shutil
import socket
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recognising.conftest import exported_tones
from tests.reliability.fuzzing import bounded, damaged, places, values
from tests.serving.conftest import started
from tfasr.cluster.description import TF_CONFIG, from_tf_config
from tfasr.display.table import to_text
from tfasr.errors import UsageError
from tfasr.ledger.events import Ledger, read_events
from tfasr.reports.tables.paper import scores_table
from tfasr.studies.plan import rows_of
from tfasr.studies.report import widths_table

__all__ = ["exported_tones"]


@st.composite
def forged(draw, content):
    """A JSON value of which some fields hold something else, are missing or are more."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        if not (within := places(content)):
            break
        place = draw(st.sampled_from(within))
        name = draw(st.sampled_from(sorted(place)) | st.text(max_size=3))
        if draw(st.booleans()):
            place[name] = draw(values)
        else:
            place.pop(name, None)

    return content


def altered(content):
    """A JSON file's bytes, forged or damaged."""
    text = json.dumps(content).encode()
    return damaged(text) | forged(content).map(lambda it: json.dumps(it).encode())


# Ledgers: a reader gets the first of the events that were written, and nothing else.


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger")
    written = Ledger(folder)
    written.begin_session(None)
    for step in range(1, 9):
        written.event(
            "train_step", {"loss": 1 / step, "utterances": 4}, epoch_num=1, step=step
        )
        if step % 4 == 0:
            written.sync()

    written.event("run_stop", status="success")
    written.close()
    return folder / "events.jsonl"


@bounded(60)
@given(st.data())
def test_a_damaged_ledger_is_refused_or_cut(ledger, data):
    content = ledger.read_bytes()
    events = read_events(ledger)
    lines = content.splitlines(keepends=True)
    line = st.sampled_from(lines)
    moved = st.lists(line, max_size=len(lines)).map(b"".join)
    bad = ledger.with_name("bad.jsonl")
    bad.write_bytes(data.draw(damaged(content) | moved))
    try:
        found = read_events(bad)
    except UsageError as error:
        assert str(bad) in str(error)  # noqa: PT017 - either is right
        return

    # One that has no line with a hash is read as of an older tfasr: as far as it is
    # whole.
    assert found == events[: len(found)] or b'"chain"' not in bad.read_bytes()


# Exports: a text, or one error that names the folder.


@pytest.fixture(scope="module")
def export(exported_tones, tmp_path_factory):
    return Path(
        shutil.copytree(exported_tones, tmp_path_factory.mktemp("export") / "edited")
    )


@bounded(12)
@given(st.data())
def test_an_edited_export_is_used_or_refused(export, exported_tones, data):
    from tfasr.recognising.recogniser import load_recogniser
    from tfasr.recognising.spec import SPEC_FILE, write_sums

    names = (SPEC_FILE, "alphabet.json")
    for name in names:
        shutil.copy(exported_tones / name, export / name)
    name = data.draw(st.sampled_from(names))
    content = json.loads((export / name).read_text())
    (export / name).write_bytes(data.draw(altered(content)))
    write_sums(export)
    try:
        recogniser = load_recogniser(export)
        found = recogniser.transcribe(
            np.zeros(recogniser.sample_rate_hz // 4, np.float32)
        )
    except UsageError as error:
        assert str(export) in str(error)  # noqa: PT017 - either is right
        return

    assert isinstance(found.text, str)


# Scores and measured beam widths of a study: rows that tables can show, or one error.

ROW = {"run": "x", "split": "test", "decoder": "beam", "beam_width": 4, "wer": 0.5, "cer": 0.2,
       "utterances": 9, "wer_interval": [0.4, 0.6], "evaluation_s": 1.5, "words": 20}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scores")


@bounded(60)
@given(altered({"rows": [ROW, ROW | {"beam_width": None, "split": "validation"}]}))
def test_foreign_scores_are_shown_or_refused(folder, content):
    path = folder / "scores.json"
    path.write_bytes(content)
    try:
        scores = rows_of(path, "split", "decoder", "beam_width")
        widths = rows_of(path, "beam_width", "evaluation_s")
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right
        return

    names = ("split", "decoder", "beam_width", "evaluation_s", "wer", "cer")
    scores, widths = (
        [
            {"run": "x"} | {name: row[name] for name in names if name in row}
            for row in rows
        ]
        for rows in (scores, widths)
    )
    assert to_text([scores_table(scores), *([widths_table(widths)] if widths else [])])


# TF_CONFIG: a cluster of which this process is one, or one error.

WORKERS = {
    "cluster": {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"]},
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}


@bounded(60)
@given(altered(WORKERS | {"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]}}))
def test_a_forged_tf_config_is_a_cluster_or_refused(content):
    text = content.decode(errors="surrogateescape")
    try:
        cluster = from_tf_config({TF_CONFIG: text})
    except UsageError as error:
        assert len(str(error)) < 2000  # noqa: PT017 - either is right
        return

    assert 0 <= cluster.rank < cluster.size
    assert all(
        0 < int(address.rpartition(":")[2]) < 65536 for address in cluster.addresses
    )


# Requests: an answer of HTTP or a closed connection, and the server goes on.

HOST = b"Host: 127.0.0.1\r\n"
BODY = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0data" + bytes(
    64
)
REQUESTS = [
    b"GET / HTTP/1.1\r\n" + HOST + b"Origin: http://127.0.0.1\r\n\r\n",
    b"POST /transcribe?name=a.wav HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b"
    % (HOST, len(BODY), BODY),
    b"POST /transcribe HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    b"4\r\nRIFF\r\n0\r\n\r\n",
    b"GET /stream HTTP/1.1\r\n"
    + HOST
    + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    b"\x82\x84\0\0\0\0\1\0\2\0\x81\x8f\0\0\0\0" + b'{"eof" : 1}    ',
]


@pytest.fixture(scope="module")
def server(exported_tones, tmp_path_factory):
    pytest.importorskip(
        "aiohttp", reason="needs the serve extra: pip install 'tfasr[serve]'"
    )
    limits = {"idle_s": 5, "max_upload_mb": 1, "max_upload_s": 5}
    with tempfile.TemporaryFile("w+") as log:
        kept = tmp_path_factory.mktemp("kept")
        with started(exported_tones, kept, stderr=log, **limits) as found:
            yield found


def answered(server, content):
    port = int(re.search(r":(\d+)/", server.url)[1])
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                answer += more
        except ConnectionError:
            pass

    return answer


@bounded(60)
@given(st.sampled_from(REQUESTS).flatmap(damaged))
def test_a_damaged_request_is_answered_or_let_go(server, content):
    answer = answered(server, content)
    assert not answer or answer.startswith(b"HTTP/")
    assert not re.match(rb"HTTP/\d\.\d 5\d\d", answer), answer
    assert server.process.poll() is None


def test_fuzzed_requests_leave_a_server_that_answers(server):
    # Not half closed, as those above: a server may let such a connection go before it
    # answers.
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        assert answer.status == 200
    assert server.process.poll() is None
    assert server.files == []
