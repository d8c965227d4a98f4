"""The layout and the random state of pieces: part of every batch's bytes, so they are pinned here."""

import pickle
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader.pieces import MAX_PIECES, SAMPLES_PER_PIECE, Seeds, layout, piece_seeds

GOLDEN_SEEDS: dict[tuple[Any, ...], Seeds] = {
    (0, 0, 0, 0, (0,)): Seeds(996517147051534568, 1765710760, 3566607955256161289),
    (1, 2, 3, 1, (4, 5, 6)): Seeds(15178876254874917746, 3056190521, 7125487762988573479),
    (2**64 - 1, 0, 0, 0, (-1, 2**63 - 1)): Seeds(18245620926330042804, 2159641607, 14244209470463546771),
    (7, 0, 0, 0, ()): Seeds(11555282557555062588, 2805760091, 15560645277480898325),
    (7, 0, 1, 0, (2**64,)): Seeds(1055222939775798284, 1729685045, 77701086831658930),
    (7, 0, 1, 0, ("a.jpg", "b.jpg")): Seeds(15861710492085168502, 494951034, 12731822834278534420),
    (7, 0, 1, 0, ((1, "x"), (2, "y"))): Seeds(1924860641186379993, 3241828675, 12721516055239634446),
    (7, 0, 1, 0, (1.5, None, b"key")): Seeds(2779473718621771411, 815370452, 14878074616328322602),
}


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [
        (1, [1]),
        (7, [7]),
        (8, [8]),
        (15, [15]),
        (16, [8, 8]),
        (19, [10, 9]),
        (24, [8, 8, 8]),
        (26, [9, 9, 8]),
        (31, [11, 10, 10]),
        (32, [8, 8, 8, 8]),
        (35, [9, 9, 9, 8]),
        (1000, [250, 250, 250, 250]),
    ],
)
def test_the_layout_is_final(samples: int, sizes: list[int]) -> None:
    # 24 // 8 is 3 pieces, 31 // 8 too: a layout that rounds up would change everybody's batches.
    assert [stop - start for start, stop in layout(samples)] == sizes


@given(st.integers(1, 10_000))
def test_pieces_cover_a_batch_and_are_as_equal_as_can_be(samples: int) -> None:
    cut = layout(samples)
    assert (cut[0][0], cut[-1][1]) == (0, samples)
    assert all(before[1] == after[0] for before, after in pairwise(cut))
    sizes = [stop - start for start, stop in cut]
    assert max(sizes) - min(sizes) <= 1
    assert len(cut) == min(MAX_PIECES, max(1, samples // SAMPLES_PER_PIECE))


@pytest.mark.parametrize("key", GOLDEN_SEEDS)
def test_the_seeds_are_final(key: tuple[Any, ...]) -> None:
    assert piece_seeds(*key) == GOLDEN_SEEDS[key]


def test_each_part_of_the_key_counts() -> None:
    keys: list[tuple[Any, ...]] = [
        (0, 0, 0, 0, [1, 2]),
        (1, 0, 0, 0, [1, 2]),
        (0, 1, 0, 0, [1, 2]),
        (0, 0, 1, 0, [1, 2]),
        (0, 0, 0, 1, [1, 2]),
        (0, 0, 0, 0, [2, 1]),
        (0, 0, 0, 0, [1]),
        (0, 0, 0, 0, ["1", "2"]),
    ]
    seeds = [piece_seeds(*key) for key in keys]
    for position in range(3):
        assert len({three[position] for three in seeds}) == len(keys)


texts = st.text(st.sampled_from("aé€😀"))
indices = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(),
    texts,
    st.binary(),
    st.floats(allow_nan=False),
    st.tuples(texts, st.integers()),
)


@given(st.lists(indices), st.lists(st.integers(0, 5), max_size=3))
def test_equal_indices_give_equal_seeds(drawn: list[Any], again: list[int]) -> None:
    """Whether they are the same objects, or some are there twice, cannot matter: a worker has copies."""
    same_objects = drawn + [drawn[i % len(drawn)] for i in again if drawn]
    copies = [pickle.loads(pickle.dumps(index)) for index in same_objects]
    assert piece_seeds(0, 0, 0, 0, same_objects) == piece_seeds(0, 0, 0, 0, copies)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numpy_integers_count_as_integers(kind: Any) -> None:
    assert piece_seeds(0, 0, 0, 0, list(np.arange(3, dtype=kind))) == piece_seeds(0, 0, 0, 0, [0, 1, 2])


def test_indices_that_have_no_bytes_still_have_seeds() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert piece_seeds(0, 0, 5, 0, loop) == piece_seeds(0, 0, 5, 0, [lambda: 0])
    assert piece_seeds(0, 0, 5, 0, loop) != piece_seeds(0, 0, 6, 0, loop)


@pytest.mark.slow
def test_seeds_do_not_depend_on_the_hash_seed() -> None:
    program = "from dataloader.pieces import piece_seeds as p; print(p(1, 2, 3, 4, ['a', ('b', 5)]))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert outputs == {f"{piece_seeds(1, 2, 3, 4, ['a', ('b', 5)])}\n".encode()}
