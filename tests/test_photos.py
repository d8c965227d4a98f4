"""The demo's dataset."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataloader._photos import PhotoDataset, UnreadablePhotoError, find_photos, normalise, random_box


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    Image.linear_gradient("L").convert("RGB").save(path)
    return path


def test_a_sample_is_normalised_channels_first(photo: Path) -> None:
    sample = PhotoDataset([photo])[0]
    assert sample.shape == (3, 224, 224)
    assert sample.dtype == np.float32
    assert sample.flags.c_contiguous


def test_normalise_is_imagenet_s_formula() -> None:
    sample = normalise(Image.new("RGB", (2, 1), (0, 128, 255)))
    assert sample.shape == (3, 1, 2)
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    np.testing.assert_allclose(sample[:, 0, 1], expected, rtol=1e-5)


def test_only_python_s_random_state_decides(photo: Path) -> None:
    def sample(seed: int) -> bytes:
        random.seed(seed)
        return PhotoDataset([photo])[0].tobytes()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@given(st.integers(1, 5000), st.integers(1, 5000), st.randoms(use_true_random=False))
def test_the_box_lies_in_the_photo(width_px: int, height_px: int, rng: random.Random) -> None:
    random.seed(rng.random())
    left, top, right, bottom = random_box(width_px, height_px)
    assert 0 <= left < right <= width_px
    assert 0 <= top < bottom <= height_px


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_photos_have_three_channels_too(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (300, 300)).save(tmp_path / "photo.jpg")
    assert PhotoDataset([tmp_path / "photo.jpg"])[0].shape == (3, 224, 224)


@pytest.mark.parametrize("kept", [0, 100, 2000])
def test_an_unreadable_photo_is_named(photo: Path, kept: int) -> None:
    photo.write_bytes(photo.read_bytes()[:kept])
    with pytest.raises(UnreadablePhotoError, match=f"{photo} cannot be read as a JPEG"):
        PhotoDataset([photo])[0]


def test_photos_are_found_in_folders_below_in_a_fixed_order(tmp_path: Path) -> None:
    names = ["b.jpg", "a/z.JPEG", "a/b/c.jpeg", "A.JPG"]
    for name in [*names, "a/notes.txt", "jpg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    assert find_photos(tmp_path) == sorted(tmp_path / name for name in names)
