"""Clusters that the model's tests ask about."""

from paceline.spec.cluster import Cluster, Device, Host, Link

V100 = Device(name="v100", peak={"float32": 15.7e12, "float16": 125e12}, memory=16e9, memory_bandwidth=900e9, price=3.0)


def cluster(hosts: int = 4, local: int = 4, *, device: Device = V100, gigabits: float = 10.0) -> Cluster:
    link = Link(name="net", bandwidth=gigabits / 8 * 1e9, latency=2e-5)
    inside = Link(name="bus", bandwidth=12e9, latency=5e-6)
    machines = tuple(Host(name=f"h{n}", devices=(device,) * local, inside=inside, link=link) for n in range(hosts))
    return Cluster(name="test", hosts=machines)
