import xml.etree.ElementTree as ElementTree

import pytest

from depthroute.runs import plots, registry, tables
from depthroute.runs.registry import Routing

ROUTING = Routing(
    [[1.0, None, None], [0.3, 0.7, None], [0.2, 0.3, 0.5]],
    ["attention 0", "mlp 0", "read-out"],
    ["embedding", "attention 0", "mlp 0"],
    ["attention", "mlp", "read-out"],
)


def heat(figure):
    """(values with masked cells as None, row labels, column labels) of a heat map, top row first."""
    axes = figure.axes[0]
    values = axes.collections[0].get_array().tolist()
    return values, [t.get_text() for t in axes.get_yticklabels()], [t.get_text() for t in axes.get_xticklabels()]


def test_a_panel_shows_its_sites_and_the_read_out_last():
    attention, mlp = plots.routing_maps(ROUTING)
    assert heat(attention) == ([[1.0, None, None], [0.2, 0.3, 0.5]], ["attention 0", "read-out"], ROUTING.sources)
    assert heat(mlp) == ([[0.3, 0.7, None], [0.2, 0.3, 0.5]], ["mlp 0", "read-out"], ROUTING.sources)
    assert [axes.get_ylabel() for axes in attention.axes] == ["consumer (what reads)", "mean weight"]


def test_panels_share_a_scale_that_single_sources_do_not_stretch():
    assert [figure.axes[0].collections[0].get_clim() for figure in plots.routing_maps(ROUTING)] == [(0.0, 0.7), (0.0, 0.7)]


def test_negative_weights_get_a_scale_centred_on_zero():
    (layers,) = plots.routing_maps(
        Routing([[-0.5, 0.2], [0.1, 0.1]], ["layer 0", "read-out"], ["a", "b"], ["layer", "read-out"])
    )
    assert layers.axes[0].collections[0].get_clim() == (-0.5, 0.5)


def test_mean_routing_averages_cells_and_keeps_the_mask():
    other = Routing([[1.0, None, None], [0.5, 0.5, None], [0.0, 0.1, 0.9]], ROUTING.consumers, ROUTING.sources, ROUTING.kinds)
    mean = plots.mean_routing([ROUTING, other])
    assert mean.weights_MS[0] == [1.0, None, None]
    assert mean.weights_MS[1:] == [[pytest.approx(0.4), pytest.approx(0.6), None], pytest.approx([0.1, 0.2, 0.7])]
    assert plots.mean_routing([]) is None
    assert plots.mean_routing([ROUTING, Routing(ROUTING.weights_MS, ["x"] * 3, ROUTING.sources, ROUTING.kinds)]) is None


def test_forest_draws_the_differences_and_intervals_of_the_table(make_sweep):
    table = tables.summarise(registry.load_sweep(make_sweep()))
    axes = plots.forest(table).axes[0]
    zero, interval, point = axes.lines
    row = table.rows[1]
    assert list(zero.get_xdata()) == [0, 0]
    assert list(interval.get_xdata()) == pytest.approx([row.ci_low * 1e3, row.ci_high * 1e3])
    assert list(point.get_xdata()) == pytest.approx([row.delta * 1e3])
    assert "millinats/token" in axes.get_xlabel()


def test_curves_are_means_over_seeds_against_tokens(make_sweep):
    record = registry.load_sweep(make_sweep())
    for training in (False, True):
        axes = plots.loss_curve(record, training).axes[0]
        assert [list(line.get_xdata()) for line in axes.lines] == [[1e-5, 2e-5]] * 2
        assert [list(line.get_ydata()) for line in axes.lines] == [[8, 7]] * 2
        assert "nats/token" in axes.get_ylabel() and "tokens" in axes.get_xlabel()
    difference = plots.difference_curve(record, "residual").axes[0]
    assert [list(line.get_ydata()) for line in difference.lines] == [[0, 0]] * 2


def test_curves_without_data_are_not_drawn(make_sweep):
    folder = make_sweep()
    for path in folder.glob("*/metrics.jsonl"):
        path.unlink()
    assert plots.loss_curve(registry.load_sweep(folder), training=False) is None


def test_svg_is_well_formed_deterministic_and_undated(make_sweep):
    table = tables.summarise(registry.load_sweep(make_sweep(labels={"qs_ks": r"$\frac{$ <b>&"})))
    first, second = plots.svg(plots.forest(table)), plots.svg(plots.forest(table))
    assert first == second
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert "metadata" not in first and r"$\frac{$ &lt;b&gt;&amp;" in first
