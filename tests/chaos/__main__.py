"""``python -m tests.chaos``: all figures."""

from __future__ import annotations

from tests.chaos import interrupts, killings, storm

if __name__ == "__main__":
    for figures in (storm, killings, interrupts):
        figures.main()
