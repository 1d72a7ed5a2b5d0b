"""A spiking network of snnTorch with binary weights: pip install snntorch.

python examples/digits_snntorch.py [full|st|bayes]
"""

import sys

import snntorch
import torch
from digits_cnn import RULES, train
from torch import Tensor, nn

STEPS = 8


class SnnTorch(nn.Module):
    """Logits (B, 10), the mean over the time steps."""

    def __init__(self) -> None:
        super().__init__()
        surrogate = snntorch.surrogate.fast_sigmoid(slope=5)
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 256)
        self.out = nn.Linear(256, 10)
        self.fire_first = snntorch.Leaky(beta=0.9, spike_grad=surrogate)
        self.fire_second = snntorch.Leaky(beta=0.9, spike_grad=surrogate)

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.fire_first.init_leaky(), self.fire_second.init_leaky()
        outputs = []
        for _ in range(STEPS):
            s, u = self.fire_first(self.first(x), u)
            s, v = self.fire_second(self.second(s), v)
            outputs.append(self.out(s))
        return torch.stack(outputs).mean(0)


if __name__ == "__main__":
    for method in sys.argv[1:] or ("full", *RULES):
        train(SnnTorch, method, (64,), gain=2.0)
