"""A user's script: trains a small model of timm or transformers, built from a configuration; prints its median step.

python benchmarks/lib/model_script.py timm-resnet18|timm-vit|gpt2|bert
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import timm
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WARMUP = 80, 15
LENGTH, WORDS = 64, 2000


class Language(nn.Module):
    """A language model whose output is its scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every position."""
        scores: Tensor = self.model(input_ids=tokens).logits.flatten(0, 1)
        return scores


def built(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Model, inputs and targets."""
    if name.startswith("timm-"):
        wanted = {"timm-resnet18": "resnet18", "timm-vit": "vit_tiny_patch16_224"}[name]
        more = {"img_size": 64, "patch_size": 8, "depth": 6} if name == "timm-vit" else {}
        model = timm.create_model(wanted, pretrained=False, num_classes=10, **more)
        return model, torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    tokens, targets = torch.randint(WORDS, (4, LENGTH)), torch.randint(WORDS, (4 * LENGTH,))
    if name == "gpt2":
        gpt = transformers.GPT2Config(n_layer=4, n_embd=192, n_head=4, vocab_size=WORDS, n_positions=LENGTH)
        return Language(transformers.GPT2LMHeadModel(gpt)), tokens, targets
    bert = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=192, num_attention_heads=4, intermediate_size=768, vocab_size=WORDS,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    return Language(transformers.BertForMaskedLM(bert)), tokens, targets


def main() -> None:
    """Train, on all ranks that torchrun started."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, inputs, targets = built(sys.argv[1])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
        os.sched_setaffinity(0, {dist.get_rank() % (os.cpu_count() or 1)})
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(inputs), targets).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"model": sys.argv[1], "step_s": statistics.median(times[WARMUP:])}))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
