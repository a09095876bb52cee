import json
import re
from html.parser import HTMLParser

from depthroute.runs import registry, report

NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
VOID = {"meta", "br", "wbr", "path", "use", "rect", "image"}
ROUTING = {
    "weights_MS": [[1.0, None], [0.4, 0.6], [0.5, 0.5]],
    "consumers": ["attention 0", "mlp 0", "read-out"],
    "sources": ["embedding", "attention 0"],
    "kinds": ["attention", "mlp", "read-out"],
}


class Page(HTMLParser):
    """Text, links and images of a page; fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page(folder):
    report.write(registry.load_sweep(folder), folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def add_routing(folder):
    for seed in range(3):
        (folder / f"qs_ks-seed{seed}" / "routing.json").write_text(json.dumps(ROUTING))
    return folder


def test_the_page_is_whole_and_needs_no_network(make_sweep):
    text = page(add_routing(make_sweep()))
    found = Page(text)
    assert set(re.findall(r"https?://[^\"'<\s)]*", text)) <= NAMESPACES
    assert all(link.startswith(("#", "data:", "qs_ks-seed", "residual-seed")) for link in found.links)
    assert not {"script", "link", "iframe", "img", "object", "metadata"} & set(found.tags)
    assert "@import" not in text and "url(http" not in text
    assert found.tags.count("svg") == 1 + 3 + 2


def test_the_page_says_what_the_issue_asks_for(make_sweep):
    text = Page(page(add_routing(make_sweep()))).text
    for part in ("Title", "Question?", "demonstration scale", "mean over tokens and 3 seeds", "c0ffee", "jax 0.10.2", "abc"):
        assert part in text, part
    assert "No routing weights to show for: residual." in text
    assert "[-0.1248, -0.0752]" in text
    for axis in (
        "(millinats/token; left of 0 is better)",
        "tokens seen (millions)",
        "training loss (nats/token)",
        "source (what is read)",
        "mean weight",
    ):
        assert axis in text, axis


def test_links_lead_to_the_run_folders(make_sweep):
    folder = make_sweep()
    links = [link for link in Page(page(folder)).links if not link.startswith("#")]
    assert len(links) == 6 and all((folder / link).is_dir() for link in links)


def test_everything_from_a_stranger_is_escaped(make_sweep):
    evil = "<script>alert(1)</script><img src=x onerror=y>"

    def edit(files, arm, seed):
        files["provenance"] |= {"git_commit": evil, "versions": {evil: evil}, "devices": [evil]}
        files["status"]["state"] = evil
        files["result"] |= {"data_fingerprint": evil + arm, "eval_split": evil}

    folder = make_sweep(edit=edit, title=evil, question=evil, note=evil, labels={"qs_ks": evil}, config_file=evil)
    routing = ROUTING | {"consumers": [evil] * 3, "sources": [evil] * 2}
    (folder / "qs_ks-seed0" / "routing.json").write_text(json.dumps(routing))
    found = Page(page(folder))
    assert not {"script", "img"} & set(found.tags)
    assert evil in found.text


def test_the_page_is_the_same_each_time(make_sweep):
    folder = add_routing(make_sweep())
    assert page(folder) == page(folder)


def test_warnings_stand_on_the_page(make_sweep):
    def edit(files, arm, seed):
        if (arm, seed) == ("qs_ks", 2):
            del files["result"]

    text = Page(page(make_sweep(edit=edit))).text
    assert "Before comparing" in text and "missing: qs_ks-seed2" in text


def test_a_sweep_that_has_not_started_still_makes_a_page(make_sweep):
    text = Page(page(make_sweep(edit=lambda files, arm, seed: files.clear()))).text
    assert "missing: residual-seed0, residual-seed1, residual-seed2 (not started)" in text
    assert "No arm has a seed in common with residual" in text and "No finished run has metrics" in text
