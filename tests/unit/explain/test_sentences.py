"""The sentences about a campaign, word by word, from rankings and cases of known numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.explain import explanation
from paceline.explain.cases.evidence import CaseEvidence, load_evidence
from paceline.explain.explanation import CaseExplanation, Explanation, _first, _phase, _speed, _who
from paceline.explain.findings import Change, Finding
from paceline.explain.gap import Bar, Gap
from paceline.measurements.ranking import RankedCase, Ranking
from paceline.measurements.summary import Comparison, Interval
from tests.made import Made, write

NO_END = (float("-inf"), float("inf"))


def place(
    name: str, rate: float, *, ratio: Interval | None = None, verdict: Any = "slower", launches: int = 4
) -> RankedCase:
    behind = None if ratio is None else Comparison(ratio, 0.01, (launches, 5), 0, verdict)
    return RankedCase(name, f"id of {name}", Interval(rate, rate, rate), behind)


def ranking(ranks: int, second: RankedCase, *, first: str = "A", network: str = "lenet") -> Ranking:
    return Ranking(network, "local", "local", "resident", 8, ranks, (place(first, 200.0), second))


def behind(name: str = "B", **changes: Any) -> RankedCase:
    return place(name, 100.0, **{"ratio": Interval(0.5, 0.4, 0.8), **changes})


def summary(cases: Sequence[CaseEvidence], **parts: Any) -> tuple[str, ...]:
    """The sentences about these cases; what `parts` does not name is empty."""
    names = ("series", "gaps", "findings", "unsure", "rankings")
    explained = tuple(CaseExplanation(case, None, ()) for case in cases)
    return Explanation("", "", "", "", "", "", explained, **{**dict.fromkeys(names, ()), **parts}).summary


UNDECIDED = behind(verdict="no difference shown")


def test_who_wins_is_named_by_comparison_and_what_nobody_wins_with_its_reason() -> None:
    won = [ranking(1, behind()), ranking(2, behind(), first="C"), ranking(4, behind(), first="C")]
    few = behind(verdict="too few launches", launches=2)
    assert _who([*won, ranking(8, few)]) == (
        "C wins lenet, batch 8 x 2 ranks and lenet, batch 8 x 4 ranks; A wins lenet, batch 8 x 1 rank; "
        "lenet, batch 8 x 8 ranks is not decided: A before B, too few launches (2, 3 are needed)."
    )


def test_who_wins_is_counted_beyond_four_comparisons_of_one_or_four_clauses() -> None:
    four = [ranking(2**n, behind()) for n in range(4)]
    assert _who(four).startswith("A wins lenet, batch 8 x 1 rank; ")
    assert _who([*four, ranking(16, behind())]) == "A wins 5 of 5 comparisons."
    open_ = [ranking(2**n, UNDECIDED) for n in range(3)]
    assert _who([*open_, ranking(16, behind())]).count("is not decided") == 3
    # One winner and four that are open are five clauses.
    assert (
        _who([*open_, ranking(8, UNDECIDED), ranking(16, behind())]) == "A wins 1 of 5 comparisons; 4 are not decided."
    )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> CaseEvidence:
    """Two launches of 64 samples in 0.12 s, of which backward takes 0.08 s: 533.3 samples/s."""
    made = Made(ranks=2, launches=2)
    (found,) = load_evidence(write(tmp_path_factory.mktemp("store"), [made]), "made-1")
    return with_rate(found, 64 / 0.12)


def with_rate(case: CaseEvidence, rate: float, **changes: Any) -> CaseEvidence:
    run = case.run.model_copy(update=changes)
    return replace(case, result=replace(case.result, run=run, throughput=Interval(rate, *NO_END)))


def sentences(rankings: list[Ranking], case: CaseEvidence, gaps: tuple[Gap, ...] = ()) -> tuple[str, ...]:
    return summary([case], rankings=tuple(rankings), gaps=gaps)


def test_the_largest_lead_among_those_that_are_shown_is_told(case: CaseEvidence) -> None:
    huge = place("B", 20.0, ratio=Interval(0.1, *NO_END), verdict="too few launches")
    near = behind(ratio=Interval(0.8, 0.64, 0.9))
    found = sentences([ranking(1, near), ranking(2, behind()), ranking(4, huge)], case)[1]
    assert found == (
        "The largest lead over the second is that of lenet, batch 8 x 2 ranks: A is 2.00 times as fast as B "
        "(95 %: 1.25 to 2.50), 200.0 against 100.0 samples/s."
    )
    alone = sentences([ranking(1, UNDECIDED)], case)[1]
    assert alone.endswith("100.0 samples/s, which is not shown to be more than noise.")
    none = sentences([ranking(1, huge), ranking(2, UNDECIDED)], case)[1]
    assert none == (
        "The largest difference over the second is that of lenet, batch 8 x 1 rank: A is 10.00 times as fast as B, "
        "200.0 against 20.0 samples/s, and none is shown to be more than noise."
    )


def gap(*bars: Bar, slow: str = "B", untrusted: str = "") -> Gap:
    step = Interval(0.05, 0.05, 0.05), Interval(0.02, 0.02, 0.02)
    return Gap(slow, "A", f"id of {slow}", "id of A", *step, bars, untrusted)


def test_why_is_the_largest_bar_of_the_gap_between_the_first_two(case: CaseEvidence) -> None:
    bars = Bar("kernels", 0.025, "made"), Bar("link", 0.004, "made"), Bar("unexplained", 0.001, "")
    other = gap(Bar("update", 1.0, "made"), slow="C")
    why = [
        (gap(*bars), "Why: kernels, 25 of the 30 ms between their steps (made)."),
        (gap(*bars, Bar("input", -0.1, "")), "Why: kernels, 25 of the 30 ms between their steps (made)."),
        (gap(*bars[1:], Bar("unexplained", 0.026, "")), "No phase explains the 30.0 ms between their steps."),
        (gap(*bars, untrusted="phases do not close"), "Why is not known: phases do not close."),
        (other, "Why is not known: the steps of both were not split into phases."),
    ]
    found = [sentences([ranking(2, behind())], case, (other, one))[2] for one, _ in why]
    assert found == [words for _, words in why]


def test_speed_is_that_of_the_fastest_case_of_each_network(case: CaseEvidence) -> None:
    made = [with_rate(case, 500.0, network=f"net{n}") for n in range(5)]
    found = _speed([*made, with_rate(case, 853.3, network="net0", batch=64)])
    assert found.startswith("net0 under pytorch/ddp reaches 853.3 samples/s at batch 64 on 2 ranks; net1 under")
    assert found.endswith(
        "; net3 under pytorch/ddp reaches 500.0 samples/s at batch 32 on 2 ranks; and 1 more networks."
    )
    assert _speed(made[:4]).endswith("batch 32 on 2 ranks.")


def test_a_case_names_its_largest_phase_and_a_larger_one_its_efficiency(case: CaseEvidence) -> None:
    assert _phase(case) == "Of its 120 ms step, backward takes the largest part, 66.7 %."
    open_ = {"forward": 0.04, "backward": 0.07, "other": 0.01}
    assert _phase(replace(case, result=replace(case.result, phases=open_))).endswith("is not known.")
    scaled = []
    for ranks in (4, 2):
        one = with_rate(case, 1.0, ranks=ranks)
        speedup = Interval(ranks / 2, 1.0, 3.0)
        scaled.append(replace(one, result=replace(one.result, speedup=speedup, base_ranks=1, efficiency=0.5)))
    found = summary(scaled)
    assert found[1] == "From 1 to 4 ranks lenet becomes 2.00 times as fast, an efficiency of 50.0 %."


@pytest.mark.parametrize(("efficiency", "doubted"), [(1.49, False), (1.51, True), (9.5, True)])
def test_a_speed_up_that_ranks_cannot_add_is_doubted(case: CaseEvidence, efficiency: float, doubted: bool) -> None:
    one = with_rate(case, 1.0, ranks=2)
    result = replace(one.result, speedup=Interval(2 * efficiency, 1.0, 30.0), base_ranks=1, efficiency=efficiency)
    said = summary([replace(one, result=result)])[1]
    assert said.endswith("something slowed the launches on 1 rank, measure again.") == doubted


FINDING = Finding("cause", "Title", "id", "the case", ("seen",), Interval(0.25, 0.2, 0.3), Change("setting", "this"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "What would help most: this for the case, predicted to save 25.0 % of the time per sample."),
        ({"first": True}, "Title in the case: seen."),
        (
            {"measured_gain": Interval(0.1, 0.05, 0.2)},
            "What would help most: this for the case, measured to save 10.0 % (confirmed) of the time per sample.",
        ),
    ],
)
def test_the_first_advice(changes: dict[str, Any], words: str) -> None:
    assert _first(replace(FINDING, **changes)) == words


def test_no_advice_says_whether_there_were_launches_enough(case: CaseEvidence) -> None:
    def advice(launches: int, unsure: int, refuted: tuple[Finding, ...] = ()) -> str:
        one = replace(case, launches=replace(case.launches, steps=case.launches.steps[:launches]))
        return summary([one], unsure=(FINDING,) * unsure, refuted=refuted)[2]

    assert advice(1, 0).startswith("One launch of a case shows nothing")
    assert advice(2, 0) == "No single change is shown to save 5 % or more of the time per sample."
    assert advice(2, 3).endswith("; 3 that might are within the noise of these launches.")
    tried = replace(FINDING, measured_gain=Interval(0.01, 0.0, 0.02))
    assert advice(2, 1, (tried,)) == (
        "Tried and refuted: this for the case, predicted to save 25.0 % of the time per sample, saves 1.0 %; "
        "nothing else is shown to help."
    )
    failed = replace(case, result=replace(case.result, throughput=None, num_failed=3))
    assert summary([failed]) == ("None of the 1 cases has a result: all 3 launches failed.",)


def test_what_rests_on_phases_that_do_not_close_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(name: str, *, closes: bool) -> Any:
        return SimpleNamespace(run=SimpleNamespace(case_id=name), result=SimpleNamespace(step_s=1.0, closes=closes))

    monkeypatch.setattr(explanation, "RULES", (lambda case: replace(FINDING, case_id=case.run.case_id),))
    monkeypatch.setattr(explanation, "compare_cases", lambda cases: [])
    shown, unsure = explanation._rank_findings([case("sound", closes=True), case("open", closes=False)])
    assert ([one.case_id for one in shown], [one.case_id for one in unsure]) == (["sound"], ["open"])
    monkeypatch.setattr(explanation, "RULES", (lambda case: replace(FINDING, case_id=case.run.case_id, first=True),))
    assert len(explanation._rank_findings([case("open", closes=False)])[0]) == 1, "a condition of the numbers is told"
