"""A PyTorch program that trains on AN4, recorded: docs/tutorial_own_loop.md."""

import csv
import sys
from pathlib import Path

import soundfile
import torch
from torch import nn

import tfasr
from tfasr.alphabet import normalise

LETTERS = "-' abcdefghijklmnopqrstuvwxyz"  # the blank first
MEL, STRIDE = 80, 4


def mel_filters(bins=257, rate=16000):
    mel = torch.linspace(
        0, 2595 * torch.log10(torch.tensor(1 + rate / 2 / 700)), MEL + 2
    )
    edges = 700 * (10 ** (mel / 2595) - 1) / (rate / 2) * (bins - 1)
    low, peak, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    k = torch.arange(bins)
    return torch.minimum((k - low) / (peak - low), (high - k) / (high - peak)).clamp(
        min=0
    )


def load(name):
    filters, window = mel_filters(), torch.hann_window(512)
    with Path(f"an4/splits/{name}.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    data = []
    for row in rows:
        audio = torch.from_numpy(
            soundfile.read(f"an4/{row['path']}", dtype="float32")[0]
        )
        power = (
            torch.stft(audio, 512, 160, window=window, return_complex=True).abs() ** 2
        )
        mel = (filters @ power + 1e-6).log().T
        text = normalise(row["text"])  # as `tfasr prepare` writes texts
        data.append(((mel - mel.mean(0)) / mel.std(0), text, len(audio) / 16000))
    return sorted(data, key=lambda item: len(item[0]))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MEL, 128, 11, stride=STRIDE, padding=5)
        self.lstms = nn.ModuleList(
            nn.LSTM(size, 96, bidirectional=True, batch_first=True)
            for size in (128, 192)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in (128, 192, 192))
        self.out = nn.Linear(192, len(LETTERS))
        nn.init.zeros_(self.out.weight)

    def forward(self, mel):
        x = self.norms[0](self.conv(mel.transpose(1, 2))).relu()
        for lstm, norm in zip(self.lstms, self.norms[1:], strict=True):
            x = norm(lstm(x.transpose(1, 2))[0].transpose(1, 2))
        return self.out(x.transpose(1, 2)).log_softmax(-1)


def batch_of(items):
    mel = nn.utils.rnn.pad_sequence([item[0] for item in items], batch_first=True)
    labels = [torch.tensor([LETTERS.index(c) for c in item[1]]) for item in items]
    frames = torch.tensor([(len(item[0]) - 1) // STRIDE + 1 for item in items])
    return mel, torch.cat(labels), frames, torch.tensor([len(one) for one in labels])


@torch.no_grad()
def transcribe(model, data):
    model.eval()
    texts = []
    for mel, *_ in data:
        best = model(mel[None])[0].argmax(-1).unique_consecutive()
        texts.append("".join(LETTERS[i] for i in best if i))
    model.train()
    return [" ".join(text.split()) for text in texts]


def main(run_dir, epochs=16):
    train, dev = load("train"), load("dev")
    batches = [train[i : i + 8] for i in range(0, len(train), 8)]
    torch.manual_seed(1)
    with tfasr.Recorder(
        run_dir,
        train_samples=len(train),
        targets=["cer=0.15"],
        comparable_with="runs/tfasr",
        seed=1,
    ) as run:  # the clock starts: the model is created now
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        steps = epochs * len(batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 3e-3, steps, pct_start=0.05
        )
        parts = model, optimizer, schedule
        if run.steps_done:  # an interrupted run: load your checkpoint
            for part, state in zip(parts, torch.load(f"{run_dir}.pt"), strict=True):
                part.load_state_dict(state)
        for _ in range(run.epochs_done, epochs):
            run.epoch()
            for i in torch.randperm(len(batches)).tolist():
                mel, labels, frames, lengths = batch_of(
                    batches[i]
                )  # booked as waiting for input
                seconds = sum(item[2] for item in batches[i])
                with run.step(utterances=len(mel), audio_s=seconds) as step:
                    scores = model(mel).transpose(0, 1)
                    loss = nn.functional.ctc_loss(
                        scores, labels, frames, lengths, zero_infinity=True
                    )
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 20)
                    optimizer.step()
                    schedule.step()
                    step.loss = loss.item()
            with run.evaluation() as e:
                e.score([text for _, text, _ in dev], transcribe(model, dev))
            with run.saving():
                torch.save([part.state_dict() for part in parts], f"{run_dir}.pt")
            print(
                f"epoch {run.epochs_done}: CER {100 * e.scores['cer']:.1f} %",
                flush=True,
            )
            if run.targets_met:
                break


main(sys.argv[1])
