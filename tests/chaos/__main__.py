"""``python -m tests.chaos``: all figures."""

from __future__ import annotations

from tests.chaos import interrupts, killings, machine, replacements, storm, sweep, verdicts

if __name__ == "__main__":
    for figures in (sweep, verdicts, storm, killings, replacements, machine, interrupts):
        figures.main()
