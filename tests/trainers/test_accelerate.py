"""Accelerate: prepared loaders stay supervised, and what is skipped is not loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from dataloader._torch.supervising import base_of  # noqa: E402
from dataloader.accelerate import Accelerator, skip_first_batches  # noqa: E402
from dataloader.torch import DataLoader, supervise  # noqa: E402
from tests.datasets import Recorded  # noqa: E402
from tests.trainers.training import Classifier, Noisy, deaths, equal  # noqa: E402

PROJECT = Path(__file__).parent.parent.parent


def loader_of(dataset: Any, **arguments: Any) -> Any:
    given = {"batch_size": 4, "shuffle": True, "seed": 5, "num_workers": 1, **arguments}
    return DataLoader(dataset, multiprocessing_context="fork", **given)


def train(accelerator: Any, loader: Any, epochs: int = 2) -> tuple[list[Any], Any]:
    """Return the batches that the model saw, and the prepared loader."""
    torch.manual_seed(1)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared_model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    for _ in range(epochs):
        for batch in prepared:
            optimizer.zero_grad()
            accelerator.backward(prepared_model(**batch)["loss"])
            optimizer.step()
    return model.seen, prepared


@pytest.fixture
def accelerator() -> Any:
    return Accelerator(cpu=True)


def test_a_prepared_loader_survives_a_death(accelerator: Any, tmp_path: Path) -> None:
    expected, _ = train(accelerator, loader_of(Noisy()))
    loader = loader_of(Noisy(fatal=7, once=tmp_path / "once"))
    seen, prepared = train(accelerator, loader)
    assert deaths(base_of(prepared)) == 1
    assert base_of(prepared) is not loader
    assert equal(seen, expected)
    assert len(seen) == 12
    assert not equal(seen[:6], seen[6:])


def test_accelerates_own_accelerator_is_warned_of_once(tmp_path: Path) -> None:
    loader = loader_of(Noisy(fatal=7, once=tmp_path / "once"))
    theirs = accelerate.Accelerator(cpu=True)
    with pytest.warns(UserWarning, match=r"Accelerate puts a loader of torch's in the place of this one"):
        prepared = theirs.prepare(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs.prepare(loader)
    assert not isinstance(base_of(prepared), DataLoader)
    assert supervise(prepared, like=loader, multiprocessing_context="fork") is prepared
    assert supervise(prepared, on_error="skip") is prepared
    assert (base_of(prepared).seed, base_of(prepared).on_error) == (5, "skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(prepared)) == 6
        assert theirs.prepare(prepared) is prepared
    assert deaths(base_of(prepared)) == 1


def test_a_loader_of_torchs_is_prepared_as_ever(accelerator: Any) -> None:
    prepared = accelerator.prepare(torch.utils.data.DataLoader([1, 2, 3]))
    assert not isinstance(base_of(prepared), DataLoader)
    assert len(list(accelerator.skip_first_batches(prepared, 1))) == 2


@pytest.mark.parametrize("is_prepared", [True, False])
def test_what_is_left_after_skipping_is_the_same_and_nothing_else_is_loaded(
    accelerator: Any, tmp_path: Path, is_prepared: bool
) -> None:
    def epochs(loader: Any, skipped: int) -> list[Any]:
        loader = accelerator.prepare(loader) if is_prepared else loader
        return [batch["x"] for batch in (skip_first_batches(loader, skipped) if skipped else loader)]

    torch.manual_seed(1)
    whole = epochs(loader_of(Noisy()), 0)
    torch.manual_seed(1)
    assert equal(epochs(loader_of(Noisy()), 4), whole[4:])
    recorded = Recorded(12, tmp_path)
    epochs_of = accelerator.prepare(loader_of(recorded, shuffle=False))
    assert [batch.tolist() for batch in accelerator.skip_first_batches(epochs_of, 2)] == [[8, 9, 10, 11]]
    assert recorded.loads() == [8, 9, 10, 11]


def test_a_prepared_loader_goes_on_from_its_state(accelerator: Any) -> None:
    def prepared() -> Any:
        torch.manual_seed(1)
        return accelerator.prepare(loader_of(Noisy()))

    whole = [batch["x"] for batch in prepared()]
    loader, states = prepared(), []
    for _ in loader:
        states.append(loader.state_dict())
    again = prepared()
    again.load_state_dict(states[2])
    assert equal([batch["x"] for batch in again], whole[3:])


def test_accelerate_loses_a_batch_where_the_next_raises(accelerator: Any) -> None:
    """So the docs say, and how it is kept."""

    class Broken(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise OSError("sample 9 is broken")
            return super().__getitem__(index)

    def indices(loader: Any) -> list[list[int]]:
        came: list[list[int]] = []
        iterator = iter(loader)
        while True:
            try:
                came.append(next(iterator)["index"].tolist())
            except OSError:
                continue
            except StopIteration:
                return came

    whole = [list(range(start, start + 4)) for start in range(0, 24, 4)]
    assert indices(loader_of(Broken(), shuffle=False)) == whole[:2] + whole[3:]
    assert indices(accelerator.prepare(loader_of(Broken(), shuffle=False))) == whole[:1]
    kept = indices(accelerator.prepare(loader_of(Broken(), shuffle=False, on_error="skip")))
    assert kept == [*whole[:2], [8, 10, 11], *whole[3:]]


@pytest.mark.slow
def test_two_ranks_share_out_samples_and_streams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.trainers.accelerate_ranks", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=100, cwd=PROJECT)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["deaths"] + second["deaths"] == 1
    assert len(first["samples"]) == len(second["samples"])
    for key in ("samples", "stream"):
        assert sorted(first[key] + second[key]) == list(range(24))
    assert sorted(first["left"] + second["left"]) == list(range(8, 24))
