"""A user's script: trains a small model of timm or transformers, built from a configuration; prints its median step.

python benchmarks/lib/model_script.py resnet|vit|gpt2|bert
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WARMUP = 80, 15
LENGTH, WORDS = 64, 2000
WIDTHS = {"num_hidden_layers": 4, "hidden_size": 192, "num_attention_heads": 4, "intermediate_size": 768}


WITHOUT_OPERATORS = ("nms", "qnms")


class Scores(nn.Module):
    """A model whose output is its scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of every position of a text."""
        scores: Tensor = self.model(inputs).logits
        return scores.flatten(0, -2)


def of_timm(name: str) -> nn.Module:
    """A model of timm, which imports torchvision; its operators, of which none is called, may not load."""
    try:
        import timm.models as models
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in WITHOUT_OPERATORS:
            library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        for module in [module for module in sys.modules if module.startswith(("torchvision", "timm"))]:
            del sys.modules[module]
        import timm.models as models
    if name == "resnet":
        block = models.resnet.BasicBlock
        return models.resnet.ResNet(block, (2, 2, 2, 2), num_classes=10, channels=(32, 64, 128, 256))
    return models.VisionTransformer(img_size=64, patch_size=8, num_classes=10, depth=4, embed_dim=192, num_heads=4)


def built(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Model, inputs and targets."""
    if name in ("resnet", "vit"):
        return of_timm(name), torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    import transformers

    tokens, targets = torch.randint(WORDS, (4, LENGTH)), torch.randint(WORDS, (4 * LENGTH,))
    if name == "gpt2":
        gpt = transformers.GPT2Config(n_layer=4, n_embd=192, n_head=4, vocab_size=WORDS, n_positions=LENGTH)
        return Scores(transformers.GPT2LMHeadModel(gpt)), tokens, targets
    bert = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **WIDTHS)
    return Scores(transformers.BertForMaskedLM(bert)), tokens, targets


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
