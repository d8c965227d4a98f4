"""Lightning and Fabric make a loader anew from its signature: it stays ours, with all its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

from dataloader import RestartPolicy  # noqa: E402
from dataloader.torch import DataLoader  # noqa: E402
from tests.trainers.training import Classifier, Noisy, deaths, equal  # noqa: E402


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A classifier under Lightning, which notes what it trains on and in which process' workers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Classifier()

    def training_step(self, batch: Any, _: int) -> Any:
        return self.model(**batch)["loss"]

    def predict_step(self, batch: Any, _: int) -> Any:
        return self.model(**batch)["logits"]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_of(folder: Path, **arguments: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    given = {**quiet, "max_epochs": 2, "accelerator": "cpu", "devices": 1, **arguments}
    return lightning.Trainer(default_root_dir=folder, enable_model_summary=False, **given)


def loader_of(dataset: Any, **arguments: Any) -> Any:
    given = {"batch_size": 4, "num_workers": 1, "seed": 5, "on_error": "skip", **arguments}
    policy = RestartPolicy(backoff=0.0)
    return DataLoader(dataset, multiprocessing_context="fork", restart=policy, **given)


def test_fit_survives_a_death(tmp_path: Path) -> None:
    def fitted(dataset: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(1)
        module, loader = Module(), loader_of(dataset, shuffle=True)
        trainer = trainer_of(tmp_path)
        trainer.fit(module, loader)
        return module.model.seen, trainer.train_dataloader

    expected, _ = fitted(Noisy())
    seen, loader = fitted(Noisy(fatal=7, once=tmp_path / "once"))
    assert deaths(loader) == 1
    assert equal(seen, expected)
    assert len(seen) == 12


def test_overfit_batches_repeats_the_same_batches(tmp_path: Path) -> None:
    module, loader = Module(), loader_of(Noisy(fatal=2, once=tmp_path / "once"), shuffle=True)
    trainer = trainer_of(tmp_path, overfit_batches=2)
    trainer.fit(module, loader)
    assert deaths(trainer.train_dataloader) == 1
    assert trainer.train_dataloader is not loader
    assert trainer.train_dataloader.on_error == "skip"
    assert len(module.model.seen) == 4


def test_predict_survives_a_death(tmp_path: Path) -> None:
    module = Module()
    expected = trainer_of(tmp_path).predict(module, loader_of(Noisy()))
    trainer = trainer_of(tmp_path)
    predicted = trainer.predict(module, loader_of(Noisy(fatal=7, once=tmp_path / "once")))
    assert equal(predicted, expected)
    loader = trainer.predict_dataloaders
    assert deaths(loader) == 1
    assert (loader.seed, loader.on_error) == (5, "skip")


def test_a_checkpoint_in_an_epoch_is_gone_on_from_exactly(tmp_path: Path) -> None:
    def fitted(steps: int, checkpoint: Path | None = None) -> list[Any]:
        torch.manual_seed(steps)
        keeper = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "at-{step}", every_n_train_steps=steps)
        trainer = trainer_of(tmp_path, max_steps=steps, callbacks=[keeper], enable_checkpointing=True)
        module, generator = Module(), torch.Generator().manual_seed(3)
        trainer.fit(module, loader_of(Noisy(), shuffle=True, generator=generator), ckpt_path=checkpoint)
        return module.model.seen

    whole = fitted(12)
    assert equal(fitted(4), whole[:4])
    assert equal(fitted(12, tmp_path / "at-step=4.ckpt"), whole[4:])


class Told(Module):
    """Tells its loader which epoch it is, as Lightning itself does not at the start of a resumed run."""

    def train_dataloader(self) -> Any:
        dataset = Noisy()
        sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0, seed=3)
        loader = loader_of(dataset, sampler=sampler)
        loader.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
        return loader


def test_a_checkpoint_from_an_epochs_end_is_gone_on_from_exactly(tmp_path: Path) -> None:
    def fitted(epochs: int, checkpoint: Path | None = None) -> list[Any]:
        keeper = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "after-{epoch}", save_top_k=-1)
        trainer = trainer_of(tmp_path, max_epochs=epochs, callbacks=[keeper], enable_checkpointing=True)
        module = Told()
        trainer.fit(module, ckpt_path=checkpoint)
        return module.model.seen

    whole = fitted(3)
    assert equal(fitted(3, tmp_path / "after-epoch=0.ckpt"), whole[6:])


def test_fabric_survives_a_death(tmp_path: Path) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    loader = loader_of(Noisy(fatal=7, once=tmp_path / "once"))
    prepared = fabric.setup_dataloaders(loader)
    model = fabric.setup(Classifier())
    for batch in prepared:
        fabric.backward(model(**batch)["loss"])
    assert deaths(prepared._dataloader) == 1
    assert len(model.module.seen) == 6


class Reporting(Module):
    """Writes down, at the end, what this rank saw and how many of its workers died."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.indices: list[int] = []

    def training_step(self, batch: Any, number: int) -> Any:
        self.indices += batch["index"].tolist()
        return super().training_step(batch, number)

    def on_train_end(self) -> None:
        loader = self.trainer.train_dataloader
        told = {"indices": self.indices, "deaths": deaths(loader), "sampler": type(loader.sampler).__name__}
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(told))


@pytest.mark.slow
def test_two_ranks_share_out_the_samples_and_survive_a_death(tmp_path: Path) -> None:
    loader = loader_of(Noisy(fatal=7, once=tmp_path / "once"), shuffle=True)
    trainer_of(tmp_path, devices=2, max_epochs=1, strategy="ddp_fork").fit(Reporting(tmp_path), loader)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sum(rank["deaths"] for rank in told) == 1
    assert [rank["sampler"] for rank in told] == ["DistributedSampler"] * 2
    assert sorted(index for rank in told for index in rank["indices"]) == list(range(24))
    assert [len(rank["indices"]) for rank in told] == [12, 12]
