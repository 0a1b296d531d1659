"""Real engines on the hosts of a virtual cluster: sshd, Slurm, Ray. They live in its namespaces and end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.bench.virtual.lifecycle import VirtualCluster
from paceline.bench.virtual.namespaces import on_host


def on(up: VirtualCluster, host: str, command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command on a host to its end."""
    settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": 120, **options}
    done = subprocess.run(on_host(up.pid_of(host), command, directory=Path("/")), check=False, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done  # type: ignore[no-any-return]


def wait_until(true: object, what: str, patience_s: float = 60.0) -> None:
    """Until a function says yes."""
    deadline = time.monotonic() + patience_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} did not happen in {patience_s} s"
        time.sleep(0.1)


def start_sshd(up: VirtualCluster, folder: Path) -> Path:
    """One sshd on each host with keys of its own; the client configuration that reaches them."""
    folder.mkdir(parents=True)
    for name in ("hostkey", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized_keys").write_text((folder / "id.pub").read_text())
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/hostkey\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\nMaxStartups 64\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    lines = []
    for seat in up.layout.seats:
        listen = f"ListenAddress={seat.address}"
        pid = f"PidFile={folder}/{seat.name}.pid"
        on(up, seat.name, ["/usr/sbin/sshd", "-f", str(folder / "sshd_config"), "-o", listen, "-o", pid])
        lines.append(f"Host {seat.name}\n HostName {seat.address}\n")
    common = f" User root\n IdentityFile {folder}/id\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n"
    config = folder / "config"
    config.write_text("".join(lines) + "Host *\n" + common + " LogLevel ERROR\n")
    return config


SLURM_CONF = """
ClusterName=virtual
SlurmctldHost={first}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
"""


def start_slurm(up: VirtualCluster, folder: Path) -> dict[str, str]:
    """munged, slurmctld on the first host, slurmd on each; the variables that commands of Slurm need."""
    for name in ("state", *(f"spool.{seat.name}" for seat in up.layout.seats)):
        (folder / name).mkdir(parents=True)
    _start_munge(up, folder)
    first = up.layout.seats[0]
    conf = SLURM_CONF.format(first=first.name, address=first.address, folder=folder)
    for seat in up.layout.seats:
        conf += f"NodeName={seat.name} NodeAddr={seat.address} CPUs=4 RealMemory=1000\n"
    names = ",".join(seat.name for seat in up.layout.seats)
    conf += f"PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4\n"
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n")
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    on(up, first.name, ["slurmctld", "-f", env["SLURM_CONF"]], env=env, stdout=None, stderr=None, capture_output=False)
    for seat in up.layout.seats:
        command = ["slurmd", "-f", env["SLURM_CONF"], "-N", seat.name]
        on(up, seat.name, command, env=env, stdout=None, stderr=None, capture_output=False)
    ready = ["sinfo", "--noheader", "--Node", "--format=%T"]
    wait_until(
        lambda: on(up, first.name, ready, env=env).stdout.split().count("idle") == len(up.layout.seats), "idle nodes"
    )
    return env


def _start_munge(up: VirtualCluster, folder: Path) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for path in (folder, *folder.parents):
        if path.owner() == "root" and path != Path("/tmp") and len(path.parts) > 2:
            path.chmod(path.stat().st_mode | 0o055)
    parts = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
    words = [f"--{name}={folder}/{part}" for name, part in {**parts, "seed-file": "munge.seed"}.items()]
    on(up, up.layout.seats[0].name, ["munged", "--force", *words])


def start_ray(up: VirtualCluster, python: Path) -> str:
    """A head on the first host and a worker on each other one; the address of the cluster."""
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--num-cpus=2", "--object-store-memory=100000000"]
    command.append("--disable-usage-stats")
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    first = up.layout.seats[0]
    address = f"{first.address}:6379"
    quiet = {"env": env, "capture_output": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for seat in up.layout.seats:
        role = ["--head", "--port=6379", "--include-dashboard=false"] if seat is first else [f"--address={address}"]
        own = ["sh", "-c", 'mkdir -p /tmp/ray; mount -t tmpfs none /tmp/ray; exec "$@"', "sh"]
        on(up, seat.name, [*own, *command, *role, f"--node-ip-address={seat.address}"], **quiet)
    return address


def missing_programs() -> list[str]:
    """What `make test-cluster` would install."""
    needed = ("slurmctld", "slurmd", "munged", "mpirun.openmpi", "mpirun.mpich", "sshd", "iptables", "iperf3", "ping")
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in needed if shutil.which(name, path=path) is None]
