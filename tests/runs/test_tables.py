import csv
import dataclasses
import io
import json
import re
import subprocess
import sys

import pytest
import scipy.stats

from depthroute.errors import UserError
from depthroute.runs import registry, tables

GOLDEN = r"""
# Title

Question?

| arm      |   n | val loss (nats/token) | bits/byte |  Δ residual |      95 % interval | p (Holm) | verdict | params | MFLOP/token | tokens/s | router rate   |
| -------- | --: | --------------------: | --------: | ----------: | -----------------: | -------: | ------- | -----: | ----------: | -------: | ------------- |
| residual |   3 |       2.1000 ± 0.1000 |    3.0297 |           - |                  - |        - | -       |  1,000 |        5.50 |    3,000 | -             |
| qs_ks    |   3 |       2.0000 ± 0.0954 |    2.8854 | **-0.1000** | [-0.1248, -0.0752] |    0.003 | better  |  1,000 |        5.50 |    3,000 | 0.3 (5 tried) |

- Δ and interval: loss minus that of residual (nats/token), paired t, 95 %, n = 3 seeds; ±: sd over seeds
- p: two-sided, Holm-adjusted over 1 arms; verdict (better in bold) only where the interval excludes 0 and p < 0.05
- evaluated on held-out documents: 256 sequences, 65,536 tokens of val
- router rate: learning rate of the router over that of the model (values tried on the tune split)
- demonstration scale
"""  # noqa: E501


def summarise(folder, baseline=None):
    return tables.summarise(registry.load_sweep(folder), baseline)


def row(table, arm):
    return next(row for row in table.rows if row.arm == arm)


def test_markdown_is_the_golden_text(make_sweep):
    assert tables.markdown(summarise(make_sweep())) == GOLDEN.lstrip()


def test_differences_are_those_of_a_paired_t_test(make_sweep):
    found = row(summarise(make_sweep()), "qs_ks")
    truth = scipy.stats.ttest_rel([1.9, 2.01, 2.09], [2.0, 2.1, 2.2])
    assert found.delta == pytest.approx(-0.1)
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(truth.confidence_interval()))
    assert found.p_holm == pytest.approx(truth.pvalue)


def test_another_baseline_reverses_the_sign(make_sweep):
    folder = make_sweep()
    table = summarise(folder, "qs_ks")
    assert row(table, "residual").delta == -row(summarise(folder), "qs_ks").delta
    assert row(table, "residual").verdict == "worse"
    with pytest.raises(UserError, match="unknown baseline 'x'"):
        summarise(folder, "x")


def test_no_verdict_and_no_bold_when_the_interval_crosses_zero(make_sweep):
    table = summarise(make_sweep({"residual": (2.0, 2.1, 2.2), "qs_ks": (1.5, 2.11, 2.1)}))
    found = row(table, "qs_ks")
    assert found.ci_low < 0 < found.ci_high and found.verdict == ""
    assert "**" not in tables.markdown(table) and "textbf" not in tables.latex(table)


def test_holm_can_withdraw_a_verdict_that_the_interval_alone_would_give(make_sweep):
    noise = {f"arm{i}": (2.1, 2.05, 2.2) for i in range(9)}
    losses = {"residual": (2.0, 2.1, 2.2), "qs_ks": (1.89, 2.01, 2.05)}
    alone, among = (row(summarise(make_sweep(losses | extra)), "qs_ks") for extra in ({}, noise))
    assert alone.ci_high == among.ci_high < 0
    assert (alone.verdict, among.verdict) == ("better", "")


def test_one_seed_has_no_interval(make_sweep):
    table = summarise(make_sweep({"residual": (2.0,), "qs_ks": (1.9,)}))
    assert "| qs_ks    |   1 |                1.9000 |" in tables.markdown(table)
    assert (row(table, "qs_ks").ci_low, row(table, "qs_ks").verdict) == (None, "")


@pytest.mark.parametrize(
    ("multiplier", "trials", "tuned", "shown"),
    [(0.3, 5, True, "0.3 (5 tried)"), (1.0, 7, False, "1 (7 tried, not tuned)"), (1.0, 0, False, "1 (untuned)")],
)
def test_router_rate_says_how_it_was_found(make_sweep, multiplier, trials, tuned, shown):
    def edit(files, arm, seed):
        files["config"]["router"] |= {"lr_multiplier": multiplier, "lr_trials": trials, "lr_tuned": tuned}

    table = summarise(make_sweep(edit=edit))
    assert [found.router_rate for found in table.rows] == ["-", shown]


def test_markdown_escapes_markup_and_leaves_identifiers_alone():
    hostile = "a|b <img src=x> *x* _y_ [l](http://h) `c` &lt; # ~"
    shown = tables._md(hostile)
    assert shown == r"a\|b \<img src=x> \*x\* \_y\_ [l\](http://h) \`c\` \&lt; # \~"
    assert tables._md("qs_ks p < 0.05 [-0.1, +0.2]") == "qs_ks p < 0.05 [-0.1, +0.2]"
    assert (tables._md("# x"), tables._md("- x"), tables._md("-0.1")) == (r"\# x", r"\- x", "-0.1")


def test_latex_escapes_every_special_character():
    assert tables._tex("a_b & 5 % # $ {x} \\ ~ ^ < >") == (
        r"a\_b \& 5 \% \# \$ \{x\} \textbackslash{} \textasciitilde{} \textasciicircum{} $<$ $>$"
    )
    assert tables._tex("-0.5 qs-1 [-2]") == "$-$0.5 qs-1 [$-$2]"


def test_latex_needs_booktabs_only_and_is_balanced(make_sweep):
    text = tables.latex(summarise(make_sweep(labels={"qs_ks": "[50 %] q_s"})))
    assert set(re.findall(r"\\([a-z]+rule)", text)) == {"toprule", "midrule", "bottomrule"}
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    assert [line.count(" & ") for line in body.splitlines()[1:]] == [11, 11]
    assert "\n{}[50 \\%] q\\_s & 3" in body
    assert r"\textbf{$-$0.1000}" in body


def test_csv_and_json_hold_one_full_record_per_arm(make_sweep):
    table = summarise(make_sweep(labels={"qs_ks": 'a, "b"'}))
    records = json.loads(tables.json_text(table))
    assert records == [json.loads(json.dumps(dataclasses.asdict(found))) for found in table.rows]
    assert {"arm", "n", "val_loss", "delta", "ci_low", "ci_high", "params"} <= records[1].keys()
    assert (records[0]["delta"], records[1]["n"], records[1]["params"]) == (None, 3, 1000)
    read = list(csv.DictReader(io.StringIO(tables.csv_text(table))))
    assert read[1]["label"] == 'a, "b"' and float(read[1]["delta"]) == records[1]["delta"] and read[0]["delta"] == ""


def test_render_knows_its_formats(make_sweep):
    table = summarise(make_sweep())
    assert tables.render(table, "json") == tables.json_text(table)
    with pytest.raises(UserError, match="unknown format 'html'.*csv, json, md, tex"):
        tables.render(table, "html")


def test_an_unstarted_sweep_still_prints(make_sweep):
    def edit(files, arm, seed):
        files.clear()

    for text in (tables.render(summarise(make_sweep(edit=edit)), format) for format in tables.WRITERS):
        assert "qs" in text


def test_tables_import_neither_jax_nor_matplotlib():
    code = "import sys, depthroute.runs.tables; print({'jax', 'matplotlib', 'scipy.stats'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"
