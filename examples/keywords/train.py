"""Train the keyword spotter, and write its weights: python -m examples.keywords.train"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from examples.keywords.network import KeywordNet
from examples.keywords.sounds import sounds

HERE = Path(__file__).parent


def main() -> None:
    torch.manual_seed(0)
    features, labels = sounds(3000, seed=1)
    model = KeywordNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = 8 * -(-len(features) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(8):
        for batch in torch.randperm(len(features)).split(64):
            loss = nn.functional.cross_entropy(model(features[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    new, truth = sounds(400, seed=3)
    with torch.no_grad():
        right = (model.eval()(new).argmax(1) == truth).float().mean()
    print(f"top-1 on new sounds: {100 * right:.2f} %")
    save_file(model.state_dict(), HERE / "weights.safetensors")


if __name__ == "__main__":
    main()
