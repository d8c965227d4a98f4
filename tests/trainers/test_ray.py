"""Ray Train makes a loader anew unless its sampler is a DistributedSampler: then it stays ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ray.train.torch")

import ray  # noqa: E402
import ray.train  # noqa: E402
import ray.train.torch  # noqa: E402

from dataloader.torch import DataLoader  # noqa: E402
from tests.trainers.training import Classifier, Noisy, deaths  # noqa: E402

PROJECT = Path(__file__).parent.parent.parent


def train(settings: dict[str, Any]) -> None:
    """What each rank does."""
    folder = Path(settings["folder"])
    dataset = Noisy(fatal=7, once=folder / "once")
    sampler = torch.utils.data.DistributedSampler(dataset, seed=3)
    made = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1, multiprocessing_context="fork")
    plain = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    loader = ray.train.torch.prepare_data_loader(made)
    replaced = ray.train.torch.prepare_data_loader(plain)
    model, indices = ray.train.torch.prepare_model(Classifier()), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            model(**batch)["loss"].backward()
            indices.append(batch["index"].tolist())
    told = {
        "deaths": deaths(made),
        "indices": indices,
        "is_ours": loader._dataloader is made,
        "plain_is_ours": isinstance(replaced._dataloader, DataLoader),
    }
    (folder / f"{ray.train.get_context().get_world_rank()}.json").write_text(json.dumps(told))


@pytest.mark.slow
def test_two_ranks_share_out_the_samples_and_survive_a_death(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"folder": str(tmp_path)},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=str(tmp_path / "runs")),
        )
        trainer.fit()
    finally:
        ray.shutdown()
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sum(rank["deaths"] for rank in told) == 1
    assert all(rank["is_ours"] for rank in told)
    assert not any(rank["plain_is_ours"] for rank in told)
    for epoch in (slice(0, 3), slice(3, 6)):
        shares = [index for rank in told for batch in rank["indices"][epoch] for index in batch]
        assert sorted(shares) == list(range(24))
