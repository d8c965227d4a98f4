"""The Hugging Face Trainer: its loaders are ours, and a resumed run goes on as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import TrainerCallback, TrainingArguments  # noqa: E402

from dataloader._torch.supervising import base_of  # noqa: E402
from dataloader.transformers import Trainer  # noqa: E402
from tests.trainers.training import Classifier, Noisy, deaths, equal  # noqa: E402


class Forked(Trainer):
    """Keeps its loaders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loaders: list[Any] = []

    def _supervised(self, loader: Any) -> Any:
        self.loaders.append(super()._supervised(loader))
        return self.loaders[-1]


class StopAt(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def trainer_of(folder: Path, dataset: Any, stop_at: int | None = None) -> Forked:
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        dataloader_num_workers=1,
        dataloader_multiprocessing_context="fork",
        dataloader_pin_memory=False,
        save_steps=2,
        seed=3,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    callbacks = [] if stop_at is None else [StopAt(stop_at)]
    return Forked(Classifier(), arguments, train_dataset=dataset, eval_dataset=Noisy(8), callbacks=callbacks)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: Any) -> list[Any]:
    """What the model sees in a run without a death."""
    trainer = trainer_of(tmp_path_factory.mktemp("whole"), Noisy())
    trainer.train()
    return trainer.model.seen  # type: ignore[no-any-return]


def test_training_survives_a_death(uninterrupted: list[Any], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Noisy(fatal=7, once=tmp_path / "once"))
    trainer.train()
    assert equal(trainer.model.seen, uninterrupted)
    assert len(uninterrupted) == 12
    assert not equal(uninterrupted[:6], uninterrupted[6:])
    (loader,) = trainer.loaders
    assert deaths(base_of(loader)) == 1
    assert set(trainer.evaluate()) > {"eval_loss"}
    assert deaths(base_of(trainer.loaders[-1])) == 0


@pytest.mark.parametrize("step", [2, 6, 8], ids=["in an epoch", "between two", "in the second"])
def test_a_resumed_run_goes_on_as_the_whole_one(uninterrupted: list[Any], tmp_path: Path, step: int) -> None:
    trainer_of(tmp_path, Noisy(), stop_at=step).train()
    fatal = tmp_path / "once"
    resumed = trainer_of(tmp_path, Noisy(fatal=11, once=fatal))
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert equal(resumed.model.seen, uninterrupted[step:])
    assert fatal.exists()  # a worker has died
