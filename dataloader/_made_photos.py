"""Photo-like JPEGs for those who have no folder of photos at hand: made once, kept in the user's cache."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

COUNT = 400
WIDTH_PX, HEIGHT_PX = 500, 375

# Part of the cache's name: photos made by other code are other photos.
_VERSION = 1

Progress = Callable[[Sequence[int]], Iterable[int]]
Pixels = npt.NDArray[np.float64]


def cached_photos(progress: Progress) -> Path:
    """The folder of made photos; ``progress`` wraps the loop that makes them where there is none yet."""
    folder = _cache_home() / "supervised-dataloader" / f"photos-v{_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            photos = Path(unfinished) / "photos"
            _make_all(photos, progress)
            _publish(photos, folder)
    return folder


def _publish(photos: Path, folder: Path) -> None:
    """Move all photos into place in one step, so that nobody ever sees a part of them."""
    try:
        photos.rename(folder)
    except OSError:
        # Another process may have been first; its photos are the same.
        if not folder.is_dir():
            raise


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _make_all(folder: Path, progress: Progress) -> None:
    folder.mkdir()
    for number in progress(range(COUNT)):
        (folder / f"{number:03}.jpg").write_bytes(make_photo(number))


def make_photo(number: int) -> bytes:
    """One JPEG with what photographs have: shading, texture at every scale, and edges."""
    rng = np.random.default_rng(number)
    pixels = _shading(rng) + _texture(rng)[:, :, None] * rng.uniform(20, 45)
    photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    _draw_shapes(photo, rng)
    jpeg = BytesIO()
    photo.save(jpeg, "JPEG", quality=int(rng.integers(85, 93)))
    return jpeg.getvalue()


def _shading(rng: np.random.Generator) -> Pixels:
    """A change from one colour to another, in a random direction."""
    rows, columns = np.mgrid[-1 : 1 : HEIGHT_PX * 1j, -1 : 1 : WIDTH_PX * 1j]
    angle = rng.uniform(0, 2 * np.pi)
    share = (1 + rows * np.sin(angle) + columns * np.cos(angle)) / 2
    start, end = rng.uniform(30, 225, (2, 3))
    pixels: Pixels = start + share[:, :, None] * (end - start)
    return pixels


def _texture(rng: np.random.Generator) -> Pixels:
    """Noise of unit variance whose amplitude falls as 1 / frequency, as in natural images."""
    spectrum = np.fft.rfft2(rng.standard_normal((HEIGHT_PX, WIDTH_PX)))
    frequency = np.hypot(np.fft.fftfreq(HEIGHT_PX)[:, None], np.fft.rfftfreq(WIDTH_PX))
    frequency[0, 0] = np.inf
    noise: Pixels = np.fft.irfft2(spectrum / frequency, s=(HEIGHT_PX, WIDTH_PX))
    noise /= noise.std()
    return noise


def _draw_shapes(photo: Image.Image, rng: np.random.Generator) -> None:
    draw = ImageDraw.Draw(photo)
    for _ in range(rng.integers(3, 9)):
        left, top = rng.uniform(0, WIDTH_PX), rng.uniform(0, HEIGHT_PX)
        box = (left, top, left + rng.uniform(20, 200), top + rng.uniform(20, 200))
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)(box, fill=colour)
