"""The study trainability: gradients and Adam of its training, what training keeps, and what the study says of it."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from problems import Array, assert_same_bits

pytest.importorskip("xarray")
pytest.importorskip("scipy")
pytest.importorskip("sklearn")

import xarray

import depthgauge as dg
from depthgauge import cli
from depthgauge.studies.rank import STUDIES, run_study, trainability
from depthgauge.studies.rank.digits import CLASSES, PIXELS, TRAINING, VALIDATION, Examples, split_digits
from depthgauge.studies.rank.fits import chance_above, spearman
from depthgauge.studies.rank.networks import network
from depthgauge.studies.rank.training import Adam, Classifier, cross_entropy, score, train

every_network = pytest.mark.parametrize(
    ("matrices", "placement"), [(m, placement) for m in (1, 2) for placement in trainability.PLACEMENTS]
)


def small_classifier(matrices: int = 2, placement: str = "pre", alphas: tuple[float, ...] = (1.0,)) -> Classifier:
    block = network(placement, matrices=matrices)
    return Classifier.drawn(block, 3, 7, alphas=alphas, pixels=6, classes=4, seed=1)


def some_examples(rng: np.random.Generator, count: int = 9, dtype: npt.DTypeLike = np.float64) -> Examples:
    return Examples(rng.standard_normal((count, 6)).astype(dtype), rng.integers(0, 4, count))


def digit_classifier(alphas: tuple[float, ...] = (1.0,), depth: int = 2, placement: str = "pre") -> Classifier:
    block = network(placement)
    return Classifier.drawn(block, depth, 16, alphas=alphas, pixels=PIXELS, classes=CLASSES, seed=0)


def trained(classifier: Classifier, rates: tuple[float, ...], steps: int = 12) -> dict[str, Array]:
    runs = classifier.copied((len(rates),))
    train(runs, split_digits(0).training, rates, steps=steps, batch=32, rng=np.random.default_rng(5))
    return runs.parameters


# The loss and its gradient


@every_network
def test_gradients_are_central_differences(rng: np.random.Generator, matrices: int, placement: str) -> None:
    """In all that is trained, embedding and readout among them."""
    classifier = small_classifier(matrices, placement, (0.5, 1.5)).copied(dtype=np.float64)
    examples = some_examples(rng)
    _, gradients = classifier.loss_and_gradients(*examples)
    assert gradients.keys() == classifier.parameters.keys()
    for name, array in classifier.parameters.items():
        direction, kept, step = rng.standard_normal(array.shape), array.copy(), 1e-6
        array[...] = kept + step * direction
        above, _ = classifier.loss_and_gradients(*examples)
        array[...] = kept - step * direction
        below, _ = classifier.loss_and_gradients(*examples)
        array[...] = kept
        got = np.sum(gradients[name] * direction, axis=tuple(range(1, array.ndim)))
        np.testing.assert_allclose(got, (above - below) / (2 * step), rtol=1e-6, atol=1e-9, err_msg=name)


@every_network
def test_training_is_that_of_torch(rng: np.random.Generator, matrices: int, placement: str) -> None:
    torch = pytest.importorskip("torch")
    start = small_classifier(matrices, placement).copied(dtype=np.float64)
    examples, rate = some_examples(rng, 20), 0.01
    theirs = {name: torch.tensor(array[0], requires_grad=True) for name, array in start.parameters.items()}

    def rms(h: Any) -> Any:
        return h / torch.sqrt((h**2).mean(-1, keepdim=True) + 1e-6)

    def at(place: str) -> Callable[[Any], Any]:
        return rms if placement == place else lambda h: h

    def loss() -> Any:
        h = torch.tensor(examples.images) @ theirs["embedding"]
        for layer in range(3):
            r = torch.relu(at("pre")(h) @ theirs["up"][layer])
            r = r @ theirs["down"][layer] if matrices == 2 else r
            h = at("post")(h + at("output")(r))
        return torch.nn.functional.cross_entropy(rms(h) @ theirs["readout"], torch.tensor(examples.labels))

    found, _ = start.loss_and_gradients(*examples)
    np.testing.assert_allclose(found, [loss().item()], rtol=1e-12)
    optimizer = torch.optim.Adam(theirs.values(), lr=rate)
    for _ in range(6):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    # All examples are one batch, whose order a sum hardly feels.
    train(start, examples, [rate], steps=6, batch=20, rng=rng)
    for name, array in start.parameters.items():
        np.testing.assert_allclose(array[0], theirs[name].detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=name)


def test_cross_entropy_keeps_its_range() -> None:
    logits = np.array([[[1e30, 0.0, -1e30], [3.0, 3.0, 3.0]]], np.float32)
    losses, gradient = cross_entropy(logits, np.array([1, 2]))
    np.testing.assert_allclose(losses, np.array([[1e30, math.log(3)]]), rtol=1e-7)
    np.testing.assert_allclose(gradient, np.array([[[1, -1, 0], [1 / 3, 1 / 3, -2 / 3]]]), rtol=1e-12)


# Adam


def test_two_steps_of_adam_by_hand() -> None:
    parameter = np.array([[1.0, -2.0]])
    adam = Adam({"w": parameter}, [0.1])
    # At the first step mean and square, corrected, are g and g^2: a step of the rate against the sign.
    adam.step({"w": np.array([[4.0, -0.5]])})
    np.testing.assert_allclose(parameter, [[0.9, -1.9]], rtol=1e-7)
    # Then m = (0.9 * 0.1 * 4 + 0.1 * 2) / (1 - 0.9^2) and v = (0.999 * 0.001 * 16 + 0.001 * 4) / (1 - 0.999^2).
    adam.step({"w": np.array([[2.0, 0.0]])})
    want = 0.9 - 0.1 * (0.56 / 0.19) / math.sqrt(0.019984 / 0.001999)
    assert parameter[0, 0] == pytest.approx(want, rel=1e-7)
    # And a gradient of 0 goes on with the momentum of -0.5.
    want = -1.9 + 0.1 * (0.9 * 0.05 / 0.19) / math.sqrt(0.999 * 0.001 * 0.25 / 0.001999)
    assert parameter[0, 1] == pytest.approx(want, rel=1e-7)


def test_adam_never_moves_where_there_is_no_gradient() -> None:
    parameter = np.ones((2, 3), np.float32)
    adam = Adam({"w": parameter}, [0.1, 10.0])
    for _ in range(3):
        adam.step({"w": np.zeros((2, 3), np.float32)})
    assert np.all(parameter == 1)


# Replicates


def test_a_replicate_is_its_own_single_run() -> None:
    alphas, rates = (0.5, 2.0), (1e-3, 3e-2)
    together = trained(digit_classifier(alphas), rates)
    for i, rate in enumerate(rates):
        for j, alpha in enumerate(alphas):
            alone = trained(digit_classifier((alpha,)), (rate,))
            for name, array in together.items():
                assert_same_bits(array[i, j], alone[name][0, 0], f"{name}, rate {rate}, alpha {alpha}")


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for threads in ("1", "2"):
        monkeypatch.setenv("DEPTHGAUGE_NUM_THREADS", threads)
        runs.append(trained(digit_classifier((0.5, 2.0)), (1e-3, 1e-2)))
    for name, array in runs[0].items():
        assert_same_bits(array, runs[1][name], name)
    assert np.any(runs[0]["embedding"] != digit_classifier().embedding)


def test_a_run_that_diverges_is_a_result_and_leaves_the_others_alone() -> None:
    rates = (1e-2, 1e30)
    classifier = digit_classifier(placement="none")
    together = trained(classifier, rates)
    assert not np.isfinite(together["up"][1]).all()
    for name, array in trained(classifier, rates[:1]).items():
        assert_same_bits(together[name][0], array[0], name)

    found = trainability.trained(
        matrices=2, placement="none", depth=2, steps=12, width=16, alphas=(1.0,), learning_rates=rates, seed=0
    )
    assert found["diverged"][1].tolist() == [[False], [True]]
    assert found["accuracy"][1][1, 0] == pytest.approx(1 / CLASSES)
    for name in ("training_loss", "validation_loss"):
        assert found[name][1][1, 0] == pytest.approx(math.log(CLASSES))
        assert found[name][1][0, 0] < 2


def test_one_example_that_overflows_is_a_guess_and_the_others_count() -> None:
    task = split_digits(0)
    runs = digit_classifier().copied((1,))
    train(runs, task.training, [1e-2], steps=30, batch=32, rng=np.random.default_rng(0))
    whole = score(runs, task.test)
    images = task.test.images.copy()
    images[7] = np.inf
    found = score(runs, Examples(images, task.test.labels))
    assert (whole.finite.item(), found.finite.item()) == (True, False)
    count = len(images)
    right = np.argmax(runs.logits(task.test.images[[7]]), axis=-1).item() == task.test.labels[7]
    assert found.accuracy.item() * count == pytest.approx(whole.accuracy.item() * count - right + 1 / CLASSES)


# The task and the networks


def test_digits_are_split_into_parts_that_do_not_meet() -> None:
    task, other = split_digits(3), split_digits(4)
    assert [len(part.labels) for part in task] == [TRAINING, VALIDATION, 1797 - TRAINING - VALIDATION]
    images = np.concatenate([part.images for part in task])
    assert images.dtype == np.float32
    assert len(np.unique(images, axis=0)) == len(np.unique(np.concatenate([p.images for p in other]), axis=0)) == 1797
    np.testing.assert_allclose(task.training.images.mean(axis=0), 0, atol=1e-6)
    assert np.sqrt(np.mean(task.training.images.astype(np.float64) ** 2)) == pytest.approx(1)
    counts = [np.bincount(np.concatenate([part.labels for part in split])) for split in (task, other)]
    np.testing.assert_array_equal(counts[0], counts[1])
    assert np.any(task.test.labels != other.test.labels)


def test_alpha_scales_the_stack_alone_and_depth_extends_it() -> None:
    one, two = (digit_classifier((alpha,), depth) for alpha, depth in ((1.0, 2), (2.0, 5)))
    assert one.weights.down is not None
    assert two.weights.down is not None
    np.testing.assert_array_equal(2 * one.weights.up, two.weights.up[:, :2])
    np.testing.assert_array_equal(2 * one.weights.down, two.weights.down[:, :2])
    np.testing.assert_array_equal(one.embedding, two.embedding)
    np.testing.assert_array_equal(one.readout, two.readout)
    for array, fan_in in ((one.embedding, PIXELS), (one.weights.up, 16), (one.readout, 16)):
        assert np.sqrt(np.mean(array**2)) == pytest.approx(fan_in**-0.5, rel=0.15)


def test_ranks_are_of_the_stack_and_of_what_the_readout_sees(rng: np.random.Generator) -> None:
    images = rng.standard_normal((5, 6)).astype(np.float32)
    found = {}
    for placement in trainability.PLACEMENTS:
        classifier = small_classifier(2, placement, (0.5, 1.5))
        stack, read = found[placement] = trainability.ranks(classifier, images)
        assert stack.shape == read.shape == (2,)
        exact = classifier.copied(dtype=np.float64)
        profile = dg.rank_profile(exact.block, exact.weights, images @ exact.embedding, depths=[3])
        np.testing.assert_allclose(stack, profile.effective_rank[:, 0].mean(axis=-1) / 7, rtol=1e-12)
        assert np.all(read <= 6 / 7 + 1e-6)  # the norm takes one direction out
    # A ReLU stack without biases is homogeneous: norms between its blocks are as good as one at the end.
    np.testing.assert_allclose(found["none"][1], found["post"][1], rtol=1e-4)
    np.testing.assert_allclose(found["post"][0], found["post"][1], rtol=1e-4)
    assert np.all(found["none"][0] != found["none"][1])


def test_a_small_network_learns_digits() -> None:
    found = trainability.trained(
        matrices=2, placement="pre", depth=2, steps=60, width=16, alphas=(0.5,), learning_rates=(1e-2,), seed=0
    )
    assert found["accuracy"][1].item() > 0.85
    assert not found["diverged"][1].any()
    again = trainability.trained(
        matrices=2, placement="pre", depth=2, steps=0, width=16, alphas=(0.5,), learning_rates=(1e-2,), seed=0
    )
    assert again["accuracy"][1].item() < 0.3
    assert again["rank"][1] == found["rank"][1]


def test_a_linear_classifier_does_about_as_well() -> None:
    """As the study's warning says."""
    from sklearn.linear_model import LogisticRegression

    task = split_digits(0)
    assert LogisticRegression(max_iter=1000).fit(*task.training).score(*task.test) > 0.95


# What the study says


def made_up(accuracy: npt.NDArray[np.float64]) -> dict[str, xarray.Dataset]:
    """Return results of one network a depth and placement, (placement, depth, seed), at two learning rates."""
    placements = list(trainability.PLACEMENTS)
    shape = (1, 4, accuracy.shape[1], 1, 1, accuracy.shape[2])
    rank = np.linspace(0.05, 0.95, accuracy.size).reshape(shape)
    # The better run by validation is the one with the lower rate, and the worse one by test.
    runs = {
        "validation_loss": np.stack([np.full(shape, 0.5), np.full(shape, 0.6)]),
        "training_loss": np.stack([1 - accuracy.reshape(shape), np.zeros(shape)]),
        "accuracy": np.stack([accuracy.reshape(shape), np.ones(shape)]),
        "diverged": np.zeros((2, *shape), np.bool_),
    }
    dims = ("matrices", "placement", "depth", "steps", "alpha", "seed")
    variables: dict[str, Any] = {name: (("learning_rate", *dims), array) for name, array in runs.items()}
    coords = {
        "learning_rate": [1e-3, 1e-2],
        "matrices": [2],
        "placement": placements,
        "depth": 4 * 2 ** np.arange(accuracy.shape[1]),
        "alpha": [1.0],
    }
    return {"training": xarray.Dataset({**variables, "rank": (dims, rank), "rank_read": (dims, rank)}, coords)}


def findings_of(results: dict[str, xarray.Dataset]) -> dict[str, float]:
    return {finding.name: finding.measured.mean for finding in trainability.TRAINABILITY.findings(results)}


def test_runs_are_chosen_by_validation_and_not_by_test() -> None:
    accuracy = np.linspace(0.1, 0.99, 24).reshape(4, 3, 2)
    best = trainability.best_runs(made_up(accuracy))
    np.testing.assert_array_equal(best["accuracy"].squeeze(), accuracy)
    assert np.all(best["learning_rate"] == 1e-3)
    found = findings_of(made_up(accuracy))
    assert found["Spearman correlation of rank and accuracy"] == pytest.approx(1)
    assert found["Spearman correlation of rank and training loss"] == pytest.approx(-1)
    assert found["Chance that what trains has the higher rank"] == 1
    assert found["Lowest rank that trains"] > found["Highest rank that does not train"]
    assert found["Share that trains of rank below 0.1"] == 0


@pytest.mark.parametrize("everywhere", [0.1, 0.97])
def test_where_all_or_nothing_trains_there_is_nothing_to_compare(everywhere: float) -> None:
    results = made_up(np.full((4, 3, 2), everywhere))
    found = findings_of(results)
    assert math.isnan(found["Spearman correlation of rank and accuracy"])
    assert math.isnan(found["Chance that what trains has the higher rank"])
    assert math.isnan(found["Lowest rank that trains"]) == (everywhere < 0.9)
    assert math.isnan(found["Highest rank that does not train"]) == (everywhere > 0.9)
    exponent = found["Pre-Norm: exponent of the best learning rate by depth"]
    assert math.isnan(exponent) if everywhere < 0.9 else exponent == pytest.approx(0)
    assert len(trainability.TRAINABILITY.table(results)) == 5


def test_stars_mark_where_rank_misleads() -> None:
    accuracy = np.full((4, 3, 1), 0.95)
    accuracy[3] = 0.2
    table = trainability.TRAINABILITY.table(made_up(accuracy))
    cells = [cell for row in table[1:] for cell in row[3:]]
    stars = ["*" in cell for cell in cells]
    ranks = [float(cell.split()[0]) for cell in cells]
    assert stars == [rank < 0.1 for rank in ranks[:9]] + [True] * 3
    assert stars[0]


@pytest.mark.slow
def test_it_warns_of_what_it_does_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["rank", "trainability", "--quick", "--seeds", "1", "--depths", "1,2", "--width", "8"]
    assert cli.main(options) == 0
    printed = capsys.readouterr().out
    assert trainability.WARNING in printed
    for words in ("does not show", "small and easy", "linear classifier", "briefly", "warm-up", "chosen"):
        assert words in trainability.WARNING
    assert max(map(len, trainability.WARNING.splitlines())) <= 120
    assert cli.main([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warning"] == trainability.WARNING


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "sklearn" else find(name, *rest)
    )
    with pytest.raises(ImportError, match=r"sklearn.*pip install 'depthgauge\[studies\]'"):
        run_study(STUDIES["trainability"], quick=True)


# Fits


def test_spearman_is_of_ranks_and_of_finite_pairs() -> None:
    x = np.array([3.0, 1.0, 2.0, np.nan, 10.0, 4.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1)
    assert spearman(x, -(x**3)) == pytest.approx(-1)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert math.isnan(spearman([1.0, 2.0], [1.0, 2.0]))
    assert math.isnan(spearman(x, np.ones(6)))
    assert math.isnan(spearman(x, np.full(6, np.inf)))


def test_chance_above_counts_pairs() -> None:
    assert chance_above([1, 2, 3, 4], [False, False, True, True]) == 1
    assert chance_above([1, 2, 3, 4], [True, True, False, False]) == 0
    assert chance_above([1, 3, 2, 3], [False, True, True, False]) == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert chance_above([5.0, math.nan, 1.0], [True, False, False]) == 1
    assert math.isnan(chance_above([1, 2], [True, True]))
