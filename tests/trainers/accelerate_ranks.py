"""Two ranks under Accelerate: python -m tests.trainers.accelerate_ranks FOLDER

Each writes down what came. A program of its own, because Accelerate settles once how many ranks there are.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import debug_launcher

from dataloader._torch.supervising import base_of
from dataloader.accelerate import Accelerator
from dataloader.torch import DataLoader
from tests.trainers.training import Noisy, deaths


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(24))


def loader_of(dataset: Any, **arguments: Any) -> Any:
    return DataLoader(
        dataset, batch_size=4, num_workers=1, seed=5, multiprocessing_context="fork", **arguments
    )


def run(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(loader_of(Noisy(fatal=7, once=folder / "once"), shuffle=True))
    stream = accelerator.prepare(loader_of(Stream()))
    told = {
        "samples": [index for batch in loader for index in batch["index"].tolist()],
        "deaths": deaths(base_of(loader)),
        "stream": [index for batch in stream for index in batch.tolist()],
        "left": [index for batch in accelerator.skip_first_batches(stream, 1) for index in batch.tolist()],
    }
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    debug_launcher(partial(run, Path(sys.argv[1])), num_processes=2)
