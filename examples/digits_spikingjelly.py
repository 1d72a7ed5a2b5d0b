"""A spiking network of SpikingJelly with binary weights: pip install spikingjelly.

python examples/digits_spikingjelly.py [full|st|bayes]
"""

import sys

from digits_cnn import RULES, train
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import Tensor, nn

STEPS = 8


def neurons() -> nn.Module:
    return neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan(), step_mode="m")


class SpikingJelly(nn.Module):
    """Logits (B, 10), the mean over the time steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256), neurons(), nn.Linear(256, 256), neurons(), nn.Linear(256, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        functional.reset_net(self)
        return self.layers(x.expand(STEPS, *x.shape)).mean(0)


if __name__ == "__main__":
    for method in sys.argv[1:] or ("full", *RULES):
        train(SpikingJelly, method, (64,), gain=2.0)
