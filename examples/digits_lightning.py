"""A rule as the optimizer of a Lightning module: pip install lightning.

    python examples/digits_lightning.py

Lightning passes the training step to `optimizer.step` as a closure, which a rule runs inside
`sampled()`: nothing else is to be done.
"""

import lightning
import torch
import torch.nn.functional as F
from digits_cnn import RULES, cnn
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import bisnn


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = cnn()
        self.groups = bisnn.binarise(self.net, real_lr=0.01)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return RULES["bayes"](self.groups)


def main(epochs: int = 10) -> float:
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    x = (x / 16).float().reshape(-1, 1, 8, 8)
    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=epochs, logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    trainer.fit(module, DataLoader(TensorDataset(x[:1347], y[:1347]), 32, shuffle=True))
    result = bisnn.predict(module.net, x[1347:], 10, rule=module.optimizers().optimizer)
    accuracy = (result.mean.argmax(-1) == y[1347:]).float().mean().item()
    print(f"ten members, accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    main()
