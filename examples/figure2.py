"""The paper's Figure 2, two moons: what `bisnn reproduce fig2` does, as a script.

python examples/figure2.py
"""

from rich.console import Console

from bisnn_experiments.reproduction import reproduce
from bisnn_experiments.terminal import table

if __name__ == "__main__":  # the runs are processes of their own, which import this file
    results = reproduce(["fig2"], "tuned", seeds=range(5), out="out/tuned")
    Console().print(table(results.figures["fig2"]))
    print("figure: out/tuned/fig2.png, numbers: out/tuned/results.json")
