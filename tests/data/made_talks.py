"""Long recordings of words of tones, and lists of their segments as many toolkits write them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from tests.tones import LETTERS, RATE_HZ, tone

PAUSE_S = 0.37
NUM_TALKS = 3
PER_TALK = 8


@dataclass(frozen=True)
class Spoken:
    talk: str
    begin_s: float
    end_s: float
    text: str

    @property
    def id(self) -> str:
        return f"{self.talk}-channel0-{self.begin_s:.3f}-{self.end_s:.3f}"

    @property
    def duration_s(self) -> float:
        return round(self.end_s - self.begin_s, 6)


def made_talks(folder: Path, name: str = "talk", form: str = "sph") -> list[Spoken]:
    """Writes three long recordings of words of tones, with pauses; returns what is said."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(name))
    spoken = []

    for number in range(NUM_TALKS):
        pieces = []
        at = 0
        for word in range(PER_TALK):
            text = "".join(rng.choice(list(LETTERS), 3 + word % 3))
            pause = 0.01 * rng.normal(size=round((PAUSE_S + 0.1 * word) * RATE_HZ))
            samples = np.concatenate([tone(letter, rng) for letter in text])
            at += len(pause)
            begin_s = round(at / RATE_HZ, 3)
            at += len(samples)
            spoken.append(
                Spoken(f"{name}{number}", begin_s, round(at / RATE_HZ, 3), text)
            )
            pieces += [pause, samples]

        options = {"format": "NIST", "subtype": "PCM_16"} if form == "sph" else {}
        path = folder / f"{name}{number}.{form}"
        soundfile.write(path, np.concatenate(pieces), RATE_HZ, **options)

    return spoken


def put(path: Path, *lines: str | dict) -> None:
    """Writes lines, of which objects become JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")


def write_lists(folder: Path, spoken: list[Spoken], split: str) -> None:
    """Writes the same segments as TED-LIUM's STM, Kaldi, NeMo, lhotse and a tsv."""
    names = {"train": "train", "validation": "dev"}
    audio = folder / names[split] / "sph"
    talks = sorted({s.talk for s in spoken})

    for talk in talks:
        of_talk = [s for s in spoken if s.talk == talk]
        put(
            folder / names[split] / "stm" / f"{talk}.stm",
            ";; a comment",
            *(
                f"{s.talk} 1 {talk} {s.begin_s} {s.end_s} <o,f0,male> {s.text}"
                for s in of_talk
            ),
            f"{talk} 1 inter_segment_gap 0 0.2 <o,,> ignore_time_segment_in_scoring",
        )

    kaldi = folder / "kaldi" / names[split]
    put(kaldi / "wav.scp", *(f"{talk} {audio / talk}.sph" for talk in talks))
    put(kaldi / "segments", *(f"{s.id} {s.talk} {s.begin_s} {s.end_s}" for s in spoken))
    put(kaldi / "text", *(f"{s.id} {s.text}" for s in spoken))
    put(kaldi / "utt2spk", *(f"{s.id} {s.talk}" for s in spoken))
    rows = [
        {
            "audio_filepath": f"{audio / s.talk}.sph",
            "offset": s.begin_s,
            "duration": s.duration_s,
            "text": s.text,
            "speaker": s.talk,
            "id": s.id,
        }
        for s in spoken
    ]
    put(folder / f"{split}.json", *rows)
    cuts = []

    for s in spoken:
        whole_s = soundfile.info(audio / f"{s.talk}.sph").duration
        source = {"type": "file", "channels": [0], "source": f"{audio / s.talk}.sph"}
        recording = {
            "id": s.talk,
            "sources": [source],
            "duration": whole_s,
            "channel_ids": [0],
        }
        supervision = {
            "id": f"sup-{s.id}",
            "start": 0,
            "duration": s.duration_s,
            "text": s.text,
        }
        cuts.append(
            {
                "id": s.id,
                "type": "MonoCut",
                "start": s.begin_s,
                "duration": s.duration_s,
                "channel": 0,
                "supervisions": [supervision | {"speaker": s.talk}],
                "recording": recording,
            }
        )

    put(folder / f"{split}.jsonl", *cuts)
    put(
        folder / f"{split}.tsv",
        "path\tspeaker\tbegin\tend\tchannel\ttext",
        *(
            f"{audio / s.talk}.sph\t{s.talk}\t{s.begin_s}\t{s.end_s}\t0\t{s.text}"
            for s in spoken
        ),
    )
