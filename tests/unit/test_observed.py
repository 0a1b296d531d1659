"""Observed steps as runs: every reader of a study's runs reads them, and what is wrong is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline import api
from paceline.cli import program
from paceline.errors import InputError, PacelineError
from paceline.measurements.results import campaign_results
from paceline.measurements.run import Span, Step
from paceline.measurements.store import Store
from paceline.measurements.trace.observed import Observed, ObservedStep, exposed_steps, observed_steps, record

PHASES = {"io": 0.004, "h2d": 0.0, "forward": 0.03, "backward": 0.05, "aggregate": 0.008, "update": 0.006}


def layers(rank: int) -> list[Span]:
    spans = [Span(rank, 4, "forward", f"layer{n}", 0.01 * n, 0.01) for n in range(3)]
    return spans + [
        Span(rank, 4, "backward", f"layer{n}.weight", 0.03 + 0.016 * (2 - n), 0.016, 4000) for n in range(3)
    ]


def observed(ranks: int = 2, *, name: str = "mine", slow: float = 0.0, factor: float = 1.0) -> Observed:
    steps = [
        ObservedStep(rank, number, 0.1 * number, 0.1 * factor, {name: factor * value for name, value in
                     ({**PHASES, "backward": 0.05 + slow, "aggregate": 0.008 - slow} if rank else PHASES).items()})
        for number in range(40) for rank in range(ranks)
    ]  # fmt: skip
    spans = [span for rank in range(ranks) for span in layers(rank)]
    return Observed(
        name=name, ranks=ranks, steps=steps, launcher="watch", network="Net", batch=16, spans=spans, warmup=9
    )


def test_phases_come_back_as_they_were_observed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (result,) = campaign_results(store, record(observed(), store))
    assert result.phases == pytest.approx({**PHASES, "other": 0.002}, abs=1e-9)
    assert result.step_s is not None
    assert result.step_s.value == pytest.approx(0.1)
    assert result.throughput is not None
    assert result.throughput.value == pytest.approx(320)
    assert result.num_steps == 31
    assert result.instrument_overhead == 0


def test_time_outside_of_the_phases_is_measured_so_the_split_closes(tmp_path: Path) -> None:
    store, given = Store(tmp_path), observed()
    longer = replace(given, steps=[replace(step, seconds=step.seconds + 0.05) for step in given.steps])
    (result,) = campaign_results(store, record(longer, store))
    assert result.phases["other"] == pytest.approx(0.052)
    assert result.closes
    output = CliRunner().invoke(program, ["show", "mine", "--store", str(tmp_path)]).output
    assert "do not close" not in output


def test_the_steps_of_a_stored_run_are_those_that_were_recorded(tmp_path: Path) -> None:
    store, given = Store(tmp_path), observed()
    record(given, store)
    rows = [Step(**row) for row in store.load(store.names()[0]).steps.to_pylist()]
    found = observed_steps(rows)
    wanted = [step for step in given.steps if step.step >= 9]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one.rank, one.step, one.start_s, one.seconds) == (other.rank, other.step, other.start_s, other.seconds)
        assert one.phases == pytest.approx(other.phases, abs=1e-9)


def test_every_verb_reads_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record(observed(), store)
    here = ["--store", str(tmp_path)]
    for words in (["show", "mine"], ["explain", "mine"], ["report", "mine"], ["query", "SELECT count(*) FROM launches"],
                  ["export", "mine", "--to", "chrome", "-o", str(tmp_path / "trace.json")],
                  ["predict", "--from", "mine", "--cluster", "local", "--devices", "1,2"]):  # fmt: skip
        result = CliRunner().invoke(program, [*words, *here])
        assert result.exit_code == 0, (words, result.output, result.exception)


def test_a_profile_of_several_ranks_leaves_the_exchange_out(tmp_path: Path) -> None:
    record(observed(), Store(tmp_path))
    profile = api.profile_of_run("mine", tmp_path)
    assert [layer.name for layer in profile.layers] == ["layer0", "layer1", "layer2"]
    assert sum(layer.forward for layer in profile.layers) == pytest.approx(0.03)
    assert sum(layer.backward for layer in profile.layers) == pytest.approx(0.05)
    assert profile.update == pytest.approx(0.006 + 0.002)
    assert profile.io == pytest.approx(0.004)
    assert profile.batch == 16
    assert profile.crowd == 2


def test_explain_says_the_verdict_on_the_steps(tmp_path: Path) -> None:
    record(observed(slow=0.008), Store(tmp_path))
    (judgement,) = api.explain("mine", store=tmp_path).explanation.judgements
    (cause,) = judgement.causes
    assert (cause.kind, cause.rank, cause.phase, cause.since) == ("slow_rank", 1, "backward", None)
    output = CliRunner().invoke(program, ["explain", "mine", "--store", str(tmp_path)]).output
    assert "rank 1 holds up the others, mostly in backward, from the beginning (persistent)" in output
    (result,) = campaign_results(Store(tmp_path), Store(tmp_path).read_campaigns()[0]["campaign"])
    assert judgement.shares == pytest.approx(result.shares), "the verdict and `show` say the same"
    assert result.step_s is not None
    assert judgement.step_s == pytest.approx(result.step_s.value)
    document = json.loads(CliRunner().invoke(program, ["explain", "mine", "--json", "--store", str(tmp_path)]).output)
    assert document["observed"][0]["causes"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("factors", "code"),
    [
        ((1.2, 1.21, 1.19, 1.2), 1),
        ((1.0, 1.001, 0.999, 1.0), 0),
        ((0.8, 1.3, 1.0, 1.1), 2),
        ((1.2, 1.2), 1),
        ((1.2, 1.0), 2),
        ((1.2,), 1),
        ((1.0,), 0),
    ],
)
def test_the_gate_fails_only_where_the_loss_is_shown(tmp_path: Path, factors: tuple[float, ...], code: int) -> None:
    store = Store(tmp_path)
    for factor in factors:
        record(observed(name="branch", factor=factor), store)
        record(observed(name="main", factor=1 + (factor - factors[0]) / 50), store)
    words = ["compare", "branch", "main", "--fail-below", "0.97", "--store", str(tmp_path)]
    result = CliRunner().invoke(program, words)
    assert result.exit_code == code, result.output
    assert ("passes", "fails", "not decided")[code] in result.output
    assert json.loads(CliRunner().invoke(program, [*words, "--json"]).output)["exit_code"] == code


def test_what_is_not_a_training_is_refused(tmp_path: Path) -> None:
    store, good = Store(tmp_path), observed()
    step = good.steps[0]
    for wrong, said in (
        (replace(good, name="no name"), "no name for a run"),
        (replace(good, steps=()), "no step"),
        (replace(good, ranks=3), "no step of rank 2"),
        (replace(good, ranks=1), "a step of rank 1"),
        (replace(good, warmup=40), "warm-up"),
        (replace(good, steps=[*good.steps, replace(step, seconds=float("nan"))]), "lasts nan"),
        (replace(good, steps=[*good.steps, replace(step, seconds=0.09)]), "its phases"),
        (replace(good, steps=[*good.steps, replace(step, phases={"io": -0.01})]), "its phases"),
    ):
        with pytest.raises(InputError, match=said):
            record(wrong, store)
    assert store.names() == []
    assert store.read_campaigns() == []


def test_what_compute_covers_is_hidden() -> None:
    spans = [
        Span(0, 7, "forward", "f", 1.0, 2.0),
        Span(0, 7, "backward", "b", 3.0, 4.0),
        Span(0, 7, "aggregate", "bucket 1", 5.0, 1.0),
        Span(0, 7, "aggregate", "bucket 2", 6.5, 2.0),
        Span(0, 7, "io", "next batch", 2.0, 1.5),
        Span(0, 7, "update", "u", 8.5, 0.5),
        Span(1, 7, "forward", "f", 1.0, 1.0),
    ]
    one, other = exposed_steps(spans)
    assert (one.start_s, one.seconds) == (1.0, 8.0)
    assert one.phases == pytest.approx(
        {"forward": 2.0, "backward": 4.0, "aggregate": 1.5, "update": 0.5, "io": 0.0, "h2d": 0.0}
    )
    assert (other.rank, other.seconds) == (1, 1.0)
    (bound,) = exposed_steps(spans, {(0, 7): (2.0, 3.0)})
    assert bound.phases["forward"] == 1.0
    assert bound.phases["backward"] == 2.0
    assert bound.phases["aggregate"] == 0.0


@pytest.mark.parametrize(("option", "value"), [("--name", "a/b"), ("--store", "/proc/nowhere")])
def test_what_could_not_be_stored_is_refused_before_the_command_runs(tmp_path: Path, option: str, value: str) -> None:
    options = {"--store": str(tmp_path / "s"), option: value}
    words = ["watch", *(word for pair in options.items() for word in pair), "--", "touch", str(tmp_path / "ran")]
    done = CliRunner().invoke(program, words)
    assert isinstance(done.exception, PacelineError)
    assert value in str(done.exception)
    assert not (tmp_path / "ran").exists()


def test_a_log_without_phases_has_no_largest_one(tmp_path: Path) -> None:
    steps = tuple(ObservedStep(0, n, 2.0 * n, 2.0, {}) for n in range(3))
    record(Observed(name="bare", network="model", framework="pytorch/ddp", batch=1, ranks=1, steps=steps,
                    launcher="import"), Store(tmp_path))  # fmt: skip
    done = CliRunner().invoke(program, ["explain", "bare", "--store", str(tmp_path)])
    assert "does not split the step into phases" in done.output
