"""The study `posterior`: its tasks, and its table from made-up answers of networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from bisnn.data.corruption import CORRUPTIONS
from bisnn.runs import config
from bisnn_experiments import posterior, posterior_explored, posterior_runs, posterior_table
from bisnn_experiments.posterior_candidates import LISTS
from bisnn_experiments.posterior_methods import BAYES, ENSEMBLE, METHODS, ST
from bisnn_experiments.posterior_runs import CLEAN, HELD, OTHER, SHARE, Said

SETS = [f"{kind} {strength}" for kind in CORRUPTIONS for strength in range(1, 6)]
N = 200  # test recordings


def labels_of(seed: int = 0) -> dict[str, np.ndarray]:
    """Classes of the test recordings, of those that are corrupted, of others and held-out ones."""
    y = np.random.default_rng(seed).integers(0, 4, N)
    found = {CLEAN: y, OTHER: np.full(150, -1), HELD: y}
    for k, kind in enumerate(CORRUPTIONS):
        for strength in range(1, 6):
            found[f"{kind} {strength}"] = y[(k + strength) % SHARE :: SHARE]
    return found


def answers(labels: dict[str, np.ndarray], members: int, gain: float, seed: int) -> dict[str, Said]:
    """Members that are surer of the right class the higher the gain, and know no other digits."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, y in labels.items():
        z = rng.normal(size=(members, len(y), 4))
        z[:, np.arange(len(y)), np.maximum(y, 0)] += gain * (y >= 0)
        found[name] = Said(z - np.logaddexp.reduce(z, -1, keepdims=True), z)
    return found


def test_every_candidate_and_method_has_a_config_and_a_file_of_its_own():
    tasks = [task for number in LISTS for task in posterior.tasks_to_explore(number)]
    tasks += posterior.tasks_to_judge((20, 100), range(2))
    assert len({task.file(Path()) for task in tasks}) == len(tasks)
    for task in tasks[::7]:
        config.load(task.recipe.config).updated(**task.recipe.settings)


def test_methods_share_the_networks_that_are_the_same():
    tasks = posterior.tasks_to_judge([20], [3])
    assert len(tasks) == 1 + 4 + 1 + 1 + 2 + 2  # full, ST, dropout, snapshots, Adam, momentum
    assert {(task.seed, task.data) for task in tasks} == {(3, 3)}


def test_pooled_members_are_the_mean_of_tempered_ones():
    (said,) = answers({CLEAN: np.arange(4)}, 3, 2.0, 0).values()
    p = np.exp(said.log_p) ** (1 / 1.7)
    expected = (p / p.sum(-1, keepdims=True)).mean(0)
    assert np.allclose(np.exp(posterior_table.pooled([said], 1.7)), expected)


def test_placements_are_those_of_the_auroc():
    rng = np.random.default_rng(0)
    own, other = rng.integers(0, 9, 50) / 8, rng.integers(3, 12, 30) / 8  # with ties
    truth = np.repeat([0, 1], [50, 30])
    expected = roc_auc_score(truth, np.concatenate([own, other]))
    for part in posterior_table.placements(own, other):
        assert part.mean() == pytest.approx(expected)


def test_recordings_have_the_mean_of_their_own_corruptions():
    labels, said = labels_of(), answers(labels_of(), 1, 1.5, 1)
    scores = posterior_table.scores_of({name: [one] for name, one in said.items()}, labels, 7.0)
    t = float(scores["temperature"])
    every: list[list[float]] = [[] for _ in range(N)]
    for k, kind in enumerate(CORRUPTIONS):
        for strength in range(1, 6):
            name = f"{kind} {strength}"
            p = torch.from_numpy(said[name].log_p[0] / t).softmax(-1).numpy()
            for row, i in enumerate(range((k + strength) % SHARE, N, SHARE)):
                every[i].append(-np.log(p[row, labels[name][row]]))
    assert [len(one) for one in every] == [10] * N
    assert np.allclose(scores["worse_nll"], [np.mean(one) for one in every])


def made_up(folder: Path, gains: dict[str, float]) -> None:
    """Scores of three seeds, of methods whose members are sure of the right class to a degree."""
    labels = labels_of()
    for seed in range(3):
        found = {}
        for k, method in enumerate(METHODS):
            said = answers(labels, method.members, gains.get(method.name, 1.5), 10 * seed + k)
            counts = float(method.inferences)
            parts = {name: [one] for name, one in said.items()}
            found[method.name] = posterior_table.scores_of(parts, labels, counts)
        posterior_table.write_scores(folder / f"scores-20-{seed}.npz", found)


@pytest.mark.parametrize(("gain", "good"), [(4.0, True), (0.5, False)])
def test_bars_are_met_by_a_better_predictor_alone(tmp_path, gain, good):
    made_up(tmp_path, {BAYES: gain})
    found = posterior_table.table_of(tmp_path, "cpu")
    (bars,) = found.bars
    assert bars.met == {"a": good, "b": good, "c": good, "d": True}
    assert bars.operations == 4
    assert (bars.nll.high < 0) == good
    assert found.seeds == {20: [0, 1, 2]}
    text = posterior_table.text_of(found)
    assert ("missed" in text) != good
    rows = {row.method: row for row in found.rows}
    assert rows[ENSEMBLE].members == 4
    assert rows[ST].operations.mean == 1


def test_a_folder_without_scores_has_no_table(tmp_path):
    with pytest.raises(ValueError, match=r"holds no scores-SIZE-SEED\.npz"):
        posterior_table.table_of(tmp_path, "cpu")


def test_what_networks_say_comes_back_from_its_file(tmp_path):
    said = answers(labels_of(), 2, 2.0, 0)
    posterior_runs.write_said(tmp_path / "a.npz", {"members": said}, {"label": "x", "size": 20})
    found, about = posterior_runs.read_said(tmp_path / "a.npz")
    assert about == {"label": "x", "size": 20}
    assert np.allclose(found["members"][SETS[0]].z, said[SETS[0]].z, atol=2e-3)


def test_exploring_temperatures_come_from_the_other_half(tmp_path):
    labels = {name: y for name, y in labels_of().items() if name != HELD}
    said = answers(labels, 2, 2.0, 3)
    about = {"label": "adam", "size": 20, "seed": 0}
    posterior_runs.write_said(tmp_path / "a.npz", {"members": said}, about)
    (row,) = posterior_explored.explored([tmp_path / "a.npz"], labels).rows
    y, even = labels[CLEAN], np.arange(N) % 2 == 0
    nll = []
    for fitted, judged in ((even, ~even), (~even, even)):
        grid = np.geomspace(0.1, 10, 2000)

        def mean_nll(t: float, some: np.ndarray) -> float:
            p = np.exp(said[CLEAN].log_p[:, some]) ** (1 / t)
            p = (p / p.sum(-1, keepdims=True)).mean(0)
            return -np.log(p[np.arange(some.sum()), y[some]]).mean()

        best = grid[np.argmin([mean_nll(t, fitted) for t in grid])]
        nll.append(mean_nll(best, judged))
    assert row.nll == pytest.approx(np.mean(nll), abs=3e-3)
    assert json.loads(row.model_dump_json())["candidate"] == "adam"
