"""The paper's Figure 1, the 1-D regression: what `bisnn reproduce fig1` does, as a script.

python examples/figure1.py
"""

from rich.console import Console

from bisnn_experiments.reproduction import reproduce
from bisnn_experiments.terminal import table

if __name__ == "__main__":  # the runs are processes of their own, which import this file
    results = reproduce(["fig1"], "tuned", seeds=range(5), out="out/tuned")
    Console().print(table(results.figures["fig1"]))
    print("figure: out/tuned/fig1.png, numbers: out/tuned/results.json")
