"""Detectors: torchvision's, whole and without what selects boxes, and YOLOs written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from network import Inputs, Network, Rows, images, torchvision
from torch import Tensor, nn

__all__ = ["DETECTION", "YOLOV5_SLICES"]

DETECTION = Rows("detection")
_LIGHT = {"weights": None, "weights_backbone": None}


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision().models.detection, name)(**_LIGHT, **options)


class BackboneAndHead(nn.Module):
    """What a person quantizes of a detector: all before boxes are selected."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        found = build()
        self.backbone = found.backbone
        self.head = found.rpn.head if hasattr(found, "rpn") else found.head

    def forward(self, x: Tensor) -> Any:
        return self.head(list(self.backbone(x).values()))


class RoiHead(nn.Module):
    """The second stage of Faster R-CNN, on regions that were cut out already."""

    def __init__(self) -> None:
        super().__init__()
        found = torchvision().models.detection.faster_rcnn
        self.head, self.predictor = found.TwoMLPHead(256 * 49, 256), found.FastRCNNPredictor(256, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictor(self.head(x))


def _of_a_list(size: int) -> Inputs:
    """A list of images, as torchvision's detectors are called."""

    def made(count: int, generator: torch.Generator) -> Any:
        return {"images": list(images(3, size, size)(count, generator)["x"])}

    return made


def _whole(name: str, size: int, **options: Any) -> Network:
    return Network(DETECTION.group, _vision(name, **options), images(3, size, size, name="images"))


def _head(name: str, size: int, **options: Any) -> Network:
    build = _vision(name, **options)
    return Network(DETECTION.group, lambda: BackboneAndHead(build), images(3, size, size))


class Conv(nn.Module):
    def __init__(self, a: int, b: int, k: int = 1, s: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(a, b, k, s, k // 2, bias=False)
        self.bn, self.act = nn.BatchNorm2d(b, eps=1e-3), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, width: int, add: bool, first: int = 3) -> None:
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(width, width, first), Conv(width, width, 3), add

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C3(nn.Module):
    def __init__(self, a: int, b: int, n: int = 1, add: bool = True) -> None:
        super().__init__()
        self.cv1, self.cv2, self.cv3 = Conv(a, b // 2), Conv(a, b // 2), Conv(b, b)
        self.m = nn.Sequential(*[Bottleneck(b // 2, add, 1) for _ in range(n)])

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), dim=1))


class C2f(nn.Module):
    def __init__(self, a: int, b: int, n: int = 1, add: bool = True) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(a, b), Conv((2 + n) * (b // 2), b)
        self.m = nn.ModuleList([Bottleneck(b // 2, add) for _ in range(n)])

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class SPPF(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(a, a // 2), Conv(2 * a, b)
        self.m = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        y = self.m(x)
        z = self.m(y)
        return self.cv2(torch.cat((x, y, z, self.m(z)), 1))


class Pyramid(nn.Module):
    """Backbone and neck; gives three levels at strides 8, 16, 32."""

    def __init__(self, block: Any, widths: tuple[int, ...] = (16, 32, 64, 96, 128)) -> None:
        super().__init__()
        a, b, c, d, e = widths
        self.stem = nn.Sequential(Conv(3, a, 6 // 2, 2), Conv(a, b, 3, 2), block(b, b))
        self.s3 = nn.Sequential(Conv(b, c, 3, 2), block(c, c, 2))
        self.s4 = nn.Sequential(Conv(c, d, 3, 2), block(d, d, 2))
        self.s5 = nn.Sequential(Conv(d, e, 3, 2), block(e, e), SPPF(e, e))
        self.t4, self.t3 = block(e + d, d, 1, False), block(d + c, c, 1, False)
        self.d3, self.b4 = Conv(c, c, 3, 2), block(c + d, d, 1, False)
        self.d4, self.b5 = Conv(d, d, 3, 2), block(d + e, e, 1, False)
        self.widths = (c, d, e)

    def forward(self, x: Tensor) -> list[Tensor]:
        p3 = self.s3(self.stem(x))
        p4 = self.s4(p3)
        p5 = self.s5(p4)
        t4 = self.t4(torch.cat([F.interpolate(p5, scale_factor=2, mode="nearest"), p4], 1))
        t3 = self.t3(torch.cat([F.interpolate(t4, scale_factor=2, mode="nearest"), p3], 1))
        b4 = self.b4(torch.cat([self.d3(t3), t4], 1))
        return [t3, b4, self.b5(torch.cat([self.d4(b4), p5], 1))]


class YOLOv5(nn.Module):
    """Three anchors a cell, decoded; joined, apart, or written into slices as old versions did."""

    ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))

    def __init__(self, form: str = "joined", classes: int = 8) -> None:
        super().__init__()
        self.form, self.no = form, classes + 5
        self.body = Pyramid(C3)
        self.m = nn.ModuleList([nn.Conv2d(w, 3 * self.no, 1) for w in self.body.widths])
        self.register_buffer("anchors", torch.tensor(self.ANCHORS).float().view(3, 1, 3, 1, 1, 2))

    def forward(self, x: Tensor) -> Any:
        boxes, scores = [], []
        for i, level in enumerate(self.body(x)):
            y = self.m[i](level)
            b, _, h, w = y.shape
            y = y.view(b, 3, self.no, h, w).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid, stride = torch.stack((columns, rows), 2).view(1, 1, h, w, 2).float(), 8 * 2**i
            if self.form == "slices":
                y[..., 0:2] = (y[..., 0:2] * 2 - 0.5 + grid) * stride
                y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors[i]
                boxes.append(y.view(b, -1, self.no))
                continue
            xy = (y[..., 0:2] * 2 - 0.5 + grid) * stride
            wh = (y[..., 2:4] * 2) ** 2 * self.anchors[i]
            box, score = torch.cat((xy, wh), -1), y[..., 4:]
            if self.form == "joined":
                boxes.append(torch.cat((box, score), -1).view(b, -1, self.no))
            else:
                boxes.append(box.reshape(b, -1, 4))
                scores.append(score.reshape(b, -1, self.no - 4))
        return (torch.cat(boxes, 1), torch.cat(scores, 1)) if scores else torch.cat(boxes, 1)


class YOLOv8(nn.Module):
    """Distances from anchor points as distributions; boxes and scores joined or apart."""

    def __init__(self, joined: bool = True, classes: int = 8, bins: int = 16) -> None:
        super().__init__()
        self.joined, self.nc, self.bins = joined, classes, bins
        self.body = Pyramid(C2f)
        w = self.body.widths
        self.cv2 = nn.ModuleList(
            nn.Sequential(Conv(c, 32, 3), Conv(32, 32, 3), nn.Conv2d(32, 4 * bins, 1)) for c in w
        )
        self.cv3 = nn.ModuleList(
            nn.Sequential(Conv(c, 32, 3), Conv(32, 32, 3), nn.Conv2d(32, classes, 1)) for c in w
        )
        self.dfl = nn.Conv2d(bins, 1, 1, bias=False).requires_grad_(False)
        self.dfl.weight.data[:] = torch.arange(bins).view(1, bins, 1, 1).float()

    def forward(self, x: Tensor) -> Any:
        found, points, strides = [], [], []
        for i, level in enumerate(self.body(x)):
            y = torch.cat((self.cv2[i](level), self.cv3[i](level)), 1)
            h, w = y.shape[-2:]
            found.append(y.flatten(2))
            rows, columns = torch.meshgrid(
                torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij"
            )
            points.append(torch.stack((columns, rows), 0).view(2, -1))
            strides.append(torch.full((1, h * w), 8.0 * 2**i))
        box, scores = torch.cat(found, 2).split((4 * self.bins, self.nc), 1)
        b, _, a = box.shape
        box = self.dfl(box.view(b, 4, self.bins, a).transpose(2, 1).softmax(1)).view(b, 4, a)
        near, far = box.chunk(2, 1)
        at, stride = torch.cat(points, 1), torch.cat(strides, 1)
        low, high = at - near, at + far
        box = torch.cat(((low + high) / 2, high - low), 1) * stride
        return torch.cat((box, scores.sigmoid()), 1) if self.joined else (box, scores.sigmoid())


class YOLOX(nn.Module):
    """The raw head: boxes, and the sigmoids of objectness and classes."""

    def __init__(self, classes: int = 8) -> None:
        super().__init__()
        self.body = Pyramid(C3)
        self.stems = nn.ModuleList([Conv(w, 48) for w in self.body.widths])
        self.cls = nn.ModuleList(
            [nn.Sequential(Conv(48, 48, 3), Conv(48, 48, 3)) for _ in range(3)]
        )
        self.reg = nn.ModuleList(
            [nn.Sequential(Conv(48, 48, 3), Conv(48, 48, 3)) for _ in range(3)]
        )
        self.to_cls = nn.ModuleList([nn.Conv2d(48, classes, 1) for _ in range(3)])
        self.to_box = nn.ModuleList([nn.Conv2d(48, 4, 1) for _ in range(3)])
        self.to_obj = nn.ModuleList([nn.Conv2d(48, 1, 1) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for i, level in enumerate(self.body(x)):
            y = self.stems[i](level)
            c, r = self.cls[i](y), self.reg[i](y)
            parts = [
                self.to_box[i](r) * 4,
                self.to_obj[i](r).sigmoid(),
                self.to_cls[i](c).sigmoid(),
            ]
            found.append(torch.cat(parts, 1).flatten(start_dim=2))
        return torch.cat(found, dim=2).permute(0, 2, 1)


class CenterNet(nn.Module):
    """Peaks of a heat map by max pooling and topk, and what stands there gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(True)),
            *(nn.Conv2d(16, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(True)),
        )
        self.heat, self.size, self.shift = (nn.Conv2d(24, n, 3, padding=1) for n in (4, 2, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.body(x)
        heat = self.heat(y).sigmoid()
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat).float()
        b, _, h, w = heat.shape
        score, at = torch.topk(heat.view(b, -1), 10)
        kind, at = at // (h * w), at % (h * w)
        both = torch.cat([self.size(y), self.shift(y)], 1).view(b, 4, -1)
        there = torch.gather(both, 2, at.unsqueeze(1).expand(-1, 4, -1))
        return score, there, kind, heat


def _yolo(build: Callable[[], nn.Module]) -> Network:
    return Network(DETECTION.group, build, images(3, 128, 128))


_SIZE = {"min_size": 128, "max_size": 128}
DETECTION.update(
    {
        "tv_ssdlite320_mnv3_whole": _whole("ssdlite320_mobilenet_v3_large", 320),
        "tv_ssdlite320_mnv3_head": _head("ssdlite320_mobilenet_v3_large", 320),
        "tv_retinanet_resnet50_whole": _whole("retinanet_resnet50_fpn", 128, **_SIZE),
        "tv_retinanet_resnet50_head": _head("retinanet_resnet50_fpn", 128),
        "tv_fcos_resnet50_head": _head("fcos_resnet50_fpn", 128),
        "tv_fasterrcnn_mnv3_whole": _whole("fasterrcnn_mobilenet_v3_large_fpn", 128, **_SIZE),
        "tv_fasterrcnn_mnv3_head": _head("fasterrcnn_mobilenet_v3_large_fpn", 128),
        "tv_maskrcnn_resnet50_whole": _whole("maskrcnn_resnet50_fpn", 128, **_SIZE),
        "tv_ssdlite320_mnv3_list": Network(
            DETECTION.group, _vision("ssdlite320_mobilenet_v3_large"), _of_a_list(320)
        ),
        "tv_roi_head": Network(DETECTION.group, RoiHead, images(256, 7, 7)),
        "yolov5": _yolo(YOLOv5),
        "yolov5_apart": _yolo(lambda: YOLOv5("apart")),
        "yolov8": _yolo(YOLOv8),
        "yolov8_apart": _yolo(lambda: YOLOv8(joined=False)),
        "yolox_raw": _yolo(YOLOX),
        "centernet": Network(DETECTION.group, CenterNet, images(3, 64, 64)),
    }
)
YOLOV5_SLICES = Network(DETECTION.group, lambda: YOLOv5("slices"), images(3, 128, 128))
