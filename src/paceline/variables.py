"""Every environment variable of Paceline, by one constant each: its meaning, its default, which process sets it and
which reads it.

Read a variable as `os.environ[variables.RANK]`. No other module spells a variable's name. Workers import this module,
so it needs Python 3.9 and the standard library only.
"""

from __future__ import annotations

__all__ = [
    "ADDRESS",
    "AGENT_TOKEN",
    "BIN",
    "CORES",
    "DEBUG",
    "DEVICE",
    "EMULATION",
    "EVENTS",
    "GLOBAL_BATCH",
    "GROUP",
    "GROUP_SHARE",
    "HERE",
    "HOME",
    "HOROVOD_ADDRESS",
    "HOROVOD_HOSTS",
    "HOROVOD_PORT",
    "JOB",
    "JOIN",
    "LATE",
    "LOCAL_STEPS",
    "PARENT",
    "RANK",
    "RAY_PYTHON",
    "RENDEZVOUS",
    "ROSTER",
    "SECRET",
    "SECRET_FILE",
    "SIZE",
    "SPLIT",
    "STORE",
    "SYNCER",
    "SYNCER_SECRET",
    "TENSORFLOW_CLUSTER",
    "TENSORFLOW_TASK",
    "TOKEN",
    "WATCH",
    "WATCH_EVERY",
]

# For users: set these in the shell.

STORE = "PACELINE_STORE"
"""Directory of stored runs. Default: `./results`. Set by: the user. Read by: every command with `--store`."""

HOME = "PACELINE_HOME"
"""Directory of environments, generated data sets and virtual clusters. Default: `$XDG_CACHE_HOME/paceline`, else
`~/.cache/paceline`. Set by: the user. Read by: `bench`."""

DEBUG = "PACELINE_DEBUG"
"""Any value: the command line shows the traceback of an unexpected error. Default: not set. Set by: the user. Read by:
the command line."""

SECRET = "PACELINE_SECRET"
"""Shared secret of a training job, 16 characters or more: each process proves that it knows the secret before it joins.
Default: ranks that torchrun starts on one host make one. Set by: `paceline train`, or the user under mpirun, srun and
torchrun on several hosts. Read by: training processes, syncer shards."""

SECRET_FILE = "PACELINE_SECRET_FILE"
"""Path of a file with the secret, readable by its user alone, in place of `PACELINE_SECRET`. Default: no file. Set by:
the user. Read by: training processes."""

ADDRESS = "PACELINE_ADDRESS"
"""Address by which the other hosts reach this process. Default: the address of the interface that leads to the
rendezvous. Set by: the user, on hosts with several networks. Read by: training processes."""

DEVICE = "PACELINE_DEVICE"
"""Catalog name of the accelerator that `capture` writes into a profile. Default: the name that the driver reports. Set
by: the user. Read by: `paceline.capture`."""

RAY_PYTHON = "PACELINE_RAY_PYTHON"
"""Python interpreter that has Ray. Default: the interpreter beside the `ray` command, else this one. Set by:
the user. Read by: the Ray launcher."""

# For measured processes: set by `bench` for each rank of a launch.

JOB = "PACELINE_JOB"
"""Path of the JSON file that describes the launch. Default: required. Set by: `bench`. Read by: workers."""

RANK = "PACELINE_RANK"
"""Rank of the process, counted from 0. Default: the rank that torchrun, mpirun or srun sets, else 0. Set by: `bench`,
`paceline train`. Read by: workers, training processes."""

EVENTS = "PACELINE_EVENTS"
"""Path of the file to which the rank appends its events. Default: required. Set by: `bench`. Read by: workers."""

RENDEZVOUS = "PACELINE_MEET"
"""`host:port` of the rendezvous of a launch. Default: required. Set by: `bench`. Read by: workers."""

TOKEN = "PACELINE_TOKEN"
"""Shared secret of a launch's rendezvous. Default: required. Set by: `bench`. Read by: workers."""

AGENT_TOKEN = "PACELINE_AGENT_TOKEN"
"""Secret by which the agents and the launcher of a launch authenticate each other. Default: required, except inside
ssh. Set by: launchers of other hosts. Read by: agents."""

CORES = "PACELINE_CORES"
"""Processor cores of the rank, comma-separated. Default: empty, which means all cores. Set by: `bench`. Read by:
workers."""

PARENT = "PACELINE_PARENT"
"""Process id of the launcher; a worker whose parent is another process exits. Default: not checked. Set by: the local
launcher. Read by: workers."""

HERE = "PACELINE_HERE"
"""Directory in which the study was started, the blank `{here}` of a script's command. Default: required. Set by: the
script adapter. Read by: the script worker."""

BIN = "PACELINE_BIN"
"""Directory of the programs of a script's environment, the blank `{bin}`. Default: empty. Set by: the script adapter.
Read by: the script worker."""

HOROVOD_HOSTS = "PACELINE_HOSTS"
"""Hosts and slots of a Horovod launch, as `horovodrun -H` takes them. Default: required. Set by: the Horovod adapter.
Read by: the Horovod rendezvous process."""

HOROVOD_ADDRESS = "PACELINE_HOROVOD_ADDRESS"
"""Address on which the Horovod rendezvous process listens. Default: required. Set by: the Horovod adapter. Read by: the
Horovod rendezvous process."""

HOROVOD_PORT = "PACELINE_PORT"
"""Port on which the Horovod rendezvous process listens. Default: required. Set by: the Horovod adapter. Read by: the
Horovod rendezvous process."""

TENSORFLOW_CLUSTER = "PACELINE_CLUSTER"
"""Addresses of TensorFlow workers and parameter servers, as JSON by task type. Default: required. Set by: the
TensorFlow adapter. Read by: TensorFlow workers and parameter servers."""

TENSORFLOW_TASK = "PACELINE_TASK"
"""Task type and index of a TensorFlow parameter server, such as `ps 0`. Default: required. Set by: the TensorFlow
adapter. Read by: TensorFlow parameter servers."""

# For training processes: set by `paceline train` for each rank of a job.

JOIN = "PACELINE_JOIN"
"""`host:port` of the group's first leader. Default: the endpoint that torchrun, mpirun or srun sets. Set by: `paceline
train`. Read by: training processes."""

SIZE = "PACELINE_SIZE"
"""Number of processes that start the group. Default: the number that torchrun, mpirun or srun sets, else 1. Set by:
`paceline train`. Read by: training processes."""

ROSTER = "PACELINE_ROSTER"
"""Path of the file with the endpoints of the group's members, where a late joiner finds them. Default: no file. Set by:
`paceline train`. Read by: training processes."""

LATE = "PACELINE_LATE"
"""Any value: the process was restarted after the job began, so it joins an existing leader and is never the first
leader. Default: not set. Set by: `paceline train`, for restarted ranks. Read by: training processes."""

EMULATION = "PACELINE_EMULATION"
"""Device that the process emulates, as JSON. Default: none. Set by: `paceline train`, on emulated clusters. Read by:
training processes."""

GROUP = "PACELINE_GROUP"
"""Name of the process's group, where several groups train one model. Default: required with a syncer. Set by: `paceline
train`. Read by: training processes."""

GROUP_SHARE = "PACELINE_GROUP_SHARE"
"""Share of all samples that the group processes. Default: `1.0`. Set by: `paceline train`. Read by: training
processes."""

GLOBAL_BATCH = "PACELINE_GLOBAL_BATCH"
"""Samples per step of all groups, in place of the value in the script. Default: the value in the script. Set by:
`paceline train --plan`. Read by: training processes."""

SPLIT = "PACELINE_SPLIT"
"""Samples of each rank of the group in its first steps, comma-separated; later splits follow measured costs. Default:
equal shares. Set by: `paceline train --plan`. Read by: training processes."""

LOCAL_STEPS = "PACELINE_LOCAL_STEPS"
"""Steps of a group between two exchanges with the syncer. Default: `1`. Set by: `paceline train`. Read by: training
processes."""

SYNCER = "PACELINE_SYNCER"
"""`host:port` of each syncer shard, comma-separated. Default: not set, which means one group. Set by: `paceline train`.
Read by: training processes."""

SYNCER_SECRET = "PACELINE_SYNCER_SECRET"
"""Shared secret between groups and syncer shards. Default: required with a syncer. Set by: `paceline train`. Read by:
training processes."""

# For watched processes: set by `paceline watch` for the command that it runs.

WATCH = "PACELINE_WATCH"
"""Directory into which each watched process writes its records. Default: not set, which means not watched. Set by:
`paceline watch`. Read by: every Python process of the watched command."""

WATCH_EVERY = "PACELINE_WATCH_EVERY"
"""Sampling interval: one of this many steps is watched. Default: `1`. Set by: `paceline watch`. Read by: watched
processes."""
