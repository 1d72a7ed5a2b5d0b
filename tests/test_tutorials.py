"""The tutorials: each has the form of one, and runs from top to bottom with what it claims.

Their code runs as one script, outside of any notebook, and their solutions after it. Cells that are
not shown (`remove-cell`) hold a page to its words.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
NAMES = (
    "two_moons",
    "table",
    "recordings",
    "tuning",
    "sets",
    "alphabets",
    "microcontroller",
    "web_page",
    "own_rule",
    "many_machines",
)
KERNEL = "kernelspec:\n  display_name: Python 3\n  language: python\n  name: python3\n"
CELL = re.compile(r"^```\{code-cell\} ipython3\n((?::[^\n]*\n)*)\n*(.*?)^```$", re.M | re.S)
SOLUTION = re.compile(r"^````\{admonition\} Solution\n:class: dropdown\n(.*?)^````$", re.M | re.S)
BASH = "%%bash\n"


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


def script(text: str) -> str:
    """The code of a page, and that of its solution, as one script."""
    cells = [code for _, code in CELL.findall(text)]
    cells += re.findall(r"^```python\n(.*?)^```$", SOLUTION.findall(text)[0], re.M | re.S)
    return "import subprocess\n" + "\n".join(
        f"subprocess.run(['bash', '-ec', {cell.removeprefix(BASH)!r}], check=True)"
        if cell.startswith(BASH)
        else cell
        for cell in cells
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_has_an_aim_a_last_picture_and_an_exercise(name):
    text = page(name)
    assert text.startswith("---\n")
    assert KERNEL in text
    assert re.search(r"^# .*\n\nAfter this page you can ", text, re.M)
    shown = [code for options, code in CELL.findall(text) if "remove-cell" not in options]
    assert "plt.show()" in shown[-1]
    assert text.index("## Exercise") > text.index(shown[-1])
    assert len(SOLUTION.findall(text)) == 1
    assert any("assert " in code for _, code in CELL.findall(text))
    assert text.count("```{code-cell}") == len(CELL.findall(text))
    assert len(text.splitlines()) < 300
    assert max(map(len, text.splitlines())) <= 100
    compile(script(text), name, "exec")


def test_all_tutorials_are_here():
    notebooks = {path.stem for path in FOLDER.glob("*.md") if KERNEL in path.read_text()}
    assert notebooks == set(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_does_what_it_says(name, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(script(page(name)))
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == [file]  # nothing is left behind
