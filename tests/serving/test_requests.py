"""The page, files that are sent, whose requests pass, and wrong use of the command."""

import asyncio
import json
import socket
import sys

import aiohttp
import numpy as np
import psutil
import pytest
import soundfile
import soxr

from tests.recognising.spoken_tones import RATE_HZ, pause, spoken, write_wav
from tfasr.cli import parse, run
from tfasr.data.audio import read_audio
from tfasr.recognising.files import to_json
from tfasr.recognising.recogniser import load_recogniser
from tfasr.serving.server import check_sender

pytest.importorskip(
    "aiohttp", reason="needs the serve extra: pip install 'tfasr[serve]'"
)


def ask(server, method="GET", path="", **options):
    """Returns status, headers and text of an answer."""

    async def asked():
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, server.url + path, **options) as response,
        ):
            return response.status, response.headers, await response.text()

    return asyncio.run(asked())


def send(server, data, name="talk.wav"):
    """Uploads a file; returns the status and the objects of the answer's lines."""
    status, _, text = ask(
        server, "POST", "transcribe", params={"name": name}, data=data
    )
    return status, [json.loads(line) for line in text.splitlines()]


def test_the_page_is_whole_and_loads_nothing(server):
    status, headers, text = ask(server)

    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"
    assert "//" not in text.replace("// ", "").replace("http://www.w3.org", "")


def test_the_script_of_the_page_runs_by_its_nonce(server):
    status, headers, text = ask(server)

    nonce = headers["Content-Security-Policy"].split("'nonce-")[1].split("'")[0]

    assert f'<script nonce="{nonce}">' in text
    assert '"FACTS"' not in text


def test_an_unknown_path_is_not_found(server):
    assert ask(server, path="elsewhere")[0] == 404


def test_a_file_is_answered_part_by_part(server, exported_tones, tmp_path):
    speech = np.concatenate([spoken("abc da", 1), pause(15), spoken("bcd", 2)])
    path = write_wav(tmp_path / "talk.wav", speech)

    status, (first, *parts, last) = send(server, path.read_bytes())

    assert status == 200
    assert first == {"duration_s": round(len(speech) / RATE_HZ, 3)}
    assert [part["text"] for part in parts] == ["abc da", "bcd"]
    assert [word for part in parts for word in part["result"]] == last["result"]

    expected = json.loads(
        to_json("talk.wav", load_recogniser(exported_tones).transcribe(path))
    )
    confidences = [
        [word.pop("conf") for word in one["result"]] for one in (last, expected)
    ]

    assert last == expected
    assert np.allclose(*confidences, atol=1e-3)


def test_silence_is_no_text(server, tmp_path):
    path = write_wav(tmp_path / "talk.wav", pause(1.0))
    _, (_, last) = send(server, path.read_bytes())

    assert (last["duration_s"], last["text"]) == (1.0, "")


def test_any_rate_and_channels_are_heard(server, tmp_path):
    speech = soxr.resample(spoken("dad cab", 1), RATE_HZ, 48000)
    soundfile.write(tmp_path / "talk.flac", speech[:, None] * [0.5, 1.0], 48000)

    _, (*_, last) = send(server, (tmp_path / "talk.flac").read_bytes(), "talk.flac")

    assert last["text"] == "dad cab"


def test_one_mp3_gives_one_text_everywhere(server, exported_tones, tmp_path):
    noise = np.random.default_rng(1).normal(0, 0.15, 20 * RATE_HZ)
    speech = np.concatenate([spoken("abc da", 1), pause(9), spoken("bcd ad cab", 2)])
    for name, samples in (("said.mp3", speech), ("noise.mp3", noise)):
        path = tmp_path / name
        soundfile.write(path, samples, RATE_HZ, format="MP3")
        _, (*_, last) = send(server, path.read_bytes(), name)
        recogniser = load_recogniser(exported_tones)

        by_command = recogniser.transcribe(path)
        as_prepared = recogniser.transcribe(read_audio(path))

        assert last["text"] == by_command.text == as_prepared.text
        assert by_command == as_prepared


def ask_as_openai(server, content=None, name="talk.wav", **fields):
    form = aiohttp.FormData(fields, default_to_multipart=True)
    if content is not None:
        form.add_field("file", content, filename=name)

    return ask(server, "POST", "v1/audio/transcriptions", data=form)


def test_clients_of_openai_get_json_and_hear_what_was_ignored(server, tmp_path):
    wav = write_wav(tmp_path / "talk.wav", spoken("abc da", 1)).read_bytes()
    status, headers, text = ask_as_openai(server, wav, model="whisper-1", language="en")

    assert (status, json.loads(text)) == (200, {"text": "abc da"})
    assert {part.split(":")[0] for part in headers["X-Ignored"].split("; ")} == {
        "model",
        "language",
    }


def test_clients_of_openai_get_text_and_subtitles(server, tmp_path):
    wav = write_wav(tmp_path / "talk.wav", spoken("abc da", 1)).read_bytes()

    assert ask_as_openai(server, wav, response_format="text")[2] == "abc da\n"
    assert ask_as_openai(server, wav, response_format="vtt")[2].startswith("WEBVTT\n")


def test_clients_of_openai_get_words_and_segments(server, tmp_path):
    wav = write_wav(tmp_path / "talk.wav", spoken("abc da", 1)).read_bytes()

    verbose = json.loads(ask_as_openai(server, wav, response_format="verbose_json")[2])

    assert verbose["duration"] == pytest.approx(
        len(spoken("abc da", 1)) / RATE_HZ, abs=1e-3
    )
    assert [word["word"] for word in verbose["words"]] == ["abc", "da"]
    assert [part["text"] for part in verbose["segments"]] == ["abc da"]
    assert verbose["segments"][0]["end"] == verbose["words"][-1]["end"] > 0
    # All fields of TranscriptionVerbose and TranscriptionSegment in OpenAI's client for
    # Python.
    assert {
        "duration",
        "language",
        "text",
        "segments",
        "usage",
        "words",
    } <= verbose.keys()

    (segment,) = verbose["segments"]

    assert segment.keys() == {
        *("id", "seek", "start", "end", "text", "tokens", "temperature"),
        *("avg_logprob", "compression_ratio", "no_speech_prob"),
    }
    assert segment["seek"] == pytest.approx(100 * segment["start"], abs=0.5)
    assert -1 < segment["avg_logprob"] < 0 < segment["compression_ratio"] < 2
    assert verbose["usage"]["seconds"] >= verbose["duration"]


def test_the_model_is_listed_as_clients_of_openai_expect(server):
    status, _, text = ask(server, "GET", "v1/models")
    listed = json.loads(text)

    assert (status, listed["object"]) == (200, "list")

    (model,) = listed["data"]

    assert model.keys() == {"id", "object", "created", "owned_by"}
    assert model["object"] == "model"
    assert isinstance(model["created"], int)
    assert json.loads(ask(server, "GET", f"v1/models/{model['id']}")[2]) == model


def test_an_unknown_model_is_not_found_as_clients_of_openai_expect(server):
    status, _, text = ask(server, "GET", "v1/models/whisper-1")
    assert (status, json.loads(text)["error"]["type"]) == (404, "invalid_request_error")


def test_errors_have_openais_shape_and_the_servers_bounds(server):
    several = aiohttp.FormData(default_to_multipart=True)
    for name in "ab":
        several.add_field("file", name.encode(), filename=name)

    answers = {
        "no audio at all": (422, *ask_as_openai(server, b"no audio at all")[::2]),
        "xml": (400, *ask_as_openai(server, b"", response_format="xml")[::2]),
        "stream": (400, *ask_as_openai(server, b"", stream="true")[::2]),
        "no file": (400, *ask_as_openai(server, model="a")[::2]),
        "long field": (413, *ask_as_openai(server, prompt="a" * 70_000)[::2]),
        "many fields": (
            413,
            *ask_as_openai(server, **{f"a{n}": "1" for n in range(70)})[::2],
        ),
        "large": (413, *ask_as_openai(server, bytes(1_000_001))[::2]),
        "several": (
            400,
            *ask(server, "POST", "v1/audio/transcriptions", data=several)[::2],
        ),
        "no form": (
            400,
            *ask(server, "POST", "v1/audio/transcriptions", data=b"RIFF")[::2],
        ),
        "no page": (405, *ask(server, "GET", "v1/audio/transcriptions")[::2]),
        "other site": (
            403,
            *ask(server, path="v1/models", headers={"Host": "evil.com"})[::2],
        ),
        "cut": (
            400,
            *ask(
                server,
                "POST",
                "v1/audio/transcriptions",
                data=b'--a\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc',
                headers={"Content-Type": "multipart/form-data; boundary=a"},
            )[::2],
        ),
    }

    for name, (expected, status, text) in answers.items():
        error = json.loads(text)["error"]

        assert status == expected, (name, text)
        assert error["message"], name
        assert (error["type"], error["param"]) == ("invalid_request_error", None), name


def test_a_server_says_that_it_is_well(server):
    status, _, text = ask(server, path="health")

    assert (status, json.loads(text)["status"]) == (200, "ok")


def made(path, samples, rate_hz=RATE_HZ, **options):
    """The bytes of an audio file."""
    soundfile.write(path, samples, rate_hz, **options)
    return path.read_bytes()


BAD = {
    "text.wav": (422, "text.wav: Format not recognised"),
    "empty.wav": (422, "empty.wav"),
    "nan.wav": (422, "nan.wav: it holds samples that are not finite numbers"),
    "cut.flac": (422, "cut.flac"),
    "channels.wav": (422, "at most 32 channels"),
    "long.wav": (413, "at most 30 s (--max_upload_s)"),
    "large.wav": (413, "at most 1 MB (--max_upload_mb)"),
}


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    """Files that hold no whole recording, by name."""
    folder = tmp_path_factory.mktemp("bad")
    noise = np.random.default_rng(1).normal(0, 0.1, RATE_HZ)
    flac = made(folder / "whole.flac", np.tile(noise, 10))

    return {
        "text.wav": b"no audio at all",
        "empty.wav": b"",
        "nan.wav": made(
            folder / "a.wav", np.where(noise > 0.3, np.nan, noise), subtype="FLOAT"
        ),
        "cut.flac": flac[: len(flac) // 2],
        "channels.wav": made(folder / "b.wav", np.zeros((10, 40))),
        "long.wav": made(folder / "c.wav", np.zeros(31 * 8000), 8000, subtype="PCM_U8"),
        "large.wav": bytes(1_000_001),
    }


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_name_and_reason(server, bad_files, name):
    status, lines = send(server, bad_files[name], name)
    expected, reason = BAD[name]

    assert reason in lines[-1]["error"]
    assert str(server.folder) not in lines[-1]["error"]
    # What shows only when it is decoded comes behind the first line.
    assert status == expected if len(lines) == 1 else status == 200


def test_a_file_without_a_stated_size_is_limited_too(server):
    async def pieces():
        for _ in range(11):
            yield bytes(100_000)

    status, (answer,) = send(server, pieces())

    assert status == 413
    assert "at most 1 MB" in answer["error"]


def test_a_client_that_leaves_or_stops_sending_keeps_nothing_there(server):
    async def leave():
        reader, writer = await asyncio.open_connection(*server.url[7:-1].split(":"))
        head = f"POST /transcribe HTTP/1.1\r\nHost: {server.url[7:-1]}\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\nRIFF".encode())
        await writer.drain()

        return reader, writer

    async def both():
        _, gone = await leave()
        gone.close()
        await gone.wait_closed()
        reader, writer = await leave()
        answer = (await reader.read(4096)).decode()
        writer.close()
        await writer.wait_closed()

        return answer

    answer = asyncio.run(both())

    assert answer.startswith("HTTP/1.1 408")
    assert "without pauses of 5 s" in answer
    assert server.files == []


def test_an_exported_folder_is_served_without_tensorflow(server):
    maps = psutil.Process(server.process.pid).memory_maps()

    assert any("onnxruntime" in one.path for one in maps)
    assert not any("tensorflow" in one.path for one in maps)


@pytest.mark.parametrize(
    ("host", "origin", "passes"),
    [
        ("127.0.0.1:8765", None, True),
        ("localhost", "http://localhost", True),
        ("[::1]:80", "http://[::1]:80", True),
        ("192.168.1.7:8765", "http://192.168.1.7:8765", True),
        ("asr.example.org", "https://asr.example.org", True),
        # A proxy that names itself only there.
        ("127.0.0.1:8765", "https://asr.example.org", True),
        ("127.0.0.1:8765", "https://asr.example.org:9999", False),
        ("evil.example.com:8765", None, False),
        ("evil.example.com:8765", "http://evil.example.com:8765", False),  # rebound
        ("127.0.0.1:8765", "http://evil.example.com", False),
        ("127.0.0.1:8765", "http://127.0.0.1:9999", False),
        ("127.0.0.1:8765", "null", False),
        ("127.0.0.1:8765", "http://[", False),
        ("localhost.example.com", None, False),
        ("", None, False),
        (None, None, False),
    ],
)
def test_only_own_pages_and_programs_pass(host, origin, passes):
    assert (check_sender(host, origin, ["asr.example.org"]) is None) == passes


def test_other_pages_are_refused_everything(server):
    for headers in (
        {"Host": "evil.example.com"},
        {"Origin": "http://evil.example.com"},
    ):
        for method, path in (("GET", ""), ("POST", "transcribe"), ("GET", "stream")):
            status, _, text = ask(server, method, path, headers=headers)

            assert status == 403
            assert "evil.example.com" in json.loads(text)["error"]


@pytest.fixture
def serve(exported_tones):
    """Runs `tfasr serve` in this process and returns its exit code."""

    def serve(*words):
        return run(
            parse(
                ["tfasr", "serve", "--run_dir", str(exported_tones), *map(str, words)]
            )
        )

    return serve


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max_streams", 0), "--max_streams must be more than 0"),
        (("--idle_s", "nan"), "--idle_s must be more than 0"),
        (
            ("--max_upload_mb", "1e305"),
            "--max_upload_mb must be more than 0, at most 1e+09",
        ),
        (("--port", 70000), "--port must be 0 (any free one) to 65535"),
        (("--host", "192.0.2.1"), "--host must be an address of this machine"),
        (("--run_dir", "nowhere"), "a folder that tfasr train or tfasr export wrote"),
    ],
)
def test_wrong_use_is_told(serve, words, said, capsys):
    assert serve(*words) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(serve, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        assert serve("--port", port) == 2

    assert f"--port must be free. Received: {port}" in capsys.readouterr().err


def test_a_missing_library_is_named_with_its_extra(serve, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("tfasr.serving")]:
        monkeypatch.delitem(sys.modules, name)

    monkeypatch.setitem(sys.modules, "aiohttp", None)

    assert serve() == 2

    errors = capsys.readouterr().err

    assert "pip install 'tfasr[serve]'" in errors
    assert errors.count("\n") == 1
