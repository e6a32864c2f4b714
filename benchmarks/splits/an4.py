"""Splits AN4's training speakers: eight are held out and never used for a choice.

The presets of gin/fast were chosen by the error rates of AN4's dev speakers. To report
them on unused speakers, three women and five men, as many as in dev, were drawn from
the 66 training speakers and are no longer trained on. The lists next to this file have
the utterance ids of both parts; they don't change again.

    python benchmarks/splits/an4.py --manifest an4/splits/train.tsv --out an4_splits

writes an4_splits/train.tsv and an4_splits/untouched.tsv, rows of the manifest for
`tfasr prepare`.
"""

import argparse
import csv
import hashlib
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
SEED = 20261124
HELD_OUT = {"f": 3, "m": 5}  # a speaker's first letter is the sex


def held_out_speakers(speakers):
    """Returns the speakers to hold out, drawn by SHA-256 of the seed and the name."""
    initials = [speaker.rstrip("0123456789") for speaker in speakers]
    # mdcs and mdcs2 may be the same person, so neither is held out.
    unambiguous = [
        s
        for s, letters in zip(speakers, initials, strict=True)
        if initials.count(letters) == 1
    ]
    drawn = sorted(
        unambiguous,
        key=lambda speaker: hashlib.sha256(f"{SEED} {speaker}".encode()).digest(),
    )

    return sorted(
        speaker
        for sex, number in HELD_OUT.items()
        for speaker in [s for s in drawn if s.startswith(sex)][:number]
    )


def utterance_id(row):
    return pathlib.PurePosixPath(row["path"]).stem


def committed_ids(name):
    """Returns the fixed utterance ids of `train` or `untouched`."""
    return (FOLDER / f"an4_{name}.txt").read_text(encoding="utf-8").split()


def split(rows):
    """Returns the manifest's rows by the name of their part."""
    held_out = held_out_speakers(sorted({row["speaker"] for row in rows}))
    return {
        "train": [row for row in rows if row["speaker"] not in held_out],
        "untouched": [row for row in rows if row["speaker"] in held_out],
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--manifest",
        required=True,
        help="AN4's training utterances: columns path, speaker, text",
    )
    parser.add_argument(
        "--out", required=True, help="folder for train.tsv and untouched.tsv"
    )
    args = parser.parse_args(arguments)

    with pathlib.Path(args.manifest).open(encoding="utf-8", newline="") as manifest:
        rows = list(csv.DictReader(manifest, delimiter="\t", quoting=csv.QUOTE_NONE))

    out = pathlib.Path(args.out)

    for name, part in split(rows).items():
        if sorted(map(utterance_id, part)) != committed_ids(name):
            sys.exit(
                f"{args.manifest} has other utterances than an4_{name}.txt was made "
                "from: it needs AN4's official training set without the dev speakers "
                "(845 utterances)."
            )

        out.mkdir(parents=True, exist_ok=True)
        with (out / f"{name}.tsv").open("w", encoding="utf-8", newline="") as manifest:
            writer = csv.DictWriter(
                manifest,
                rows[0],
                delimiter="\t",
                lineterminator="\n",
                quoting=csv.QUOTE_NONE,
                quotechar=None,
            )
            writer.writeheader()
            writer.writerows(part)

        seconds = sum(float(row["seconds"]) for row in part)
        speakers = sorted({row["speaker"] for row in part})
        print(
            f"{out / name}.tsv: {len(part)} utterances, {len(speakers)} speakers, "
            f"{seconds:.0f} s"
        )


if __name__ == "__main__":
    main()
