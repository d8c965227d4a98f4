"""The images work for a user who collates with numpy, whichever the loader."""

from __future__ import annotations

import numpy as np

from benchmarks.works import AsArray, Work
from benchmarks.works.images import ReadyImages


def _numpy_images(length: int, _: AsArray) -> ReadyImages:
    return ReadyImages(length, np.asarray)


WORKS = (
    Work("images-collate", _numpy_images, batch_size=32, batches=100, collate_fn=np.stack, floor="copy"),
)
