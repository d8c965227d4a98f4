"""How often the dead may be replaced: OTP's intensity and period, with a back-off.

Pure: nobody here looks at a clock or starts a process.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from numbers import Integral, Real

MAX_STARTUP_DEATHS = 3


@dataclass(frozen=True)
class RestartPolicy:
    """Bounds on replacing workers.

    Parameters:
        max_restarts: how many deaths within ``period`` are replaced, 0 for none; one more raises.
        period: length of the sliding window, in seconds, above 0.
        backoff: the first replacement comes at once; the second in a row waits this many seconds, each
            further one twice as long, but never longer than ``period``. Any completed task resets it.
        shrink_on_oom: a worker that was killed for want of memory is not replaced, for its successor would
            need as much: the others go on without, and the last one is replaced. Not by default: a worker
            lost so does not come back, though another program may have taken the memory.
        own_cgroups: give each worker a memory cgroup of its own, where that is allowed, so that an OOM kill
            of it is proven also where the kernel log may not be read. Its start-up takes 10 ms more.
        max_attempts: how many workers one sample may end before it counts as poison, at least 1.

    Raises:
        ValueError: naming the field that is out of range.

    >>> RestartPolicy(max_restarts=3).period
    60.0
    >>> RestartPolicy(backoff=-1)
    Traceback (most recent call last):
    ValueError: RestartPolicy(backoff=-1): give a number of seconds, 0 for none
    """

    max_restarts: int = 10
    period: float = 60.0
    backoff: float = 0.1
    max_attempts: int = 3
    shrink_on_oom: bool = False
    own_cgroups: bool = False

    def __post_init__(self) -> None:
        _check_count("max_restarts", self.max_restarts, least=0)
        _check_count("max_attempts", self.max_attempts, least=1)
        _check_flag("shrink_on_oom", self.shrink_on_oom)
        _check_flag("own_cgroups", self.own_cgroups)
        if not (_is_number(self.period) and self.period > 0):
            raise ValueError(f"RestartPolicy(period={self.period!r}): give a number of seconds above 0")
        if not (_is_number(self.backoff) and self.backoff >= 0):
            raise ValueError(f"RestartPolicy(backoff={self.backoff!r}): give a number of seconds, 0 for none")


class RestartWindow:
    """The deaths that count now, and what follows from them.

    >>> window = RestartWindow(RestartPolicy(max_restarts=2, period=10.0, backoff=0.1))
    >>> window.allow(now=0.0), window.allow(now=1.0), window.allow(now=2.0)
    (0.0, 0.1, None)
    >>> window.progress(); window.allow(now=11.5)
    0.0
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._deaths: deque[tuple[float, str]] = deque()  # time, reason
        self._held: dict[int, tuple[float, str]] = {}  # by pid
        self._in_a_row = 0
        self._startup_deaths_in_a_row = 0

    def allow(self, now: float, *, during_startup: bool = False, reason: str = "died") -> float | None:
        """Count a death at ``now`` (seconds); return after how many seconds to replace, or None: never."""
        self._deaths.append((now, reason))
        self._forget_before(now - self.policy.period)
        self._startup_deaths_in_a_row = self._startup_deaths_in_a_row + 1 if during_startup else 0
        if self.is_exhausted:
            return None
        self._in_a_row += 1
        return self._delay_s()

    def hold(self, pid: int, now: float, *, reason: str = "died") -> None:
        """Keep the death of ``pid`` back until it is judged: it may be the fault of what it worked on.

        >>> window = RestartWindow(RestartPolicy(max_restarts=0))
        >>> window.hold(pid=4711, now=0.0); window.is_exhausted
        False
        >>> window.judge(pid=4711, counts=True, now=0.5); window.is_exhausted
        True
        """
        self._held[pid] = now, reason

    def judge(self, pid: int, *, counts: bool, now: float) -> None:
        """Let a death that is held back count, or not. Judging it again changes nothing."""
        death = self._held.pop(pid, None)
        if death is not None and counts:
            self._deaths = deque(sorted([*self._deaths, death]))
            self._forget_before(now - self.policy.period)

    @property
    def is_exhausted(self) -> bool:
        """Whether the dead are no longer replaced."""
        return self.deaths > self.policy.max_restarts or self._startup_fails

    def why_exhausted(self) -> str:
        """Return the sentence that says why not."""
        if self._startup_fails:
            return f"It was not replaced: {MAX_STARTUP_DEATHS} replacements in a row died in their start-up."
        return (
            f"It was not replaced: it is death number {self.deaths} within {self.policy.period:g} s "
            f"({self._story()}), and RestartPolicy(max_restarts={self.policy.max_restarts}) replaces no more."
        )

    def _story(self) -> str:
        """Return how many deaths of which reasons came in how many seconds."""
        reasons = Counter(reason for _, reason in self._deaths).most_common()
        span_s = self._deaths[-1][0] - self._deaths[0][0]
        return f"{', '.join(f'{count} {reason}' for reason, count in reasons)} in {span_s:.1f} s"

    @property
    def _startup_fails(self) -> bool:
        return self._startup_deaths_in_a_row >= MAX_STARTUP_DEATHS

    @property
    def deaths(self) -> int:
        """How many deaths the window holds."""
        return len(self._deaths)

    def startup_succeeded(self) -> None:
        """Note that a worker became ready: start-ups no longer fail in a row."""
        self._startup_deaths_in_a_row = 0

    def progress(self) -> None:
        """Note that a worker completed a task: the next replacement comes at once."""
        self._in_a_row = 0

    def _delay_s(self) -> float:
        if self._in_a_row == 1:
            return 0.0
        return min(self.policy.backoff * 2.0 ** min(self._in_a_row - 2, 60), self.policy.period)

    def _forget_before(self, start_s: float) -> None:
        while self._deaths and self._deaths[0][0] <= start_s:
            self._deaths.popleft()


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"RestartPolicy({name}={value!r}): give a whole number, at least {least}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"RestartPolicy({name}={value!r}): give True or False")
