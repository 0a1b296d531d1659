"""The adapter that converts a case to PaddlePaddle processes."""

from __future__ import annotations

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, rank_endpoint
from paceline.bench.job import CaseLaunch
from paceline.spec.cluster import Placed

__all__ = ["Paddle"]


class Paddle(PolicyAdapter):
    """paddle.DataParallel over Gloo; the variables are those that its own launcher would set."""

    name = "paddle"
    module = "paceline.bench.frameworks.paddle.worker"

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """Variables of the rank among the trainers."""
        if launch.case.ranks == 1:
            return {}
        meet = launch.rendezvous
        endpoints = [rank_endpoint(launch, other) for other in launch.placement]
        return {
            "PADDLE_MASTER": f"{meet.address}:{meet.ports[1]}",
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_TRAINER_ID": str(placed.rank),
            "PADDLE_TRAINERS_NUM": str(launch.case.ranks),
            "PADDLE_LOCAL_RANK": str(placed.local_rank),
            "PADDLE_LOCAL_SIZE": str(launch.case.ranks),
            "PADDLE_GLOBAL_RANK": str(placed.rank),
            "PADDLE_GLOBAL_SIZE": str(launch.case.ranks),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[placed.rank],
            "PADDLE_NNODES": "1",
            "FLAGS_selected_cpus": "0",
        }
