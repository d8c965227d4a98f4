"""The JPEG work where again and again a worker is killed, as the kernel does it when memory runs out."""

from __future__ import annotations

from benchmarks.works import Work
from benchmarks.works.jpeg import Photos

WORKS = (Work("jpeg-killed", lambda length, _: Photos(length), batch_size=32, batches=100, kill_every_s=0.5),)
