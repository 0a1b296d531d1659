"""Horovod's rendezvous server on a given port, so that any launcher can start the ranks."""

from __future__ import annotations

import os

from paceline import variables

__all__ = ["main"]


def main() -> None:
    """Serve until the launch ends."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    hosts = parse_hosts(os.environ[variables.HOROVOD_HOSTS])
    slots = get_host_assignments(hosts, sum(host.slots for host in hosts))
    server = RendezvousHTTPServer(
        (os.environ[variables.HOROVOD_ADDRESS], int(os.environ[variables.HOROVOD_PORT])), RendezvousHandler, 0
    )
    server.init(slots)
    server.serve_forever()


if __name__ == "__main__":
    main()
