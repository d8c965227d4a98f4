"""What is said of a sample that cannot be loaded."""

from dataloader import SampleError


def test_it_is_shown_in_one_line_however_long_its_traceback() -> None:
    error = SampleError(3, ValueError("colour\nunknown"), "Traceback ...\n" * 100, batch=1, epoch=2)
    assert repr([error]) == "[<SampleError: sample 3 of batch 1, epoch 2: ValueError was raised: colour>]"
    assert str(error) == "sample 3 of batch 1, epoch 2: ValueError was raised: colour"
