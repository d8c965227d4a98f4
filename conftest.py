"""Which modules have doctests that can run here."""

from importlib.util import find_spec

NEEDS = {
    "torch": ["dataloader/torch.py", "dataloader/_torch"],
    "accelerate": ["dataloader/accelerate.py"],
    "transformers": ["dataloader/transformers.py"],
}
collect_ignore = [path for library, paths in NEEDS.items() if not find_spec(library) for path in paths]
