"""A first network in 40 lines: Bayes-BiSNN on two moons, by hand.

    python examples/first_network.py

`bisnn train two_moons_bayes` does all this and more.
"""

import torch
from rich.progress import track

import bisnn
from bisnn.data import two_moons

train, test = two_moons(seed=0)  # 200 training points per class in the unit square


def spikes(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Population code, ten neurons per dimension: (B, 2) -> (T, B, 20)."""
    return bisnn.encode.population(x, 100, neurons=10, width=1.0, seed=seed)


net = bisnn.Network(
    bisnn.Linear(20, 256),
    bisnn.Linear(256, 256),
    readout=2,
    readout_gain=4.0,
    neuron=bisnn.SRM(threshold=0.3, slope=4.0),
)
rule = bisnn.BayesBiSNN(
    net.parameters(), lr=0.05, temperature=1e-3, straight_through=True, precondition="adam"
)

for step in track(range(150), "training"):
    batch = torch.randperm(400, generator=torch.Generator().manual_seed(step))[:40]
    with rule.sampled():  # the parameters hold a sample of the binary weights in here
        loss = bisnn.local_loss(net(spikes(train.x[batch], step)), train.y[batch], burn_in=10)
        loss.backward()
    rule.step()  # natural-gradient step on the posterior's logits

result = bisnn.predict(net, spikes(test.x[:500], 0), samples=10, burn_in=10)
corners = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
nowhere = bisnn.predict(net, spikes(corners, 0), samples=10, burn_in=10)
for name, metric in bisnn.metrics.METRICS.items():
    print(f"{name:9} {metric(result.mean, test.y[:500]):.3f}")
confidence, unsure = (p.mean.max(-1).values for p in (result, nowhere))
print("confidence on the test points:", round(confidence.mean().item(), 3))
print("confidence in the empty corners:", [round(c, 3) for c in unsure.tolist()])
