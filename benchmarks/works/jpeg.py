"""The real thing: decode, random resized crop, flip and normalise, as for training on ImageNet."""

from __future__ import annotations

import io
import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.works import Work

_SIDE_PX = 224
_PHOTO_PX = (500, 375)
_DISTINCT = 61
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)


class Photos:
    """Photo-like JPEGs held in memory, decoded and augmented anew for each sample."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._files = [_photo(seed) for seed in range(_DISTINCT)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        # Drawn from the index alone, so that every loader has to come to the same bytes.
        rng = random.Random(index)
        photo = Image.open(io.BytesIO(self._files[index % _DISTINCT])).convert("RGB")
        box = _random_box(rng, *photo.size)
        crop = photo.resize((_SIDE_PX, _SIDE_PX), Image.Resampling.BILINEAR, box=box)
        if rng.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return _normalise(crop)


def _random_box(rng: random.Random, width: int, height: int) -> tuple[float, float, float, float]:
    area = width * height * rng.uniform(0.08, 1.0)
    aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    box_width = min(width, math.sqrt(area * aspect))
    box_height = min(height, math.sqrt(area / aspect))
    left = rng.uniform(0, width - box_width)
    top = rng.uniform(0, height - box_height)
    return left, top, left + box_width, top + box_height


def _normalise(image: Image.Image) -> NDArray[np.float32]:
    pixels = np.asarray(image, np.float32)
    pixels = (pixels - 255 * _MEAN) / (255 * _STD)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _photo(seed: int) -> bytes:
    """Noise that is alike at every scale, and has colour only at the large ones, as photographs are."""
    rng = np.random.default_rng(seed)
    pixels = 128 + 40 * rng.standard_normal((6, 8, 3), np.float32)
    while len(pixels) < _PHOTO_PX[1]:
        pixels = np.stack([_doubled(pixels[:, :, channel]) for channel in range(3)], axis=-1)
        pixels += 10 * rng.standard_normal((*pixels.shape[:2], 1), np.float32)
    file = io.BytesIO()
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).crop((0, 0, *_PHOTO_PX))
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def _doubled(layer: NDArray[np.float32]) -> NDArray[np.float32]:
    image = Image.fromarray(layer)
    return np.asarray(image.resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC))


WORKS = (Work("jpeg", lambda length, _: Photos(length), batch_size=32, batches=40),)
