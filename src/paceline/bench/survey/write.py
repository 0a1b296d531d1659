"""A survey as a cluster file: what was found as fields, how sure that is as comments beside them."""

from __future__ import annotations

import json
import statistics
from typing import Any

from paceline.bench.survey.survey import LinkFound, Survey
from paceline.units import BANDWIDTH, BYTES, SECONDS

__all__ = ["cluster_text"]

LONELY_BANDWIDTH = "1 GB/s"


def cluster_text(survey: Survey, *, name: str, how: str) -> str:
    """TOML that `paceline run` and `paceline predict` can read."""
    parts = [
        f"# Found by `paceline cluster inspect`; comments say how sure each figure is.\nname = {json.dumps(name)}",
        f"source = {json.dumps(how)}",
    ]
    parts += [_host(survey, index) for index in range(len(survey.hosts))]
    return "\n".join(parts) + "\n"


def _host(survey: Survey, index: int) -> str:
    host = survey.hosts[index]
    offset, error = survey.clock_offsets_s[index] if index < len(survey.clock_offsets_s) else (0.0, 0.0)
    stated = host["stated_bits_per_s"]
    lines = [
        "\n[[host]]",
        f"name = {json.dumps(host['host'])}",
        f"address = {json.dumps(host['address'])}",
        f"cores = {host['cores']}  # {_machine(host)}",
        f"devices = [{', '.join(_devices(host))}]",
        'inside = "loopback"',
        _link_line([link for link in survey.links if link.source == host["host"]], stated),
        f"# clock: {1e6 * offset:+.1f} us from the first host's, +- {1e6 * error:.1f} us",
    ]
    return "\n".join(lines)


def _machine(host: dict[str, Any]) -> str:
    return f"{host['cpu']}, {host['numa_nodes']} NUMA node(s), {BYTES.format(host['memory_bytes'])}"


def _devices(host: dict[str, Any]) -> list[str]:
    if not host["gpus"]:
        return ['"host-cpu"']
    return [
        f'{{ name = {json.dumps(gpu["name"])}, kind = "gpu", memory = "{BYTES.exact(gpu["memory_bytes"])}" }}'
        for gpu in host["gpus"]
    ]


def _link_line(links: list[LinkFound], stated: float | None) -> str:
    """The host's link: the median over its peers, and the spread of all samples."""
    if not links:
        return f'link = {{ name = "none", bandwidth = "{LONELY_BANDWIDTH}" }}  # one host: no link was measured'
    bandwidth = statistics.median(link.bandwidth for link in links)
    latency = statistics.median(link.latency for link in links)
    low, high = min(link.bandwidth_spread[0] for link in links), max(link.bandwidth_spread[1] for link in links)
    short, long = min(link.latency_spread[0] for link in links), max(link.latency_spread[1] for link in links)
    sure = (
        f"{BANDWIDTH.format(low)} to {BANDWIDTH.format(high)}, {SECONDS.format(short)} to {SECONDS.format(long)}, "
        f"{len(links)} peers" + (f"; the interface states {stated / 1e9:g} Gb/s" if stated else "")
    )
    figures = f'bandwidth = "{bandwidth / 1e6:.6g} MB/s", latency = "{latency * 1e6:.6g} us"'
    return f'link = {{ name = "measured", {figures} }}  # {sure}'
