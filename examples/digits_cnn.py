"""A convolutional network of torch.nn with binary weights, by ST-BiSNN and Bayes-BiSNN.

    python examples/digits_cnn.py [full|st|bayes]

scikit-learn's digits, 8 x 8 pixels. Nothing in the network knows of bisnn: `binarise` says which of
its weights become +1 or -1, and the rule trains it as any optimizer does. `train` is shared by the
examples with networks of other libraries.
"""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import bisnn

EPOCHS, BATCH = 15, 32
RULES: dict[str, Callable[..., bisnn.STBiSNN | bisnn.BayesBiSNN]] = {
    "st": lambda groups: bisnn.STBiSNN(groups, lr=0.01, precondition="adam"),
    "bayes": lambda groups: bisnn.BayesBiSNN(
        groups, lr=0.3, temperature=1e-5, tau=0.5, straight_through=True,
        precondition="adam", betas=(0.9, 0.95),
    ),
}  # fmt: skip


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 16, 10),
    )  # fmt: skip


def train(
    build: Callable[[], nn.Module], method: str, shape: tuple[int, ...], gain: float = 1.0
) -> float:
    """Train on three quarters of the digits; the accuracy on the others."""
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x = (x / 16).float().reshape(len(x), *shape)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=0)
    torch.manual_seed(0)
    net = build()
    rule = None
    if method in RULES:
        groups = bisnn.binarise(net, gain=gain, real_lr=0.01)
        print(groups)
        rule = RULES[method](groups)
    optimizer = rule or torch.optim.Adam(net.parameters(), lr=2e-3)
    steps = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in track(range(EPOCHS), f"{build.__name__}, {method}"):
        for batch in torch.randperm(len(x)).split(BATCH):

            def loss(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                error = F.cross_entropy(net(x[batch]), y[batch])
                error.backward()
                return error

            optimizer.step(loss)  # a rule calls it while the weights hold a realisation
            schedule.step()
    if rule is None:
        with torch.no_grad():
            guess = net.eval()(x_test)
    else:
        guess = bisnn.predict(net, x_test, 10 if rule.has_posterior else None, rule=rule).mean
    accuracy = (guess.argmax(-1) == y_test).float().mean().item()
    print(f"{build.__name__}, {method}: accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    for method in sys.argv[1:] or ("full", *RULES):
        train(cnn, method, (1, 8, 8))
