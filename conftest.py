"""Which modules have doctests that can run here."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["dataloader/torch.py", "dataloader/_torch"]
