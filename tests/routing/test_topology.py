"""Who sees what, by hand."""

import pytest

from depthroute.routing.topology import block_of, consumer_names, num_sites, num_visible, source_names


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
    assert num_visible(tiny(**{"router.preset": "qd_kd"})) == (1, 2, 3, 4, 5)
    assert num_visible(tiny(**{"router.preset": "denseformer"})) == (1, 2, 3)


def test_block_memory_shows_the_embedding_and_the_blocks_begun(tiny):
    """Three blocks of two, two and four sublayers; consumer m has seen sublayers 0 to m - 1."""
    assert num_visible(tiny(**blocks(3, **{"model.layers": 4}))) == (1, 2, 2, 3, 3, 4, 4, 4, 4)
    assert num_visible(tiny(**blocks(2, **{"router.sites": "layer"}))) == (1, 2, 3)


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
    assert len(consumer_names(config)) == len(num_visible(config))
    assert len(source_names(config)) == max(num_visible(config))
