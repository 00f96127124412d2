"""Trains the small detector on scenes of handwritten digits.

    python -m examples.detector.train

A minute or two on one core. Writes `weights.safetensors` beside this file. Its digits are those
that the sample network was trained on; the ones that it is judged by were held out before.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from examples.detector.network import STRIDE, Detector
from examples.detector.scenes import Scenes, drawn
from examples.digits.train import EVALUATION, SEED, load_images

HERE = Path(__file__).parent
SCENES, EPOCHS, BATCH = 4096, 12, 64
PEAK_LEARNING_RATE = 4e-3
MIDDLE = 0.25  # places so near to a box's middle, in its size, are its own


def targets(net: Detector, scenes: Scenes) -> tuple[torch.Tensor, torch.Tensor]:
    """How far boxes reach from each place in steps of the grid, [N, 4, 8, 8], and the classes
    there, [N, 8, 8], -1 where no digit's middle is near."""
    x, y = net.places.numpy()
    reach = np.zeros((len(scenes.boxes), 4, *x.shape), np.float32)
    kinds = np.full((len(scenes.boxes), *x.shape), -1)
    for i, (boxes, labels) in enumerate(zip(scenes.boxes, scenes.labels, strict=True)):
        for (left, top, right, bottom), label in zip(boxes, labels, strict=True):
            across = np.abs(x - (left + right) / 2)
            down = np.abs(y - (top + bottom) / 2)
            own = (across <= MIDDLE * (right - left)) & (down <= MIDDLE * (bottom - top))
            own |= (across <= STRIDE / 2) & (down <= STRIDE / 2)
            sides = np.stack([x - left, y - top, right - x, bottom - y]) / STRIDE
            reach[i][:, own], kinds[i][own] = sides[:, own], label
    return torch.from_numpy(reach), torch.from_numpy(kinds)


def loss_of(
    net: Detector, images: torch.Tensor, reach: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Focal loss of the classes, and the distance to what boxes reach where there are digits."""
    found, logits = net.heads(images)
    there = kinds >= 0
    wanted = F.one_hot(kinds.clamp(min=0), 10).movedim(3, 1) * there[:, None]
    wrong = F.binary_cross_entropy_with_logits(logits, wanted.float(), reduction="none")
    classes = ((1 - torch.exp(-wrong)) ** 2 * wrong).sum()
    sides = F.smooth_l1_loss(found, reach, reduction="none", beta=0.1).sum(1)[there].sum()
    return (classes + sides) / there.sum()


def train(net: Detector, scenes: Scenes) -> None:
    reach, kinds = targets(net, scenes)
    optimizer = torch.optim.AdamW(net.parameters(), PEAK_LEARNING_RATE, weight_decay=0.01)
    steps = len(scenes.images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=EPOCHS * steps
    )
    generator, start = torch.Generator().manual_seed(SEED), time.monotonic()
    for epoch in range(1, EPOCHS + 1):
        order, total = torch.randperm(len(scenes.images), generator=generator), 0.0
        for pick in order[: steps * BATCH].split(BATCH):
            loss = loss_of(net, scenes.images[pick], reach[pick], kinds[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.monotonic() - start
        print(f"epoch {epoch:2d}/{EPOCHS}  loss {total / steps:.4f}  {seconds:.0f} s", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    images, labels = load_images()
    learned = np.random.default_rng(SEED).permutation(len(images))[EVALUATION:]
    scenes = drawn(images[learned, 0], labels[learned], SCENES, SEED)
    net = Detector().train()
    train(net, scenes)
    save_file(net.eval().state_dict(), HERE / "weights.safetensors")


if __name__ == "__main__":
    main()
