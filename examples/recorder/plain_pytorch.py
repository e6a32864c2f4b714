"""Your own PyTorch loop, recorded: letters as noisy frames, recognised by CTC.

Run ``python examples/recorder/plain_pytorch.py runs/letters``, then ``tfasr report
runs/letters``.

Interrupt it and start it again: it continues from its checkpoint, and the report shows
lost work.
"""

import sys

import torch

import tfasr

LETTERS = "-abcdefgh"  # the blank first, as torch.nn.CTCLoss has it
FRAMES = 4  # per letter


def spoken(count: int, seed: int) -> tuple[list[str], torch.Tensor]:
    """Returns words of five letters, and their noisy frames ``(count, classes, frames)``."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, len(LETTERS), (count, 5), generator=random)
    frames = (
        torch.nn.functional.one_hot(ids, len(LETTERS))
        .repeat_interleave(FRAMES, 1)
        .float()
    )
    words = ["".join(LETTERS[i] for i in row) for row in ids.tolist()]
    return words, (
        frames + 0.4 * torch.randn(frames.shape, generator=random)
    ).transpose(1, 2)


def transcribe(model: torch.nn.Module, frames: torch.Tensor) -> list[str]:
    """Returns the model's best letters, without repeats and blanks."""
    best = model(frames).argmax(1).tolist()
    labels = [
        [i for n, i in enumerate(row) if i and (n == 0 or i != row[n - 1])]
        for row in best
    ]
    return ["".join(LETTERS[i] for i in row) for row in labels]


def main(run_dir: str, epochs: int = 30) -> None:
    """Trains, or continues."""
    (words, frames), (references, unheard) = spoken(512, seed=1), spoken(64, seed=2)
    labels = torch.tensor(
        [[LETTERS.index(letter) for letter in word] for word in words]
    )
    torch.manual_seed(0)
    with tfasr.Recorder(run_dir, train_samples=512, targets=["cer=0.2"], seed=0) as run:
        model = torch.nn.Sequential(
            torch.nn.Conv1d(len(LETTERS), 64, 9, padding=4),
            torch.nn.ReLU(),
            torch.nn.Conv1d(64, len(LETTERS), 1),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if run.steps_done:
            for part, state in zip(
                (model, optimizer), torch.load(f"{run_dir}.pt"), strict=True
            ):
                part.load_state_dict(state)

        for _ in range(run.epochs_done, epochs):
            run.epoch()
            for batch in torch.randperm(512).split(32):
                with run.step(utterances=len(batch)) as step:
                    scores = model(frames[batch]).log_softmax(1).permute(2, 0, 1)
                    lengths = (
                        torch.full((len(batch),), len(scores)),
                        torch.full((len(batch),), 5),
                    )
                    step.loss = torch.nn.functional.ctc_loss(
                        scores, labels[batch], *lengths
                    )
                    optimizer.zero_grad()
                    step.loss.backward()
                    optimizer.step()

            with run.evaluation() as e:
                e.score(references, transcribe(model, unheard))
            with run.saving():
                torch.save(
                    (model.state_dict(), optimizer.state_dict()), f"{run_dir}.pt"
                )
            print(f"epoch {run.epochs_done}: CER {100 * e.scores['cer']:.1f} %")
            if run.targets_met:
                break


if __name__ == "__main__":
    main(sys.argv[1])
