"""Networks of other libraries come close to their own full precision: the examples, run."""

import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Last in the path, or the peers' PyTorch would take the place of ours
PEERS = [str(path) for path in (ROOT / ".venv-peers").glob("lib/python*/site-packages")]
RUN = """
import runpy, sys
script, *peers = sys.argv[1:]
sys.path += peers
sys.path.insert(0, script.rpartition("/")[0])
sys.argv[1:] = []
runpy.run_path(script, run_name="__main__")
"""


def accuracies(example: str, library: str) -> list[float]:
    """What an example printed, in its order."""
    if PathFinder.find_spec(library, [*sys.path, *PEERS]) is None:
        pytest.skip(f"{library} is installed neither here nor in .venv-peers: see peers.txt")
    script = ROOT / "examples" / f"{example}.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, script, *PEERS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if "accuracy" in line]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "snntorch", "spikingjelly"])
def test_binary_weights_cost_at_most_two_points(library):
    example = "digits_cnn" if library == "torch" else f"digits_{library}"
    full, st, bayes = accuracies(example, library)
    assert full > 0.95
    assert st >= full - 0.02
    assert bayes >= full - 0.02


@pytest.mark.slow
def test_lightning_trains_with_a_rule():
    (accuracy,) = accuracies("digits_lightning", "lightning")
    assert accuracy > 0.9
