"""A verdict on observed steps in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.units import SECONDS, format_count, format_share

if TYPE_CHECKING:  # Importing the analysis would make every verb slow to start.
    from paceline.explain.watched import StepCause, StepVerdict

__all__ = ["alert_line", "replay_lines", "verdict_document", "verdict_lines"]

DAY_S = 86400.0
SPLITS = (("stage", "by_stage"), ("rank", "by_rank"), ("data-parallel rank", "by_dp_rank"), ("operation", "by_kind"))
BLAMED = {
    "stage": "give it fewer layers",
    "rank": "look at what else runs on its host, and at its clock and temperature; if it stays slow, replace it",
    "data-parallel rank": "look at its samples (longer than those of the others?) and at its hosts",
}
LINK_BLAMED = "look at the links that it uses"
"""Advice if most of the loss is communication."""
DELAYED = "`first-op` waits for the batch, other operations for the host that launches them"
CLOCKS_DIFFER_S = 0.002
"""Ends of one collective on two ranks are nearer to each other than that, on one clock."""
PHASE_WORDS = {
    "io": "input",
    "h2d": "copies to the device",
    "aggregate": "exposed exchange",
    "other": "outside of the phases",
    "any": "any phase",
    "step": "",
}
ADVICE = {
    "slow_rank": "look at what else runs on the host of {who}, and at its clock and temperature; if it stays "
    "slow, replace it, or give it a smaller share (`paceline plan`)",
    "slowdown": "look at what began on the hosts at that step: other jobs, clocks, memory that grows, longer samples",
    "io": "DataLoader(..., num_workers=2, prefetch_factor=2), or store decoded samples",
    "other": "move logging, .item(), evaluation and checkpoints out of the step, or do them less often",
    "batch": "a larger batch per rank, or several batches for one update (gradient accumulation); a fused optimiser",
    "threads": "OMP_NUM_THREADS or torch.set_num_threads(): no more threads of all ranks of a host than it has cores",
    "collections": "gc.freeze() after the set-up and gc.disable() in the loop, with gc.collect() now and then",
}
OF_STAGE = "if its stage computes more than the others, give it fewer layers; if not, "
GRADIENTS = "the exchange of gradients"
EXCHANGES = {
    "stages": (
        "other stages of the pipeline",
        "balance the layers of the stages; more micro-batches, or interleaved stages, shorten filling and draining",
    ),
    "link": (
        GRADIENTS,
        "larger buckets, fewer ranks per link, gradients in half precision; `paceline explain` prices each",
    ),
    "buckets": (f"{GRADIENTS}: its buckets are small", "DistributedDataParallel(..., bucket_cap_mb=25)"),
    "overlap": (
        f"{GRADIENTS}: nothing hides it",
        "DistributedDataParallel, whose buckets travel during the backward pass",
    ),
    "server": (
        f"{GRADIENTS}: one rank serves the others",
        "DistributedDataParallel, or all_reduce: no rank has all of the bytes",
    ),
    "shards": (
        "exchanges: ranks gather what they have shards of",
        "shard larger units, and fewer ranks (HSDP: replicas between hosts, shards within); keep weights after forward "
        "where the memory allows it (reshard_after_forward=False); exchange in half precision",
    ),
    "unused": (
        f"{GRADIENTS}: it looks for unused parameters",
        "find_unused_parameters=False, as every parameter is used",
    ),
}
"""For each reason: what the step waits for, and what to do."""
STALL_ADVICE = {
    "aggregate": "look at the link at these steps: checkpoints or other jobs that use it, errors of a port",
    "io": "more loader workers or a longer prefetch, or look at the storage at these steps",
    "other": "look at what the loop does at these steps: logging, evaluation, checkpoints",
    "update": "look at what the optimiser does at these steps, such as a schedule or a flush of its state",
}


def verdict_lines(judgement: StepVerdict, campaign: str, launcher: str = "watch") -> Iterator[str]:
    """The verdict on watched or imported steps: their parts, and what lengthens them."""
    ranks = format_count(judgement.num_ranks, "rank")
    step = SECONDS.format(judgement.step_s)
    did = "imported" if launcher == "import" else "watched"
    yield f"paceline {did} {judgement.num_steps} steps on {ranks}, {step} a step: {campaign}"
    if judgement.replay:
        yield from (f"  {line}" for line in replay_lines(judgement.replay))
    if judgement.why_not:
        yield f"  {judgement.why_not}"
        return
    parts = sorted(judgement.shares.items(), key=lambda item: -item[1])
    waiting = f"; ranks wait for each other {format_share(judgement.waiting)} of the time" * (judgement.waiting > 0.01)
    words = [f"{PHASE_WORDS.get(name, name)} {format_share(share)}" for name, share in parts if share > 0.001]
    if words:
        yield f"  a typical step: {', '.join(words)}{waiting}"
    if not judgement.causes:
        yield "  Nothing is shown to lengthen the steps."
    for number, cause in enumerate(judgement.causes, start=1):
        yield f"  {number}. {title_of(cause)}"
        yield f"     costs {_cost(cause)}"
        yield f"     do: {advice_for(cause)}"


def replay_lines(replay: Mapping[str, Any]) -> Iterator[str]:
    """Time of a pipeline without stragglers, and the ranks and stages that lengthen it."""
    measured, replayed, ideal = (f"{replay[name]:.3f} s" for name in ("measured_s", "replayed_s", "ideal_s"))
    low, cost, high = (
        replay.get("cost") or [max(0.0, 1 - replay["ideal_s"] / replay["replayed_s"])] * 3
    )  # stored before
    sure = f" (95 %: {format_share(low)} to {format_share(high)})" if low < high else ""
    yield (f"a step takes {measured}; replayed without delays between operations {replayed}, without stragglers "
           f"{ideal}: stragglers cost {format_share(cost)} of the time{sure}, "
           f"{SECONDS.format(DAY_S * cost)} of every day")  # fmt: skip
    for what, name in SPLITS:
        found = list(replay[name].items())[:4]
        if found:
            yield f"  by {what}: " + ", ".join(f"{key} {value:.3f} x" for key, value in found)
    if replay.get("delays"):
        firsts = {name: next(iter(split.items())) for name, split in replay["delays"].items()}
        parts = (f"{what} {firsts[name][0]} {firsts[name][1]:.3f} x" for what, name in SPLITS if name in firsts)
        share = format_share(1 - replay["replayed_s"] / replay["measured_s"])
        yield f"  delays between operations cost {share} of the time; by the delays of {', '.join(parts)}; {DELAYED}"
    if replay["clock_s"] > CLOCKS_DIFFER_S:
        yield (f"note: the clocks of the ranks differ by about {SECONDS.format(replay['clock_s'])}, by the ends of "
               "collectives: put start_ts on one clock, otherwise the slow rank is not known")  # fmt: skip
    if replay.get("unpaired"):
        yield (f"note: {replay['unpaired']} sends and receives lack their computation or their peer: some operations "
               "were not recorded, and the replay is wrong by what they take")  # fmt: skip
    if replay["blame"] and not replay["clock_s"] > CLOCKS_DIFFER_S:
        what, which = replay["blame"]
        if what == "micro-batches":
            yield (f"first cause: micro-batches of unequal length make the step {float(which):.2f} times as long; "
                   "balance the tokens of micro-batches and ranks")  # fmt: skip
            return
        value = replay[dict(SPLITS)[what]][which]
        kind = next(iter(replay["by_kind"]))
        advice = BLAMED[what] if kind.endswith("-compute") else LINK_BLAMED
        yield (f"first cause: {what} {which} alone makes the step {value:.2f} times as long, mostly by {kind}"
               f"{_when(replay)}; {advice}")  # fmt: skip


def _when(replay: Mapping[str, Any]) -> str:
    slow, steps = replay.get("slow_steps"), replay["num_steps"]
    if not slow or steps < 2:
        return ""
    if replay["pattern"] == "transient":
        return f", in {len(slow)} of {steps} steps, first in step {slow[0]} (transient)"
    return f", {'in all steps' if replay['since'] is None else 'since step ' + str(replay['since'])} (persistent)"


def alert_line(alert: Mapping[str, Any]) -> str:
    """One line while the training runs."""
    on = f" on {alert['host']}" if alert["host"] else ""
    who = "every rank" if alert["rank"] is None else f"rank {alert['rank']}{on}"
    where = PHASE_WORDS.get(alert["phase"], alert["phase"])
    return (f"paceline watch: step {alert['at_step']}: {who} is slow since step {alert['since']}: a step's work takes "
            f"{alert['factor']:.2f} times as long as before, mostly {where}")  # fmt: skip


def title_of(cause: StepCause) -> str:
    """The title of a cause: rank, phase, onset and duration."""
    who = "" if cause.rank is None else f"{_ranks(cause)} "
    named = PHASE_WORDS.get(cause.phase, cause.phase)
    where = named if cause.phase in ("other", "step") else f"in {named}"
    if cause.kind == "stalls":
        how = f"every {cause.every} steps" if cause.every else f"in {cause.count} of {cause.num_steps} steps"
        there = f"stalls {where}".rstrip()
        return f"{who or 'the step '}{there} {how}, first in step {cause.since} ({cause.pattern})"
    repeated, mostly = f" every {cause.every} steps" if cause.every else "", f", mostly {where}" if where else ""
    words = {
        "slow_rank": f"{who}{'hold' if cause.ranks else 'holds'} up the others{mostly}",
        "slowdown": f"{who or 'every rank '}became slower{mostly}",
        "io": "the step waits for its batch",
        "aggregate": f"the step waits for {EXCHANGES[cause.reason or 'link'][0]}",
        "other": "the step spends time outside of its phases",
        "collections": f"Python's garbage collection interrupts the steps{repeated}",
        "batch": "the batch is small for the weights: update and exchange take longer than their share",
        "threads": "the ranks of a host have more compute threads than it has cores",
    }
    since = "from the beginning" if cause.since is None else f"since step {cause.since}"
    until = "" if cause.until is None else f" until step {cause.until}"
    return f"{words[cause.kind]}, {since}{until} ({cause.pattern})"


def _ranks(cause: StepCause, most: int = 8) -> str:
    if not cause.ranks:
        return f"rank {cause.rank}"
    return f"ranks {', '.join(map(str, cause.ranks[:most]))}{' ...' if len(cause.ranks) > most else ''}"


def _cost(cause: StepCause) -> str:
    if cause.kind == "threads":
        return (
            f"an unknown part of the {format_share(cause.share.value)} of compute: one number of threads does not tell"
        )
    low, high = (format_share(min(1.0, max(0.0, value))) for value in (cause.share.low, cause.share.high))
    a_day = SECONDS.format(DAY_S * cause.share.value)
    return f"{format_share(cause.share.value)} of the time (95 %: {low} to {high}), {a_day} of every day"


def advice_for(cause: StepCause) -> str:
    """The advice for a cause."""
    if cause.kind == "stalls":
        default = "look at what runs on the host at these steps: daemons, other jobs, garbage collection"
        return STALL_ADVICE.get(cause.phase, default)
    if cause.kind == "aggregate":
        return EXCHANGES[cause.reason or "link"][1]
    return OF_STAGE * (cause.reason == "stages") + ADVICE[cause.kind].format(who=_ranks(cause))


def verdict_document(judgement: StepVerdict | None, campaign: str, note: str) -> dict[str, Any]:
    """The verdict as plain data."""
    if judgement is None:
        return {"campaign": None, "note": note}
    causes = [
        {
            "kind": cause.kind, "phase": cause.phase, "rank": cause.rank, "ranks": list(cause.ranks),
            "since": cause.since, "until": cause.until,
            "every": cause.every, "pattern": cause.pattern, "reason": cause.reason, "share": cause.share.value,
            "interval": [cause.share.low, cause.share.high], "title": title_of(cause), "advice": advice_for(cause),
        }
        for cause in judgement.causes
    ]  # fmt: skip
    return {
        "campaign": campaign, "ranks": judgement.num_ranks, "steps": judgement.num_steps, "step_s": judgement.step_s,
        "shares": judgement.shares, "waiting": judgement.waiting, "causes": causes, "note": judgement.why_not,
        **({"replay": dict(judgement.replay)} if judgement.replay else {}),
    }  # fmt: skip
