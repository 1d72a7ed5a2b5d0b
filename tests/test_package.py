"""The package as a whole: its public names, what importing it costs, the README's code."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bisnn

ROOT = Path(__file__).parent.parent


def test_every_public_name_is_there():
    assert len(bisnn.__all__) > 20
    for name in bisnn.__all__:
        assert getattr(bisnn, name) is not None
        assert name in dir(bisnn)
    with pytest.raises(AttributeError, match="module 'bisnn' has no attribute 'Lineer'"):
        bisnn.Lineer  # noqa: B018
    assert callable(bisnn.predict)  # again: a module of that name would hide it by now


def test_importing_loads_nothing_heavy():
    heavy = {"torch", "numba", "numpy", "sklearn", "matplotlib"}
    code = f"import sys, bisnn; assert not {heavy} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_building_a_network_loads_no_compiler():
    """numba and scikit-learn come when they are first used."""
    code = "import sys, bisnn; bisnn.Network(bisnn.Linear(2, 3), readout=2); "
    code += "assert not {'numba', 'sklearn', 'torchmetrics'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def run_python_of(page: Path) -> dict:
    """Run the Python of a page from top to bottom; its names."""
    blocks = re.findall(r"^```python\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    return names


@pytest.mark.parametrize("page", ["README.md", "docs/TOUR.md"])
def test_the_python_of_the_first_pages_runs_and_learns(page):
    names = run_python_of(ROOT / page)
    tested = len(names["result"].mean)
    assert bisnn.metrics.accuracy(names["result"].mean, names["test"].y[:tested]) > 0.95


def test_the_python_of_modules_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python_of(ROOT / "docs" / "MODULES.md")
    assert len(bisnn.load_states("members.safetensors")) == 10


def test_the_first_screen_has_what_a_newcomer_needs():
    """Before the first heading of the README: a picture, the commands, a few lines of Python."""
    screen = (ROOT / "README.md").read_text().partition("\n## ")[0]
    assert len(screen.splitlines()) < 45
    for part in ("![", "make demo", "make test", "bisnn try", "```python", "](docs/TOUR.md)"):
        assert part in screen


def test_the_citation_is_of_this_version_and_of_the_paper():
    """The keys that the Citation File Format 1.2.0 requires, and what they have to say."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", bisnn.__version__)
    (paper,) = cited["references"]
    assert paper.keys() >= {"type", "title", "authors"}
    assert [author["family-names"] for author in paper["authors"]] == [
        *("Jang", "Skatchkovsky", "Simeone")
    ]
    assert paper["url"] in (ROOT / "README.md").read_text()
    assert (
        f"## [{cited['version']}] - {cited['date-released']}"
        in (ROOT / "CHANGELOG.md").read_text().splitlines()
    )


def test_the_changelog_keeps_its_form():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    dated = [re.fullmatch(r"## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", v) for v in versions[1:]]
    assert all(dated)
    assert dated[0][1] == bisnn.__version__
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {line[4:] for line in lines if line.startswith("### ")} <= kinds


def test_documents_name_files_functions_and_tests_that_exist():
    """docs/EQUATIONS.md maps equations to functions and tests: every `module.name` and `test_name`
    in it is real.
    """
    text = (ROOT / "docs" / "EQUATIONS.md").read_text()
    tests = {
        name
        for file in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 15
    assert named <= tests
    functions = set(re.findall(r"`((?:(?:kernels|bits|runs|shipping)\.)?\w+)\.(\w+)`", text))
    assert len(functions) > 15
    for module, name in functions:
        assert hasattr(importlib.import_module(f"bisnn.{module}"), name), f"{module}.{name}"


def test_the_config_document_has_every_key_and_its_example_loads(tmp_path):
    text = (ROOT / "docs" / "CONFIG.md").read_text()
    documented = set(
        re.findall(r"`([a-z]+(?:\.\w+)?)`", text.split("## Keys")[1].split("## The run folder")[0])
    )
    keys = set(bisnn.runs.config.keys())
    assert len(keys) > 40
    assert keys <= documented
    assert not {name for name in documented if "." in name} - keys, "and no key that is none"
    (tmp_path / "example.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    assert bisnn.runs.config.load(tmp_path / "example.toml").rule.name == "bayes"


def applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def installed_by(roots: list[Requirement]) -> set[str]:
    """Names of all that these need here, but for what its user pins itself: the libraries that a
    CUDA build of torch brings.
    """
    found: set[tuple[str, frozenset[str]]] = set()
    left = list(roots)
    while left:
        wanted = left.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in found or str(wanted.specifier).startswith("=="):
            continue
        found.add(key)
        needs = map(Requirement, metadata.requires(wanted.name) or [])
        left += [need for need in needs if applies(need, wanted.extras)]
    return {name for name, _ in found}


@pytest.mark.parametrize(("extra", "has"), [("dev", "mypy"), ("docs", "sphinx")])
def test_constraints_pin_all_that_an_extra_installs_and_what_builds_it(extra, has):
    pytest.importorskip(has)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"][extra],
    ]
    needed = installed_by([Requirement(text) for text in asked])
    assert len(needed) > 40
    build = {
        canonicalize_name(Requirement(text).name) for text in project["build-system"]["requires"]
    }
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    pins = [Requirement(line) for line in lines]
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins)
    assert not (needed | build) - {canonicalize_name(pin.name) for pin in pins}


def test_make_holds_the_build_to_the_constraints():
    """pip's option -c is of what is installed alone; what builds it is resolved apart, by what the
    environment says.
    """
    shown = subprocess.check_output(
        ["make", "--dry-run", "--always-make", "setup"], cwd=ROOT, text=True
    )
    installs = [line for line in shown.splitlines() if "pip install" in line]
    assert len(installs) == 3
    for line in installs:
        for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):  # before pip 25.3, and since
            assert re.search(rf"\b{name}=constraints\.txt ", line)
