"""Keeping count of an iterator, and showing it to people."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from dataloader.stats import Progress, Tally

LINE_INTERVAL_S = 10.0  # of a log file


class Watch:
    """Counts what one iterator delivers.

    Parameters:
        tally: where.
        total: samples in all, None where that is not known.
        bar: shows it, if anything does.
        before: samples that were over when the iterator began, where it goes on in the middle of an epoch.
    """

    def __init__(self, tally: Tally, total: int | None, bar: Bar | None = None, before: int = 0) -> None:
        self.tally = tally
        self._total = total
        self._bar = bar
        self._before = before

    @property
    def progress(self) -> Progress:
        return Progress(self._before + self.tally.delivered.items, self._total)

    def show(self) -> None:
        if self._bar is not None:
            self._bar.show(self.progress.items)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end(self.progress.items)
            self._bar = None


class Bar:
    """A progress bar on stderr: tqdm's in a terminal or notebook, now and then a line in a log file.

    Parameters:
        total: samples in all, None where that is not known.
        deaths: tells how many workers have died in this epoch so far.
    """

    def __init__(self, total: int | None, deaths: Callable[[], int]) -> None:
        self._deaths = deaths
        self._shown_deaths = 0
        self._tqdm = _tqdm()(total=total, unit=" samples", dynamic_ncols=True, disable=not _is_watched())
        self._total = total
        self._start_s = self._line_s = time.monotonic()

    def show(self, samples: int) -> None:
        """Show how many samples were delivered, if it is time to."""
        if self._tqdm.disable:
            if time.monotonic() - self._line_s >= LINE_INTERVAL_S:
                self._line_s = time.monotonic()
                self._print(samples)
            return
        self._show_deaths()
        self._tqdm.update(samples - self._tqdm.n)

    def end(self, samples: int) -> None:
        """Show the last figures."""
        if self._tqdm.disable:
            self._print(samples)
            return
        self._show_deaths()
        self._tqdm.update(samples - self._tqdm.n)
        self._tqdm.close()

    def _show_deaths(self) -> None:
        deaths = self._deaths()
        if deaths != self._shown_deaths:
            self._shown_deaths = deaths
            self._tqdm.set_postfix_str(_deaths_text(deaths))

    def _print(self, samples: int) -> None:
        elapsed_s = time.monotonic() - self._start_s
        deaths = self._deaths()
        line = self._tqdm.format_meter(
            samples, self._total, elapsed_s, unit=" samples", postfix=_deaths_text(deaths) if deaths else None
        )
        print(line, file=sys.stderr, flush=True)


def _deaths_text(deaths: int) -> str:
    return f"{deaths} death{'s' if deaths > 1 else ''}"


def _is_watched() -> bool:
    """Whether somebody sees what is overwritten: a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "progress=True needs tqdm: pip install 'supervised-dataloader[progress]'", name="tqdm"
        ) from error
    # Its monitor would be a thread, which a fork does not go well with.
    return type("tqdm", (tqdm,), {"monitor_interval": 0})
