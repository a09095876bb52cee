"""Who sees what, by hand."""

import pytest

from depthroute.routing.topology import (
    block_of,
    choosers,
    consumer_names,
    num_pairs,
    num_sites,
    num_sources,
    source_in,
    source_names,
    visible_slots,
    visible_sources,
)


def blocks(count, **more):
    return {"router.preset": "attnres_block", "router.blocks": count, **more}


@pytest.mark.parametrize(
    "sites, count, expected",
    [
        (8, 3, [0, 0, 1, 1, 2, 2, 2, 2]),
        (8, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        (5, 5, [0, 1, 2, 3, 4]),
        (7, 4, [0, 1, 2, 3, 3, 3, 3]),
        (3, 1, [0, 0, 0]),
    ],
)
def test_blocks_are_equal_and_the_last_takes_the_remainder(sites, count, expected):
    assert [block_of(site, sites, count) for site in range(sites)] == expected


def test_full_memory_shows_everything_written_before(tiny):
    config = tiny(**{"router.preset": "qd_kd"})
    assert visible_slots(config) == visible_sources(config) == ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4))
    assert visible_sources(tiny(**{"router.preset": "denseformer"})) == ((0,), (0, 1), (0, 1, 2))


def test_block_memory_shows_the_embedding_and_the_blocks_begun(tiny):
    """Three blocks of two, two and four sublayers; consumer m has seen sublayers 0 to m - 1."""
    config = tiny(**blocks(3, **{"model.layers": 4}))
    assert [len(sources) for sources in visible_sources(config)] == [1, 2, 2, 3, 3, 4, 4, 4, 4]
    assert visible_sources(config)[-1] == (0, 1, 2, 3)
    assert visible_slots(config) == (
        (0,), (0, 1), (0, 2), (0, 2, 3), (0, 2, 4), (0, 2, 4, 5), (0, 2, 4, 6), (0, 2, 4, 7), (0, 2, 4, 8)
    )  # fmt: skip
    assert [source_in(config, slot) for slot in range(9)] == [0, 1, 1, 2, 2, 3, 3, 3, 3]
    assert visible_sources(tiny(**blocks(2, **{"router.sites": "layer"}))) == ((0,), (0, 1), (0, 1, 2))


def dilated(dilation, period, layers):
    axes = {"router.memory": "dilated", "router.dilation": dilation, "router.period": period, "model.layers": layers}
    return {"router.preset": "denseformer", **axes}


def test_dilated_memory_counts_back_from_the_newest(tiny):
    assert visible_slots(tiny(**dilated(2, 1, 4))) == ((0,), (1,), (0, 2), (1, 3), (0, 2, 4))
    config = tiny(**dilated(2, 2, 5))
    assert visible_slots(config) == ((0,), (1,), (0, 2), (3,), (0, 2, 4), (5,))
    assert choosers(config) == (2, 4)
    assert num_pairs(config) == 5
    assert num_sources(config) == 6


def test_names_of_consumers_and_sources(tiny):
    config = tiny(**{"router.preset": "qs_ks"})
    assert num_sites(config) == 4
    assert consumer_names(config) == ("attention 0", "mlp 0", "attention 1", "mlp 1", "read-out")
    assert source_names(config) == ("embedding", "attention 0", "mlp 0", "attention 1", "mlp 1")
    layers = tiny(**{"router.preset": "denseformer"})
    assert consumer_names(layers) == ("layer 0", "layer 1", "read-out")
    assert source_names(tiny(**blocks(3))) == ("embedding", "block 0", "block 1", "block 2")


@pytest.mark.parametrize("preset", ["qs_ks", "denseformer", "attnres_block"])
def test_there_is_a_name_for_every_consumer_and_source(tiny, preset):
    config = tiny(**{"router.preset": preset})
    assert len(consumer_names(config)) == len(visible_sources(config))
    assert len(source_names(config)) == num_sources(config)
