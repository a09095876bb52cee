import numpy as np
import pytest
import scipy.stats

from depthroute.runs import statistics


def test_paired_interval_and_p_are_those_of_a_paired_t_test():
    arm, baseline = [1.80, 1.83, 1.79, 1.85], [1.82, 1.86, 1.84, 1.85]
    truth = scipy.stats.ttest_rel(arm, baseline)
    interval = truth.confidence_interval(0.95)
    found = statistics.paired(dict(enumerate(arm)), dict(enumerate(baseline)))
    assert found.n == 4
    np.testing.assert_allclose(
        [found.mean, found.p, found.ci_low, found.ci_high],
        [np.mean(np.subtract(arm, baseline)), truth.pvalue, interval.low, interval.high],
        rtol=1e-9,
    )


def test_pairs_are_made_by_seed_not_by_position():
    found = statistics.paired({3: 1.0, 1: 2.0, 7: 5.0}, {1: 2.5, 3: 1.5, 9: 0.0})
    assert (found.n, found.mean) == (2, -0.5)


@pytest.mark.parametrize(("seeds", "mean"), [([], None), ([4], 0.25)])
def test_fewer_than_two_pairs_have_no_interval(seeds, mean):
    found = statistics.paired(dict.fromkeys(seeds, 1.25), {4: 1.0})
    assert found == statistics.Paired(len(seeds), mean, None, None, None)


def test_equal_differences_leave_a_point_not_a_division_by_zero():
    assert statistics.paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0}) == statistics.Paired(2, 1.0, 1.0, 1.0, 0.0)
    assert statistics.paired({0: 2.0, 1: 3.0}, {0: 2.0, 1: 3.0}) == statistics.Paired(2, 0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("n", [3, 5])
def test_interval_covers_the_true_difference_as_often_as_it_says(n):
    differences = np.random.default_rng(0).normal(0.03, 0.01, (4000, n))
    zero = dict.fromkeys(range(n), 0.0)
    found = [statistics.paired(dict(enumerate(row)), zero) for row in differences.tolist()]
    coverage = np.mean([f.ci_low <= 0.03 <= f.ci_high for f in found])
    assert 0.93 < coverage < 0.97


def test_holm_matches_a_hand_computed_example():
    # sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1 -> 0.02, 0.03, 0.06, then not below 0.06
    adjusted = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": None})
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02, "e": None})
    assert statistics.holm({"a": 0.7, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_sd_divides_by_n_minus_one_and_needs_two_values():
    assert statistics.sd([1.0, 2.0, 4.0]) == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert statistics.sd([1.0]) is None
    assert statistics.mean([]) is None
