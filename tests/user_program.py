"""What a user may write: the public API in one file. `test_typing.py` checks its types, strictly
and outside of the repository, and runs it in a folder of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import bisnn
from bisnn.sklearn import BiSNNClassifier, BiSNNRegressor


def spikes(x: Tensor, seed: int = 0) -> Tensor:
    return bisnn.encode.population(x, 20, neurons=10, width=1.0, seed=seed)  # (T, B, 20)


def train_by_hand(train: bisnn.data.Points) -> bisnn.Network:
    net = bisnn.Network(
        bisnn.Linear(20, 32),
        bisnn.Recurrent(32, 16),
        readout=2,
        readout_gain=2.0,
        neuron=bisnn.SRM(threshold=0.1, slope=4.0),
        weights=bisnn.Binary(),
    )
    rule = bisnn.BayesBiSNN(net.parameters(), lr=0.05, temperature=1e-3, precondition="adam")
    x, y = spikes(train.x), train.y
    for _ in range(2):
        with rule.sampled():
            out: bisnn.Output = net(x)
            loss = bisnn.local_loss(out, y) + 0.1 * bisnn.activity_loss(net, out)
            torch.autograd.backward(loss)
        rule.step()
    step = bisnn.compiled(net, rule, bisnn.local_loss, samples=2)
    last: Tensor = step(x, y)
    energy: Tensor = bisnn.free_energy(last, net.parameters(), temperature=1e-3)
    assert bool(energy.isfinite())
    return net


def predict(net: bisnn.Network, test: bisnn.data.Points) -> float:
    x = spikes(test.x)
    result: bisnn.Classification = bisnn.predict(net, x, samples=3, burn_in=2)
    with bisnn.map_weights(net):
        state = net.initial_state(batch_size=len(test.x))
        out = net(x[:10], state)
        assert out.state is not None
        assert out.spikes[-1].shape == (10, len(test.x), 16)
    other: bisnn.Regression = bisnn.predict(net, x, task="regression")
    assert other.std.shape == other.mean.shape
    disagreement: Tensor = result.mutual_information
    low, high = bisnn.metrics.interval("accuracy", result.mean, test.y)[1:]
    assert 0 <= low <= high <= 1
    wrong = result.mean.argmax(-1) != test.y
    assert 0 <= bisnn.metrics.auroc(disagreement[~wrong], disagreement[wrong]) <= 1 or not any(
        wrong
    )
    return bisnn.metrics.accuracy(result.mean, test.y)


def pack(net: bisnn.Network, x: Tensor) -> None:
    bits: bisnn.packed.PackedNetwork = bisnn.packing.describe(net)
    bisnn.packed.write(bits, "net.safetensors")
    engine: bisnn.packed.Engine = bisnn.packed.load("net.safetensors")
    logits: np.ndarray | None = engine.run(x.numpy().astype(np.uint8)).logits
    assert logits is not None
    with torch.no_grad(), bisnn.map_weights(net):
        assert np.array_equal(logits[0], net(x).logits.numpy())


def run() -> None:
    config: bisnn.config.Config = bisnn.config.load(
        "two_moons_bayes", ["train.epochs=2", "data.validation=0.2", "network.layers=[32, 32]"]
    ).updated(**{"predict.samples": 3})
    folder = bisnn.train(config, "run", show=False)
    folder = bisnn.resume(folder, ["train.epochs=3"], show=False)
    verdict = bisnn.evaluate(folder, show=False)
    value: float = verdict.numbers("MAP")["nll"]
    assert value > 0
    model: bisnn.Model = bisnn.load(folder)
    answer = model.predict(np.array([[0.2, 0.7]], np.float32))
    assert isinstance(answer, bisnn.Classification)
    guarantee = bisnn.calibrate(folder, coverage=0.8, show=False)
    assert guarantee.rule.coverage == 0.8
    exported = bisnn.export(folder, to="packed")
    engine = bisnn.packed.load(exported.path)
    mean: np.ndarray = engine.predict_features(np.array([[0.2, 0.7]], np.float32)).mean
    assert mean.shape == (1, 2)
    assert bisnn.report([folder], show=False).exists()


def of_tables() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    classes = BiSNNClassifier(random_state=0, max_iter=2).fit(x, x[:, 0] > 0)
    probabilities: np.ndarray = classes.predict_proba(x)
    assert probabilities.shape == (60, 2)
    numbers: np.ndarray = BiSNNRegressor(random_state=0, max_iter=2).fit(x, x[:, 0]).predict(x)
    assert numbers.shape == (60,)


def of_events() -> None:
    events = np.zeros(1000, bisnn.data.EVENTS)
    recording = bisnn.data.Recording(events, (34, 34), "made up")
    worse: bisnn.data.Recording = bisnn.data.corrupt(recording, "lost_events", 4)
    assert 0 < len(worse.events) < 1000


def main() -> None:
    train, test = bisnn.data.two_moons(seed=0)
    net = train_by_hand(train)
    print(f"accuracy {predict(net, test):.3f}")
    pack(net, spikes(test.x[:4]))
    run()
    of_tables()
    of_events()


if __name__ == "__main__":
    main()
