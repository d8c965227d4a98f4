"""The demo's dataset: JPEG files, decoded and augmented as for training an image classifier."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE_PX = 224
_SUFFIXES = (".jpg", ".jpeg")
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)
_SCALE = (1 / (255 * _STD)).reshape(3, 1, 1)
_OFFSET = (_MEAN / _STD).reshape(3, 1, 1)


class UnreadablePhotoError(ValueError):
    """A file that Pillow cannot decode; the message names it."""


class PhotoDataset:
    """Photos as normalised float32 arrays (channels, height, width), randomly cropped and flipped.

    The augmentation draws from Python's ``random``, which the loader seeds anew for every piece of a batch.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        return normalise(augment(read_photo(self.paths[index])))


def find_photos(folder: Path) -> list[Path]:
    """Every JPEG in ``folder`` and below, in an order that does not depend on the file system."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg") and path.is_file()
    )


def read_photo(path: Path) -> Image.Image:
    """Decode one file to RGB."""
    try:
        with Image.open(path) as photo:
            return photo.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadablePhotoError(f"{path} cannot be read as a JPEG: {error}") from error


def augment(photo: Image.Image) -> Image.Image:
    """A random part of the photo, resized to a square, and mirrored half of the time."""
    part = photo.resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR, box=random_box(*photo.size))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part


def random_box(width_px: int, height_px: int) -> tuple[float, float, float, float]:
    """A box of 8 to 100 % of the area and an aspect ratio of 3:4 to 4:3, cut down to fit."""
    area_px = random.uniform(0.08, 1.0) * width_px * height_px
    aspect = random.uniform(3 / 4, 4 / 3)
    box_width = min(float(width_px), (area_px * aspect) ** 0.5)
    box_height = min(float(height_px), (area_px / aspect) ** 0.5)
    left = random.uniform(0, width_px - box_width)
    top = random.uniform(0, height_px - box_height)
    return left, top, left + box_width, top + box_height


def normalise(photo: Image.Image) -> npt.NDArray[np.float32]:
    """ImageNet's mean and deviation, channels first."""
    pixels = np.ascontiguousarray(np.asarray(photo).transpose(2, 0, 1))
    return pixels * _SCALE - _OFFSET
