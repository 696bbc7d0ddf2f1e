"""The plots: what is drawn, and that nothing outside the figure is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from depthgauge import plots
from depthgauge.studies.ablation import TransportAblation, transport_ablation
from depthgauge.studies.ablation_figure import transport_figure

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib")

SIGNATURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture(scope="module")
def ablation() -> TransportAblation:
    return transport_ablation(depth=24, width=16, batch=8, backend="reference")


def test_both_rivers_have_a_line_a_configuration(ablation: TransportAblation) -> None:
    figure = transport_figure(ablation)
    states, gradients, *close_ups = figure.axes
    for axes, attribute in ((states, "forward_rms"), (gradients, "gradient_rms")):
        assert len(axes.lines) == len(ablation.transports)
        for line, transport in zip(axes.lines, ablation.transports, strict=True):
            x, y = line.get_data()
            np.testing.assert_array_equal(x, np.arange(transport.depth + 1))
            np.testing.assert_allclose(10.0 ** np.asarray(y), getattr(transport, attribute), rtol=1e-12)
    for axes in figure.axes:
        assert axes.get_ylabel()
    for axes in close_ups:
        assert "depth" in axes.get_xlabel()


def test_legend_names_every_configuration_and_the_caption_warns(ablation: TransportAblation) -> None:
    figure = transport_figure(ablation)
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    for transport, label in zip(ablation.transports, labels, strict=True):
        assert transport.configuration.name in label
    assert plots.CAPTION in [text.get_text() for text in figure.texts]
    assert "not a proof" in plots.CAPTION


def test_lines_differ_in_color_and_in_gray() -> None:
    assert len({style["color"] for style in plots.STYLES}) == len(plots.STYLES)
    assert len({style["marker"] for style in plots.STYLES}) == len(plots.STYLES)


@pytest.mark.parametrize("suffix", [*plots.SUFFIXES, ".PNG"])
def test_format_follows_the_suffix(ablation: TransportAblation, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rivers{suffix}"
    plots.save(transport_figure(ablation), path)
    assert path.read_bytes().startswith(SIGNATURES[suffix.lower()])


def test_nothing_is_cut_off(ablation: TransportAblation) -> None:
    figure = transport_figure(ablation)
    figure.draw_without_rendering()
    whole = figure.get_tightbbox()
    assert whole.x0 >= 0
    assert whole.y0 >= 0
    assert whole.x1 <= figure.get_figwidth()
    assert whole.y1 <= figure.get_figheight()
    legend = figure.legends[0].get_window_extent()
    for text in figure.texts:
        assert not text.get_window_extent().overlaps(legend)
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert not box.overlaps(legend)


def test_unknown_suffix(ablation: TransportAblation, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.jpg.*\.png"):
        plots.save(transport_figure(ablation), tmp_path / "rivers.jpg")


def test_values_past_the_range_are_drawn_around(tmp_path: Path) -> None:
    exploded = transport_ablation(depth=9, width=4, batch=2, backend="reference")
    exploded["relu_residual_unscaled"].forward_rms[4:] = np.inf
    exploded["relu_he_plain"].forward_rms[4:] = 0.0
    exploded["tanh_xavier_plain"].gradient_rms.fill(np.nan)
    plots.save(transport_figure(exploded), tmp_path / "rivers.png")


def test_pyplot_is_not_touched(tmp_path: Path) -> None:
    """Nor is matplotlib imported before a plot is drawn."""
    program = f"""
import sys
import depthgauge.cli
from depthgauge import plots
from depthgauge.studies.ablation import transport_ablation
from depthgauge.studies.ablation_figure import transport_figure
assert not any(name.partition(".")[0] == "matplotlib" for name in sys.modules)
run = transport_ablation(depth=2, width=4, batch=2, backend="reference")
plots.save(transport_figure(run), {str(tmp_path / "rivers.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_matplotlib_says_what_to_install(ablation: TransportAblation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"depthgauge\[plot\]"):
        transport_figure(ablation)
