"""Which modules have doctests that can run here."""

from importlib.util import find_spec

NEEDS = {
    "torch": ["dataloader/torch.py", "dataloader/_torch", "tests/torch/datasets.py", "tests/trainers"],
    "accelerate": ["dataloader/accelerate.py", "tests/trainers/accelerate_ranks.py"],
    "transformers": ["dataloader/transformers.py"],
}
collect_ignore = [path for library, paths in NEEDS.items() if not find_spec(library) for path in paths]
