"""Small networks on sound, text and series, as people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from network import Rows, ids, images, joined, mask, noise, waves
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

__all__ = ["OWN_SEQUENCES"]

OWN_SEQUENCES = Rows("own networks (10 to 40 lines)")
own = OWN_SEQUENCES
TIME = {0: "batch", 1: "time"}


class _Causal(nn.Module):
    def __init__(self, a: int, b: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = parametrizations.weight_norm(
            nn.Conv1d(a, b, 3, padding=self.pad, dilation=dilation)
        )
        self.conv2 = parametrizations.weight_norm(
            nn.Conv1d(b, b, 3, padding=self.pad, dilation=dilation)
        )
        self.short = nn.Conv1d(a, b, 1) if a != b else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x)[:, :, : -self.pad].contiguous())
        y = F.relu(self.conv2(y)[:, :, : -self.pad].contiguous())
        return F.relu(y + (x if self.short is None else self.short(x)))


@own("tcn", waves(64))
class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_Causal(1, 24, 1), _Causal(24, 24, 2), _Causal(24, 32, 4))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.unsqueeze(1))[:, :, -1])


@own("wavenet", waves(128))
class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 32, 1)
        self.gates = nn.ModuleList([nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(6)])
        self.keep = nn.ModuleList([nn.Conv1d(32, 32, 1) for _ in range(6)])
        self.skip = nn.ModuleList([nn.Conv1d(32, 32, 1) for _ in range(6)])
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(32, 32, 1), nn.ReLU(), nn.Conv1d(32, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        y, total = self.first(x[:, None]), 0
        for i, gate in enumerate(self.gates):
            a, b = gate(F.pad(y, (2**i, 0))).chunk(2, dim=1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total = total + self.skip[i](z)
            y = y + self.keep[i](z)
        return self.end(total)


@own("deepspeech", images(1, 40, 64, name="spectrogram"))
class DeepSpeech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            *(nn.Conv2d(1, 8, (11, 11), (2, 2), (5, 5)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20)),
            *(nn.Conv2d(8, 8, (11, 11), (2, 1), (5, 5)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20)),
        )
        self.rnn = nn.GRU(80, 64, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(128, 29)

    def forward(self, spectrogram: Tensor) -> Tensor:
        y = self.conv(spectrogram)
        b, c, f, t = y.size()
        y, _ = self.rnn(y.view(b, c * f, t).transpose(1, 2))
        return F.log_softmax(self.fc(y), dim=-1)


@own("crnn", images(1, 32, 64))
class CRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(True), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(True), nn.MaxPool2d((2, 1))),
            *(nn.Conv2d(48, 48, (4, 1)), nn.ReLU(True)),
        )
        self.lstm = nn.LSTM(48, 48, 2, bidirectional=True)
        self.head = nn.Linear(96, 37)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cnn(x).squeeze(2).permute(2, 0, 1)
        y, _ = self.lstm(y)
        return self.head(y)


@own("tacotron", joined(ids(20), noise(6, 20, name="mels")))
class Tacotron(nn.Module):
    """Cells in a loop, attending to a text that a recurrent layer has read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 48)
        self.convs = nn.ModuleList([nn.Conv1d(48, 48, 5, padding=2) for _ in range(2)])
        self.reader = nn.LSTM(48, 24, batch_first=True, bidirectional=True)
        self.pre = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.cell, self.second = nn.LSTMCell(80, 48), nn.GRUCell(96, 48)
        self.query, self.keys = nn.Linear(48, 32, bias=False), nn.Linear(48, 32, bias=False)
        self.energy = nn.Linear(32, 1, bias=False)
        self.frame, self.stop = nn.Linear(96, 20), nn.Linear(96, 1)

    def forward(self, ids: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(ids).transpose(1, 2)
        for conv in self.convs:
            x = F.relu(conv(x))
        memory, _ = self.reader(x.transpose(1, 2))
        keys = self.keys(memory)
        h = c = g = memory.new_zeros(memory.size(0), 48)
        context = memory.mean(1)
        frames, stops, maps = [], [], []
        for t in range(6):
            h, c = self.cell(torch.cat([self.pre(mels[:, t]), context], -1), (h, c))
            weights = self.energy(torch.tanh(self.query(h).unsqueeze(1) + keys)).softmax(1)
            context = (weights * memory).sum(1)
            g = self.second(torch.cat([h, context], -1), g)
            both = torch.cat([g, context], -1)
            frames.append(self.frame(both))
            stops.append(self.stop(both))
            maps.append(weights.squeeze(-1))
        return torch.stack(frames, 1), torch.cat(stops, 1), torch.stack(maps, 1)


@own("fnet", ids(24), dynamic={"ids": {0: "batch"}})
class FNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 64)
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(4)])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)]
        )
        self.head = nn.Linear(64, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for i, mlp in enumerate(self.mlps):
            mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
            x = self.norms[2 * i](x + mixed)
            x = self.norms[2 * i + 1](x + mlp(x))
        return self.head(x[:, 0])


@own("stftnet", waves(512))
class STFTNet(nn.Module):
    """The transform as a convolution with fixed sines, then a network on magnitudes."""

    def __init__(self) -> None:
        super().__init__()
        time, window = torch.arange(64.0), torch.hann_window(64)
        rates = torch.arange(33.0)[:, None] * time * (2 * math.pi / 64)
        self.register_buffer("basis", (torch.cat([rates.cos(), -rates.sin()]) * window)[:, None])
        self.conv = nn.Sequential(nn.Conv1d(33, 32, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x[:, None], (32, 32), mode="reflect")
        real, imaginary = F.conv1d(x, self.basis, stride=16).chunk(2, 1)
        size = torch.sqrt(real**2 + imaginary**2 + 1e-9)
        return self.head(self.conv(torch.log1p(size)).mean(-1))


@own("seq2seqlstm", joined(ids(12, name="source"), ids(10, name="target")))
class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.embed2 = nn.Embedding(200, 48), nn.Embedding(200, 48)
        self.encoder = nn.LSTM(48, 64, num_layers=2, batch_first=True)
        self.decoder = nn.LSTM(48, 64, num_layers=2, batch_first=True)
        self.output = nn.Linear(128, 40)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        memory, state = self.encoder(self.embed(source))
        out, _ = self.decoder(self.embed2(target), state)
        share = torch.bmm(out, memory.transpose(1, 2)).softmax(-1)
        return self.output(torch.cat([out, torch.bmm(share, memory)], -1)), share


@own("maskedpool", joined(ids(16), mask(16)))
class MaskedPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 32, padding_idx=0)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(64, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        y, _ = self.gru(self.embed(ids))
        weight = mask.unsqueeze(-1).float()
        return self.fc((y * weight).sum(1) / weight.sum(1).clamp(min=1e-6))


@own(
    "packedrnn", joined(ids(16), lambda n, g: {"lengths": torch.randint(4, 17, (n,), generator=g)})
)
class PackedRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(200, 16), nn.GRU(16, 16, batch_first=True)
        self.fc = nn.Linear(16, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embed(ids), lengths, batch_first=True, enforce_sorted=False
        )
        y, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.fc(y.mean(1))


@own("selectivescan", noise(24, 16))
class SelectiveScan(nn.Module):
    """Mamba's recurrence as a loop over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 64)
        self.conv = nn.Conv1d(32, 32, 4, groups=32, padding=3)
        self.x_proj, self.dt = nn.Linear(32, 18), nn.Linear(2, 32)
        self.a_log = nn.Parameter(torch.log(torch.arange(1.0, 9.0).repeat(32, 1)))
        self.d, self.out = nn.Parameter(torch.ones(32)), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.inner(x).chunk(2, dim=-1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :24].transpose(1, 2))
        dt, b, c = self.x_proj(u).split([2, 8, 8], dim=-1)
        dt, a = F.softplus(self.dt(dt)), -torch.exp(self.a_log)
        state, found = torch.zeros(x.shape[0], 32, 8), []
        for t in range(24):
            keep = torch.exp(dt[:, t, :, None] * a)
            state = keep * state + dt[:, t, :, None] * b[:, t, None] * u[:, t, :, None]
            found.append((state * c[:, t, None]).sum(-1))
        y = torch.stack(found, 1) + u * self.d
        return self.out(y * F.silu(gate))


@own("conformerblock", noise(24, 64), dynamic={"x": TIME})
class ConformerBlock(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.before, self.behind = self._feed(width), self._feed(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.conv_norm, self.wide = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.bn, self.narrow = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.last = nn.LayerNorm(width)

    @staticmethod
    def _feed(width: int) -> nn.Sequential:
        layers = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1))
        return nn.Sequential(*layers, nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.wide(self.conv_norm(x).transpose(1, 2)), dim=1)
        x = x + self.narrow(F.silu(self.bn(self.depth(y)))).transpose(1, 2)
        return self.last(x + 0.5 * self.behind(x))


@own("convlstm", images(2, 4, 16, 16))
class ConvLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Conv2d(2 + 8, 32, 3, padding=1), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, steps, height, width = x.shape
        h = c = torch.zeros(b, 8, height, width, device=x.device)
        for t in range(steps):
            i, f, o, g = self.gates(torch.cat([x[:, :, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)
