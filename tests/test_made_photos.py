"""The made photos and their cache."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from dataloader import _made_photos
from dataloader._made_photos import cached_photos, make_photo


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_made_photos, "COUNT", 3)
    return tmp_path / "supervised-dataloader"


def never(numbers: Sequence[int]) -> Sequence[int]:
    raise AssertionError("made again")


def test_a_made_photo_is_a_jpeg_of_a_photograph_s_size() -> None:
    jpeg = make_photo(0)
    photo = Image.open(BytesIO(jpeg))
    assert photo.format == "JPEG"
    assert photo.size == (500, 375)
    assert 20_000 < len(jpeg) < 200_000


def test_each_number_is_one_photo() -> None:
    assert make_photo(1) == make_photo(1)
    assert make_photo(1) != make_photo(2)


def test_photos_are_made_once(cache: Path) -> None:
    folder = cached_photos(iter)
    assert folder.parent == cache
    assert sorted(path.name for path in folder.iterdir()) == ["000.jpg", "001.jpg", "002.jpg"]
    assert cached_photos(never) == folder


def test_nothing_is_left_when_making_stops_half_way(cache: Path) -> None:
    def stop_at_the_second(numbers: Sequence[int]) -> Iterator[int]:
        yield numbers[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_photos(stop_at_the_second)
    assert list(cache.iterdir()) == []


def test_two_processes_may_make_them_at_once(cache: Path) -> None:
    def another_is_first(numbers: Sequence[int]) -> Sequence[int]:
        cached_photos(lambda numbers: numbers)
        return numbers

    folder = cached_photos(another_is_first)
    assert list(cache.iterdir()) == [folder]
    assert len(list(folder.iterdir())) == 3
