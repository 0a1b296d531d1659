"""What an observer of everything knows of a job: which steps count, and whether ever two of them contradict."""

from __future__ import annotations

from paceline.runtime.members.view import View

__all__ = ["History", "Lineage", "Violation"]

History = tuple[tuple[int, str], ...]
"""The view in which each committed step was committed."""


class Violation(Exception):
    """What must never happen."""


class Lineage:
    """The steps that all members of a view have committed or taken over: no two ways, none lost, none left out."""

    def __init__(self) -> None:
        self.settled: History = ()
        """The view of each step that counts for good."""
        self._committed: dict[tuple[int, tuple[int, str]], frozenset[str]] = {}
        self._entered: dict[tuple[int, str], frozenset[str]] = {}
        self._newest = 0

    def copy(self) -> Lineage:
        """With the same past."""
        other = Lineage()
        other.settled, other._newest = self.settled, self._newest
        other._committed, other._entered = dict(self._committed), dict(self._entered)
        return other

    def key(self) -> object:
        """What tells it from others."""
        return (self.settled, self._newest, frozenset(self._committed.items()), frozenset(self._entered.items()))

    def committed(self, id: str, view: View, history: History) -> None:  # noqa: A002
        """A member committed a step; when all members of the view have, the step counts."""
        name = (len(history), history[-1])
        self._committed[name] = self._committed.get(name, frozenset()) | {id}
        if len(self._committed[name]) == view.size:
            del self._committed[name]
            self._settle(history, view.number)

    def entered(self, id: str, view: View, history: History) -> None:  # noqa: A002
        """A member took over the common state; when all members of the view have, its steps count."""
        name = (view.number, view.leader.id)
        self._entered[name] = self._entered.get(name, frozenset()) | {id}
        if len(self._entered[name]) == view.size:
            del self._entered[name]
            self._settle(history, view.number)

    def _settle(self, history: History, view: int) -> None:
        for step, (before, now) in enumerate(zip(self.settled, history, strict=False), 1):
            if before != now:
                raise Violation(f"step {step} was committed in view {before} and in view {now}")
        if view >= self._newest and len(history) < len(self.settled):
            raise Violation(f"view {view} goes on from step {len(history)}, {len(self.settled)} were committed")
        # Samples are dealt by step: with one way to each step and no gap, every sample is in one committed step.
        self.settled = max(self.settled, history, key=len)
        self._newest = max(self._newest, view)
