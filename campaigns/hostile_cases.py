"""All cases of `campaigns.hostile`; those about arguments and files are in `hostile_words`."""

import struct

from campaigns.hostile_words import (
    BINDINGS,
    DONE,
    DRY,
    EMPTY,
    FILES,
    HTTP,
    NUMBERS,
    PLACES,
    PYTHON,
    REFUSED,
    SHELL,
    TRAIN,
    TSV,
    Case,
    corpus,
    rows,
    wav,
)

_HEAD = "path\tspeaker\tseconds\ttext\n"
CORPORA = [
    Case(f"a corpus: {name}", TSV, statuses, tuple(facts), corpus(lines, **files))
    for name, lines, files, statuses, *facts in (
        ("no lines", _HEAD, {}, (1, 2), "train.tsv"),
        ("an empty list", "", {}, (1, 2), "train.tsv"),
        ("a list without a heading", "a.wav\ts\t0.3\tab\n", {}, (1, 2), "train.tsv"),
        ("a heading without text", "path\tspeaker\na.wav\ts\n", {}, (1, 2), "text"),
        (
            "audio outside the corpus",
            _HEAD + "../../etc/passwd\ts\t0.3\tab\n",
            {},
            (1, 2),
            "bad",
        ),
        (
            "a list that names itself as audio",
            _HEAD + "train.tsv\ts\t0.3\tab\n",
            {},
            (1, 2),
            "bad",
        ),
        ("audio that is a folder", _HEAD + ".\ts\t0.3\tab\n", {}, (1, 2), "bad"),
        (
            "audio that is /dev/zero",
            _HEAD + "/dev/zero\ts\t0.3\tab\n",
            {},
            (1, 2),
            "bad",
        ),
        ("a text without letters", _HEAD + "a.wav\ts\t0.3\t\n", {}, (1, 2), "bad"),
        (
            "a text of control characters",
            _HEAD + "a.wav\ts\t0.3\t\x1b[31m\x07\n",
            {},
            (1, 2),
            "bad",
        ),
        (
            "a text of a million letters",
            _HEAD + f"a.wav\ts\t0.3\t{'a' * 10**6}\n",
            {},
            (1, 2),
            "bad",
        ),
        (
            "a list in UTF-16",
            (_HEAD + "a.wav\ts\t0.3\tab\n").encode("utf-16"),
            {},
            (1, 2),
            "train.tsv",
        ),
        ("a list of zero bytes", b"\0" * 4096, {}, (1, 2), "train.tsv"),
        ("negative seconds", _HEAD + "a.wav\ts\t-1\tab\n", {}, (0, 1, 2)),
        (
            "seconds that are not a number",
            _HEAD + "a.wav\ts\tsoon\tab\n",
            {},
            (0, 1, 2),
        ),
        (
            "a recording without samples",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": wav(seconds=0)},
            (1, 2),
            "bad",
        ),
        (
            "a recording of 32767 channels",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": wav(channels=32767, seconds=0.001)},
            (1, 2),
            "bad",
        ),
        (
            "a recording at 1 Hz",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": wav(rate_hz=1, seconds=20)},
            (1, 2),
            "empty",
        ),
        (
            "a truncated recording",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": wav()[:50]},
            (1, 2),
            "bad",
        ),
        (
            "a 4-byte recording",
            _HEAD + "b.wav\ts\t0.3\tab\n",
            {"b_wav": b"RIFF"},
            (1, 2),
            "bad",
        ),
    )
]

_TALKS = (
    "with tfasr.Recorder(place / 'r', {}) as run:\n    run.epoch()\n    with run.step(utterances=1)"
    " as step:\n        step.loss = 1.0\n    with run.evaluation() as e:\n        e.score(['a b'], "
    "['a b'])\n"
)


def _python(
    name: str, text: str, statuses: tuple[int, ...] = REFUSED, *facts: str
) -> Case:
    return Case(
        f"a program: {name}", f"import tfasr\n{text}", statuses, facts, kind=PYTHON
    )


def _refused(call: str) -> str:
    """Returns a program that expects one of Python's own errors from a call, as documented."""
    errors = "(ValueError, TypeError, FileNotFoundError)"
    return f"try:\n    {call}\nexcept {errors} as error:\n    print('refused', error)\n"


PROGRAMS = [
    *(
        _python(f"Recorder({arguments})", _TALKS.replace("{}", arguments), REFUSED, *facts)
        for arguments, *facts in (
            ("targets=[5]", "target"),
            ("targets=5", "target"),
            ("targets=[('cer',)]", "target"),
            ("targets=[('cer', 0.1, 0.2)]", "target"),
            ("targets=[None]", "target"),
            ("targets='cer=0.1'", "target"),
            ("targets=[('cer', '0.1')]", "target"),
            ("targets=[(1, 0.1)]", "target"),
            ("targets=[(['cer'], 0.1)]", "target"),
            ("targets=[{'cer': 0.1}]", "target"),
            ("targets=['cer=0.1', 'beauty=3']", "beauty"),
            ("target_window=0", "target_window"),
            ("target_window='3'", "target_window"),
            ("target_window=True", "target_window"),
            ("train_samples=0", "train_samples"),
            ("train_samples=1.5", "train_samples"),
            ("train_samples='many'", "train_samples"),
            ("global_batch_size=-4", "global_batch_size"),
            ("seed='one'", "seed"),
            ("metrics=['bleu']", "metrics"),
            ("metrics={'bleu': 'up'}", "better"),
            ("metrics={'cer': 'higher'}", "cer"),
            ("metrics={3: 'higher'}", "metric"),
            ("metrics={'bleu': None}", "better"),
            ("facts={'x': object()}", "JSON"),
            ("facts={'x': float('nan')}", "JSON"),
            ("facts={'train_step': 1}", "train_step"),
            ("facts=[1]", "facts"),
            ("config={'x': {1, 2}}", "JSON"),
            ("config=[1, 2]", "config"),
            ("comparability='same'", "comparability"),
            ("comparability={'x': b'1'}", "JSON"),
            ("resumed_from_step=-1", "resumed_from_step"),
            ("resumed_from_step=5", "resumed_from_step"),
            ("resumed_from_step='last'", "resumed_from_step"),
            ("comparable_with=place / 'no'", "no"),
            ("comparable_with=place / 'mine'", "mine"),
        )
    ),
    *(
        _python(f"run.{call}", "with tfasr.Recorder(place / 'r') as run:\n    run.epoch()\n    "
                f"run.{call}\n", statuses, *facts)
        for call, statuses, *facts in (
            ("step(utterances='many').__enter__().__exit__(None, None, None)", REFUSED),
            ("note(train_step=3)", REFUSED, "train_step"),
            ("note(x=float('inf'))", REFUSED, "JSON"),
            ("note()", (0, 2)),
            ("evaluation().score(['a'], ['a'])", REFUSED, "evaluation"),
            ("saving().__exit__(None, None, None)", REFUSED),
            ("checkpoint().__enter__()", REFUSED, "saving"),
        )
    ),
    _python("a step within a step",
            "with tfasr.Recorder(place / 'r') as run:\n    run.epoch()\n    with "
            "run.step():\n        with run.step():\n            pass\n", REFUSED, "step"),
    _python("a recorder entered twice",
            "run = tfasr.Recorder(place / 'r')\nwith run:\n    with run:\n     "
            "   pass\n", REFUSED, "once"),
    _python("two recorders in one folder", "with tfasr.Recorder(place / 'r'), tfasr.Recorder("
            "place / 'r'):\n    pass\n", REFUSED, "{p}/r"),
    _python("a recorder whose folder is a file",
            "with tfasr.Recorder(place / 'mine' / 'text.txt'):\n    pass\n",
            REFUSED, "text.txt"),
    _python("a recorder whose folder is empty text",
            "with tfasr.Recorder(''):\n    pass\n", REFUSED,
            "run_dir"),
    _python("a recorder whose folder's name has a zero byte",
            "with tfasr.Recorder('a\\0b'):\n    pass\n", REFUSED,
            "run_dir"),
    _python("a recorder whose folder is a number", "tfasr.Recorder(5)\n", REFUSED, "run_dir"),
    _python("load_run of a missing folder",
            _refused("tfasr.load_run(place / 'no')"), DONE, "refused"),
    _python("load_run of a text file", "tfasr.load_run(place / 'mine' / 'text.txt')\n", REFUSED,
            "text.txt"),
    _python("time_to_accuracy of a target that is not a number",
            "tfasr.load_run(world / 'recorded').time_to_accuracy("
            "cer='low')\n", REFUSED, "cer"),
    _python("report of a number", _refused("tfasr.report([5])"), DONE, "refused"),
    _python("report of an empty list", "tfasr.report([])\n", REFUSED, "run"),
    _python("compare of an empty list", "tfasr.compare([])\n", REFUSED, "run"),
    _python("count_errors of unequal lists", "try:\n    tfasr.count_errors(['a'], [])\nexcept "
            "ValueError as error:\n    print(error)\n", DONE, "1"),
    _python("an alphabet without characters", _refused("tfasr.Alphabet('')"), DONE, "refused"),
    _python("a decoder with a negative beam width", _refused("tfasr.DecoderConfig(name="
            "'beam', beam_width=-1)"), DONE, "beam_width"),
    _python("evaluate of a missing split", "tfasr.evaluate(run_dir=world / 'run', split='no')"
            "\n", REFUSED, "no"),
    _python("load_recogniser of a folder without a model",
            "tfasr.load_recogniser(place / 'mine')\n", REFUSED,
            "mine"),
    _python("load_recogniser with a checkpoint of an export",
            "tfasr.load_recogniser(world / 'export', checkpoint='last')\n", REFUSED, "checkpoint"),
    _python("samples of two dimensions", "r = tfasr.load_recogniser(world / 'export')\n"
            + _refused("r.transcribe([[0.0]])"), DONE, "refused"),
    _python("transcribe of NaN", "import numpy\nr = tfasr.load_recogniser(world / 'export')\n"
            "try:\n    print(repr(r.transcribe(numpy.full(16000, numpy.nan, 'float32')).text))\n"
            "except ValueError as error:\n    print('refused', error)\n", DONE, "refused"),
    _python("load_plugin of a missing module",
            "tfasr.load_plugin('no_such_module_at_all')\n", REFUSED,
            "no_such_module_at_all"),
    _python("open_split of a file", "tfasr.open_split(world / 'words.txt', 'train')\n", REFUSED,
            "words.txt"),
    _python("read_events of a missing folder",
            _refused("tfasr.read_events(place / 'no')"), DONE, "refused"),
]  # fmt: skip

SHELLS = rows(
    "a shell",
    ("watch | head -1", "tfasr watch {run} {recorded} {run} --every_s 1 | head -1", (0, 141)),
    ("watch into a closed pipe", "tfasr watch --once {run} {recorded} | true", (0, 1, 141)),
    ("report into a closed pipe", "tfasr report {run} {recorded} --force | true", (0, 1, 141)),
    ("history into a closed pipe", "tfasr report {w} --history --force --target cer=0.9 | true",
     (0, 1, 3, 141)),
    ("doctor into a closed pipe", "tfasr doctor | true", (0, 1, 141)),
    ("--help into a closed pipe", "tfasr --help | true", (0, 1, 141)),
    ("transcribe into a closed pipe", "tfasr transcribe {wav} --run_dir {export} | true",
     (0, 1, 141)),
    ("report to a closed output", "tfasr report {run} >&-", (0, 1)),
    ("report to a full disk", "tfasr report {run} > /dev/full", (1,), "full"),
    ("watch to a full disk", "tfasr watch --once {run} > /dev/full", (1,), "full"),
    ("transcribe to a full disk", "tfasr transcribe {wav} --run_dir {export} > /dev/full", (1,),
     "full"),
    ("--help to a full disk", "tfasr --help > /dev/full", (0, 1, 120)),
    ("errors to a closed output", "tfasr report {p}/no 2>&-", (1, 2)),
    ("a locale without UTF-8", "LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii tfasr report {run}",
     DONE),
    ("no home", "env -u HOME tfasr report {run}", DONE),
    ("no path", "PATH= tfasr report {run}", DONE),
    ("a terminal of no columns", "COLUMNS=0 LINES=0 tfasr report {run}", DONE),
    ("a terminal of one column", "COLUMNS=1 tfasr report {run}", DONE),
    ("a terminal of -5 columns", "COLUMNS=-5 tfasr watch --once {run}", DONE),
    ("a terminal whose width is not a number", "COLUMNS=wide tfasr report {run}", DONE),
    ("a temporary folder that is missing", "TMPDIR={p}/no tfasr report {run} --out {p}/o",
     (0, 1, 2)),
    ("a working directory that is gone", "mkdir gone; cd gone; rmdir ../gone; tfasr report {run}",
     (0, 1, 2)),
    ("few file descriptors", "ulimit -n 12; tfasr report {run}", (0, 1, 2)),
    ("a file size limit of 0", "ulimit -f 0; tfasr report {run} --out {p}/o", (1, 2, 153)),
    ("a file size limit of 8 KiB", "ulimit -f 8; tfasr ngram --shard_dir {shards} --out {p}/a.arpa",
     (0, 1, 2, 153)),
    ("a processor time limit of 1 s", "ulimit -t 1; tfasr --help", (0, 137, 152)),
    ("a broken TF_CONFIG without --cluster", "TF_CONFIG='{{' tfasr report {run}", DONE),
    ("TF_CONFIG that is a list", f"TF_CONFIG='[]' tfasr {TRAIN} --cluster tf_config", REFUSED,
     "TF_CONFIG"),
    ("TF_CONFIG of 9000 workers", "export TF_CONFIG=$(python3 -c \"import json; print(json."
     "dumps({'cluster': {'worker': ['h:1'] * 9000}, 'task': {'type': 'worker', 'index': 0}}))\"); "
     f"tfasr {TRAIN} --cluster tf_config", REFUSED, "address"),
    ("an unknown instruction set", f"TFASR_INSTRUCTION_SET=z80 tfasr {DRY}", (0, 2)),
    ("a thread count that is not a number",
     f"TF_NUM_INTRAOP_THREADS=many tfasr {DRY}", (0, 1, 2)),
    ("an unknown Keras backend", f"KERAS_BACKEND=abacus tfasr {DRY}", (0, 1, 2),),
    ("no command", "tfasr ", REFUSED, "usage"),
    ("a misspelt command", "tfasr raport x", REFUSED, "report"),
    ("a misspelt flag", "tfasr report {run} --uot x", REFUSED, "--out"),
    ("a flag given twice", "tfasr report {run} --out {p}/a --out {p}/b --format json", DONE),
    ("a flag as a value", "tfasr report {run} --out --force", REFUSED, "--out"),
    ("an argument of 200 kB", "tfasr report $(head -c 100000 /dev/zero | tr '\\0' a)", REFUSED),
    ("an argument that isn't UTF-8", "tfasr report $'\\xff\\xfe'", REFUSED),
    ("an argument of terminal escapes", "tfasr report $'\\x1b[2J'", REFUSED),
    ("samples of an odd number of bytes", "printf 'abc' | tfasr transcribe - --run_dir {export}",
     (0, 1)),
    ("no samples", "true | tfasr transcribe - --run_dir {export}", (0, 1)),
    ("a text file as samples", "cat {words} | tfasr transcribe - --run_dir {export}", (0, 1)),
    ("--stream with a model that needs whole recordings", "tfasr transcribe {wav} --run_dir "
     "{export} --stream", (0, 2)),
    ("transcribe stopped by SIGINT", "sleep 9 | timeout -s INT 4 "
     "tfasr transcribe - --run_dir {export}", (0, 1, 124, 130)),
    kind=SHELL,
)  # fmt: skip

CLUSTERS = rows(
    "a cluster",
    ("a rank without a cluster", f"{TRAIN} --rank 0", REFUSED, "--cluster"),
    ("a rank of 10^20", f"{TRAIN} --cluster a:1,b:2 --rank 1{'0' * 20}", REFUSED, "rank"),
    ("a negative rank", f"{TRAIN} --cluster a:1,b:2 --rank -1", REFUSED, "rank"),
    ("a cluster without a rank", f"{TRAIN} --cluster a:1,b:2", REFUSED, "--rank"),
    ("an address twice", f"{TRAIN} --cluster a:1,a:1 --rank 0", REFUSED, "a:1"),
    ("an empty address", f"{TRAIN} --cluster a:1, --rank 0", REFUSED, "HOST:PORT"),
    ("port 0", f"{TRAIN} --cluster a:0,b:2 --rank 0", REFUSED, "port"),
    ("port 99999", f"{TRAIN} --cluster a:99999,b:2 --rank 0", REFUSED, "port"),
    ("a URL", f"{TRAIN} --cluster http://a:1,b:2 --rank 0", REFUSED, "HOST:PORT"),
    ("a cluster that is neither addresses nor a scheduler",
     f"{TRAIN} --cluster here", REFUSED, "--cluster"),
    ("slurm without slurm", f"{TRAIN} --cluster slurm", REFUSED, "srun"),
    ("TF_CONFIG that is missing", f"{TRAIN} --cluster tf_config", REFUSED, "TF_CONFIG"),
    ("launch without a command", "launch -n 2", REFUSED, "train"),
    ("launch of another command", "launch -n 2 -- report {run}", REFUSED, "train"),
    ("launch with a rank", "launch -n 2 -- train --rank 1", REFUSED, "--rank"),
    ("launch of train with an unknown flag",
     "launch -n 2 -- train --no_such_flag", (1, 2), "required"),
)  # fmt: skip


def _get(
    path: bytes, *headers: bytes, method: bytes = b"GET", body: bytes = b""
) -> bytes:
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: 127.0.0.1:PORT", *headers]
    return b"\r\n".join([*lines, b"", body])


def _post(
    body: bytes, *headers: bytes, path: bytes = b"/transcribe?name=a.wav"
) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return _get(path, length, *headers, method=b"POST", body=body)


REQUESTS = [
    Case(f"a request: {name}", content, statuses, tuple(facts), kind=HTTP)
    for name, content, statuses, *facts in (
        ("the page", _get(b"/"), (200,), "nosniff"),
        ("a good recording", _post(wav(seconds=1)), (200,)),
        ("another site's Host", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", (403,)),
        ("no Host", b"GET / HTTP/1.1\r\n\r\n", (400, 403)),
        ("two Hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n", (400, 403)),
        ("another site's Origin", _get(b"/", b"Origin: http://evil.example"), (403,)),
        ("Origin null", _get(b"/", b"Origin: null"), (403,)),
        ("a path above the page", _get(b"/../../etc/passwd"), (400, 404)),
        ("an escaped path above the page", _get(b"/%2e%2e/%2e%2e/etc/passwd"), (400, 404)),
        ("a page that is missing", _get(b"/no"), (404,)),
        ("an unknown method", _get(b"/", method=b"BREW"), (400, 405)),
        ("DELETE", _get(b"/", method=b"DELETE"), (405,)),
        ("a recording by GET", _get(b"/transcribe"), (405,)),
        ("no recording", _post(b""), (422,)),
        ("a text as recording", _post(b"hello"), (422,)),
        ("a truncated recording", _post(wav()[:40]), (422,)),
        ("a length that is not a number",
         _get(b"/transcribe", b"Content-Length: x", method=b"POST"),
         (400,)),
        ("a negative length", _get(b"/transcribe", b"Content-Length: -1", method=b"POST"), (400,)),
        ("a length of 10^30", _get(b"/transcribe", b"Content-Length: 1" + b"0" * 30,
                                   method=b"POST"), (400, 413)),
        ("a length beyond the limit", _get(b"/transcribe", b"Content-Length: 2000000",
                                           method=b"POST"), (413,)),
        ("two lengths", _get(b"/transcribe", b"Content-Length: 1", b"Content-Length: 2",
                             method=b"POST", body=b"ab"), (400,)),
        ("a length and chunks", _get(b"/transcribe", b"Content-Length: 3",
                                     b"Transfer-Encoding: chunked", method=b"POST",
                                     body=b"0\r\n\r\n"), (400,)),
        ("a chunk size that is not a number", _get(b"/transcribe", b"Transfer-Encoding: chunked",
                                                   method=b"POST",
                                                   body=b"zz\r\nab\r\n0\r\n\r\n"), (400,)),
        ("an unknown encoding", _post(wav(), b"Content-Encoding: magic"), (200, 400, 415)),
        ("a text sent as gzip", _post(b"hello", b"Content-Encoding: gzip"), (400,)),
        ("a header of 100 kB", _get(b"/", b"X: " + b"a" * 100_000), (400, 431)),
        ("ten thousand headers", _get(b"/", *[b"X: a"] * 10_000), (200, 400, 431)),
        ("a line of 100 kB", _get(b"/" + b"a" * 100_000), (400, 414)),
        ("HTTP 9.9", b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", (200, 400, 505)),
        ("binary", bytes(range(256)) * 4 + b"\r\n\r\n", (400,)),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n", (400,)),
        ("a stream without an upgrade", _get(b"/stream"), (400, 426)),
        ("a stream of another version", _get(b"/stream", b"Upgrade: websocket",
                                             b"Connection: Upgrade", b"Sec-WebSocket-Version: 1",
                                             b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
         (400, 426)),
        ("a stream without a key", _get(b"/stream", b"Upgrade: websocket", b"Connection: Upgrade",
                                        b"Sec-WebSocket-Version: 13"), (400, 426)),
        ("a name that leaves the folder", _post(wav(seconds=1), path=b"/transcribe?name=../../x"),
         (200,)),
        ("a name with a zero byte", _post(wav(seconds=1), path=b"/transcribe?name=a%00b"), (200,)),
        ("a name of 6 kB", _post(wav(), path=b"/transcribe?name=" + b"a" * 6000), (200, 400)),
        ("a name that isn't UTF-8", _post(wav(seconds=1), path=b"/transcribe?name=%ff"), (200,)),
        ("a rate of 4 GHz", _post(wav(rate_hz=1000).replace(
            struct.pack("<I", 1000), struct.pack("<I", 4_000_000_000), 1)), (422,)),
        ("an Expect other than 100-continue", _post(wav(), b"Expect: magic"), (400, 417)),
    )
]  # fmt: skip

CASES = [
    *EMPTY,
    *BINDINGS,
    *NUMBERS,
    *PLACES,
    *FILES,
    *CORPORA,
    *PROGRAMS,
    *SHELLS,
    *CLUSTERS,
    *REQUESTS,
]
