"""Train the sample network and write what the quick start needs.

    python -m examples.digits.train

About a minute on two cores. Writes, beside this file, `weights.safetensors` and `eval.npz` (keys
`x`, `labels`), and `calib_data/digits/images.npz` (key `x`). The evaluation images are held out
before anything else; the calibration images are drawn from the rest, as a user would.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from examples.digits.network import digits_net

HERE = Path(__file__).parent
CALIBRATION_FILE = HERE.parents[1] / "calib_data" / "digits" / "images.npz"

SEED = 20
EVALUATION = 450  # images held out
CALIBRATION = 200  # images of the training part
EPOCHS = 40
BATCH = 64
PEAK_LEARNING_RATE = 0.1


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """All 1,797 digits in the network's input form, [N, 1, 16, 16] in 0..1, and their labels."""
    from sklearn.datasets import load_digits  # what only training needs

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)  # 8 x 8 pixels, 0..16
    images = images.repeat(2, axis=1).repeat(2, axis=2)  # each pixel becomes 2 x 2
    return images[:, None], digits.target.astype(np.int64)


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image moved by up to two pixels, in both directions, with black coming in."""
    padded = F.pad(images, (2, 2, 2, 2))
    rows, columns = torch.randint(0, 5, (2, len(images)), generator=generator)
    moved = [p[:, r : r + 16, c : c + 16] for p, r, c in zip(padded, rows, columns, strict=True)]
    return torch.stack(moved)


def train(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """Plain SGD with a one-cycle learning rate; the same weights at every run on one machine."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    net = digits_net().train()
    optimizer = torch.optim.SGD(
        net.parameters(), PEAK_LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = len(images) // BATCH  # the rest of an epoch's last batch is dropped
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=EPOCHS * steps
    )
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(images), generator=generator)
        total = 0.0
        for pick in order[: steps * BATCH].split(BATCH):
            loss = F.cross_entropy(
                net(shifted(images[pick], generator)), labels[pick], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 10 == 0:
            print(f"epoch {epoch:2d}/{EPOCHS}  loss {total / steps:.4f}")
    return net.eval()


def main() -> None:
    torch.set_num_threads(2)  # fixed: the number of threads changes the order of sums
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    images, labels = load_images()
    order = np.random.default_rng(SEED).permutation(len(images))
    held_out, training = order[:EVALUATION], order[EVALUATION:]
    calibration = training[:CALIBRATION]

    net = train(torch.from_numpy(images[training]), torch.from_numpy(labels[training]))
    with torch.no_grad():
        predicted = net(torch.from_numpy(images[held_out])).argmax(1).numpy()
    right = int((predicted == labels[held_out]).sum())
    print(f"accuracy {right}/{EVALUATION} = {right / EVALUATION:.2%}")

    save_file(net.state_dict(), HERE / "weights.safetensors")
    np.savez_compressed(HERE / "eval.npz", x=images[held_out], labels=labels[held_out])
    CALIBRATION_FILE.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(CALIBRATION_FILE, x=images[calibration])
    print(f"done in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
