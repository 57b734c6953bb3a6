"""The calls of a server that have no answer yet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

ASK_AGAIN_SECONDS: Final = 0.004

Call = TypeVar("Call")


class _Held(NamedTuple):
    ask: Callable[[], None]
    size_bytes: int


class HeldCalls(Generic[Call]):
    """Holds calls whose answer is not decided yet, and asks for the answers again, in the order in
    which the calls came, until each call is released. The one that is asked knows the call's
    deadline, and answers in any case when it has passed.

    A server on a loop holds calls by `hold`; everything then happens in the loop's thread. A server
    with a thread for each call holds them by `block`, which is safe in threads.
    """

    def __init__(
        self,
        after: Callable[[float, Callable[[], None]], object] | None = None,
        *,
        seconds: float = ASK_AGAIN_SECONDS,
        max_calls: float = math.inf,
        max_bytes: float = math.inf,
    ) -> None:
        """`after`: calls a function once, after a number of seconds (`Loop.after`); None for a
        server with threads. `seconds`: the time between two questions."""
        self._after = after
        self._seconds = seconds
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._calls: dict[Call, _Held] = {}
        self._bytes = 0
        self._planned = False

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """The call that came first is first."""
        return iter(self._calls)

    def __contains__(self, call: Call) -> bool:
        return call in self._calls

    def hold(self, call: Call, ask: Callable[[], None], size_bytes: int = 0) -> bool:
        """Holds the call: `ask` is called until the call is released. Without effect on a call that
        is held already. Returns False if there is no room for the call, which has `size_bytes`."""
        if call in self._calls:
            return True
        if len(self._calls) >= self._max_calls or self._bytes + size_bytes > self._max_bytes:
            return False
        self._calls[call] = _Held(ask, size_bytes)
        self._bytes += size_bytes
        self._plan()
        return True

    def block(self, call: Call, ask: Callable[[], None]) -> None:
        """Holds the call in the thread that serves it, and returns when it is released."""
        self._calls[call] = _Held(ask, 0)
        try:
            while call in self._calls:
                time.sleep(self._seconds)
                ask()
        finally:
            self.release(call)

    def release(self, call: Call) -> bool:
        """The call has its answer, or needs none any more. Returns whether it was held."""
        held = self._calls.pop(call, None)
        if held is None:
            return False
        self._bytes -= held.size_bytes
        return True

    def release_all(self) -> list[Call]:
        """Releases all calls, and returns them in order."""
        calls = list(self._calls)
        self._calls.clear()
        self._bytes = 0
        return calls

    def ask_again(self) -> None:
        """Asks for the answers of all held calls."""
        for call, held in list(self._calls.items()):
            if call in self._calls:  # the answer of another may have ended its connection
                held.ask()

    def _plan(self) -> None:
        if self._after is not None and self._calls and not self._planned:
            self._planned = True
            self._after(self._seconds, self._due)

    def _due(self) -> None:
        self._planned = False
        self.ask_again()
        self._plan()
