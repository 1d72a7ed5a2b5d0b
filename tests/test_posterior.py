"""The study `posterior`: its tasks, its choice and its table from made-up answers of networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from bisnn.data.corruption import CORRUPTIONS
from bisnn.runs import config
from bisnn_experiments import posterior, posterior_choice, posterior_runs, posterior_table
from bisnn_experiments.posterior_methods import CHOSEN, ENSEMBLES, METHODS, POSTERIORS, ST, Method
from bisnn_experiments.posterior_runs import CLEAN, HELD, OTHER, SHARE, Said, corruption
from bisnn_experiments.posterior_table import JUDGED, Answers, Ask

N = 200  # test recordings, and held-out ones


def labels_of(seed: int = 0) -> dict[str, np.ndarray]:
    """Classes of test and held-out recordings, clean and corrupted, and of others."""
    rng = np.random.default_rng(seed)
    found = {OTHER: np.full(150, -1)}
    for name in (CLEAN, HELD):
        y = rng.integers(0, 4, N)
        found[name] = y
        for k, kind in enumerate(CORRUPTIONS):
            for strength in range(1, 6):
                found[corruption(name, kind, strength)] = y[(k + strength) % SHARE :: SHARE]
    return found


LABELS = labels_of()


def answers(members: int, gain: float, seed: int) -> dict[str, Said]:
    """Members that are surer of the right class the higher the gain, and know no other digits."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, y in LABELS.items():
        z = rng.normal(size=(members, len(y), 4))
        z[:, np.arange(len(y)), np.maximum(y, 0)] += gain * (y >= 0)
        found[name] = z - np.logaddexp.reduce(z, -1, keepdims=True)
    return found


def asked(gains: dict[str, float]) -> Ask:
    """Made-up answers of every method, which are sure of the right class to a degree."""

    def ask(method: Method, size: int, seed: int) -> Answers:
        number = METHODS.index(method)
        gain = gains.get(method.name, 1.5)
        said = answers(method.inferences, gain, 100 * seed + number)
        return Answers.of([said], float(method.inferences))

    return ask


def test_every_network_has_a_config_and_a_file_of_its_own():
    tasks = posterior.tasks((20, 100, 500), range(2))
    assert len({task.file(Path()) for task in tasks}) == len(tasks)
    for task in tasks[::7]:
        config.load(task.recipe.config).updated(**task.recipe.settings)


def test_methods_share_the_networks_that_are_the_same():
    tasks = posterior.tasks([20], [3])
    # full, ST, the same with dropout, snapshots, Bayes, the same with dropout
    assert len(tasks) == 1 + 4 + 1 + 1 + 2 + 2
    wanted = [posterior.predictors_of(task) for task in tasks]
    assert wanted.count({"map"}) == 5
    assert wanted.count({"map", "members"}) == 4, "each Bayes-BiSNN is asked for both"


def test_a_posterior_is_compared_with_what_costs_as_much():
    scores = {m.name: {"operations": np.array([k + 1.0])} for k, m in enumerate(ENSEMBLES)}
    for spent, networks in ((0.7, 1), (1.04, 1), (1.3, 2), (2.0, 2), (3.1, 3), (3.9, 4), (9.0, 4)):
        scores["it"] = {"operations": np.array([spent])}
        assert posterior_table.rival_of("it", scores) == ENSEMBLES[networks - 1].name


def test_members_of_several_networks_are_one_ensemble(tmp_path):
    mixture = next(m for m in POSTERIORS if m.name == "Bayes-BiSNN, 2 networks, 2 members")
    every = []
    for k, task in enumerate(posterior.networks_of(mixture.parts[0], 20, 0)):
        assert posterior.answers_of(mixture, tmp_path, 20, 0) is None, "a network is missing"
        every.append(answers(4, 1.0, k))
        about = {"operations": {"members": 80.0}}
        posterior_runs.write_said(task.file(tmp_path), {"members": every[-1]}, about)
    found = posterior.answers_of(mixture, tmp_path, 20, 0)
    assert found is not None
    assert found.operations == 2 * 80 * 2 / 4
    expected = np.concatenate([one[CLEAN][:2] for one in every])
    assert np.allclose(found.said[CLEAN], expected, atol=2e-3), "in half precision"


def test_pooled_members_are_the_mean_of_tempered_ones():
    said = answers(3, 2.0, 0)[CLEAN]
    p = np.exp(said) ** (1 / 1.7)
    expected = (p / p.sum(-1, keepdims=True)).mean(0)
    assert np.allclose(np.exp(posterior_table.pooled(said, 1.7)), expected)


def test_placements_are_those_of_the_auroc():
    rng = np.random.default_rng(0)
    own, other = rng.integers(0, 9, 50) / 8, rng.integers(3, 12, 30) / 8  # with ties
    truth = np.repeat([0, 1], [50, 30])
    expected = roc_auc_score(truth, np.concatenate([own, other]))
    for part in posterior_table.placements(own, other):
        assert part.mean() == pytest.approx(expected)


@pytest.mark.parametrize("of", [CLEAN, HELD])
def test_recordings_have_the_mean_of_their_own_corruptions(of):
    said = answers(1, 1.5, 1)
    scores = posterior_table.scores_of(Answers.of([said], 7.0), LABELS, of)
    t = float(scores["temperature"])
    every: list[list[float]] = [[] for _ in range(N)]
    for k, kind in enumerate(CORRUPTIONS):
        for strength in range(1, 6):
            name = corruption(of, kind, strength)
            p = torch.from_numpy(said[name][0] / t).softmax(-1).numpy()
            for row, i in enumerate(range((k + strength) % SHARE, N, SHARE)):
                every[i].append(-np.log(p[row, LABELS[name][row]]))
    assert [len(one) for one in every] == [5 * len(CORRUPTIONS) // SHARE] * N
    assert np.allclose(scores["worse_nll"], [np.mean(one) for one in every])
    assert scores["kinds"].mean() == pytest.approx(scores["worse_nll"].mean())


@pytest.mark.parametrize(("gain", "good"), [(4.0, True), (0.5, False)])
def test_bars_are_met_by_a_better_predictor_alone(gain, good):
    found = posterior_table.table_of(asked({CHOSEN: gain}), LABELS, [20], range(3))
    (bars,) = found.bars
    assert bars.met == {"a": good, "b": good, "c": good, "d": True}
    chosen = next(method for method in POSTERIORS if method.name == CHOSEN)
    assert bars.operations == chosen.inferences
    assert (bars.nll.high < 0) == good
    assert found.seeds == {20: [0, 1, 2]}
    assert ("missed" in posterior_table.text_of(found)) != good
    assert bars.rival == ENSEMBLES[chosen.inferences - 1].name
    rows = {row.method: row for row in found.rows}
    assert rows.keys() == {method.name for method in JUDGED}
    assert rows[ENSEMBLES[-1].name].members == 4
    assert rows[ST].operations.mean == 1


def test_networks_of_one_seed_make_no_table():
    with pytest.raises(ValueError, match="holds the networks of no two seeds"):
        posterior_table.table_of(asked({}), LABELS, [20], [0])


def test_nothing_is_chosen_where_networks_are_missing():
    with pytest.raises(ValueError, match="holds all networks of no seed"):
        posterior_choice.choice_of(lambda *asked: None, LABELS, [20], [0])


def test_the_best_posterior_on_held_out_recordings_is_chosen():
    good = POSTERIORS[-1].name
    choice = posterior_choice.choice_of(asked({good: 4.0}), LABELS, [20, 100], range(2))
    assert choice.best == good
    assert choice.seeds == {20: [0, 1], 100: [0, 1]}
    assert good in posterior_choice.text_of(choice)
    better = posterior_choice.choice_of(asked({ENSEMBLES[-1].name: 9.0}), LABELS, [20], range(2))
    assert better.best in {method.name for method in POSTERIORS}, "a rival is not chosen"
