"""Every state that a small job can reach under bounded faults, around the runtime's own decisions.

    .venv/bin/python benchmarks/membership_states.py [--members 3] [--crashes 1] [--faults 1] [--plant majority]

Breadth first from the moment at which all have come together; `lib/membership_model.py` says what may happen. In no
state may one step be committed in two ways, or a committed step be lost or left out; and from every state that is
looked at (`--progress`: each so many) those that are left go on together and commit, if they have the votes without
anybody's death. The shortest way to a violation is printed. `--plant majority` turns the majority rule off, `--plant
gap` lets a death count for views before the dead one came back: either has to be found.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from lib.lineage import Violation
from lib.membership_faults import anybody_goes_on
from lib.membership_model import Job, Limits
from lib.membership_moves import heal, moves
from lib.result import Figure, parser_of, publish

from paceline.runtime.members.view import Ballot
from paceline.runtime.protocol.leading import Rule
from paceline.runtime.protocol.quorum import Memory, may_go_on


def any_death_counts(ballots: Mapping[str, Sequence[Ballot]], memory: Memory) -> bool:
    """A planted bug: whoever died among us died in every view that it was in."""
    return may_go_on(ballots, Memory(dict.fromkeys(memory.vanished, 0), memory.dead, memory.formed))


RULES: dict[str | None, Rule] = {None: may_go_on, "majority": anybody_goes_on, "gap": any_death_counts}


class Search:
    """All states, breadth first, and the way to each of them."""

    def __init__(self, begin: Job, most: int, progress: int) -> None:
        self._begin, self._most, self._progress = begin, most, progress
        self.came: dict[int, tuple[int, str]] = {begin.digest(): (0, "")}
        """The state before each state, and what led from it; states are told apart by 64 bits of their hash."""
        self.moves = self.depth = self.healed = 0
        self.complete = True

    def run(self) -> str:
        """Look at every state; the violation, if there is one, with the way to it."""
        queue = deque([(self._begin.digest(), self._begin, 0)])
        while queue:
            at, job, self.depth = queue.popleft()
            for move in moves(job):
                self.moves += 1
                try:
                    after = move.after(job)
                    key = after.digest()
                    if key in self.came:
                        continue
                    self.came[key] = (at, move.what)
                    if self._progress and len(self.came) % self._progress == 0:
                        self.healed += heal(after)
                except Violation as error:
                    return "\n".join([*self._way(at), move.what, f"-> {error}"])
                queue.append((key, after, self.depth + 1))
            if len(self.came) >= self._most:
                self.complete = False
                break
        return ""

    def _way(self, at: int) -> Iterator[str]:
        steps = []
        while at in self.came and self.came[at][1]:
            at, what = self.came[at]
            steps.append(what)
        return reversed(steps)


def main() -> int:
    """Search, and say how many states there were."""
    parser = parser_of(__doc__)
    parser.add_argument("--members", type=int, default=3)
    for name, value in vars(Limits()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--states", type=int, default=300_000, help="after which the search ends")
    parser.add_argument("--progress", type=int, default=50, help="look at each so many states whether it goes on")
    parser.add_argument("--plant", choices=[name for name in RULES if name], help="a bug that has to be found")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    limits = Limits(**{name: getattr(args, name) for name in vars(Limits())})
    search = Search(Job.begin(args.members, RULES[args.plant], limits), args.states, args.progress)
    way = search.run()
    if way:
        print(way)
    if not way:
        print("every state" + ("" if search.complete else f" within {search.depth} moves"))
    figures = [
        Figure("states", len(search.came)),
        Figure("moves", search.moves),
        Figure("moves to the farthest" if search.complete else "moves within which it is every state", search.depth),
        Figure("states from which all went on", search.healed),
        Figure("violations", int(bool(way))),
        Figure("duration", time.monotonic() - began, "s"),
    ]
    return publish(args, figures, turns={"way": way.splitlines()}, passed=bool(way) == (args.plant is not None))


if __name__ == "__main__":
    sys.exit(main())
