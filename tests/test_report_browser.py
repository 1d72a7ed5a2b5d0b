"""The report in a browser: every figure renders and fits, and the page follows the theme."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import pytest

from browser import chromium
from reports import figures

MEASURE = """
<!doctype html><body><script>
const right = e => e.getBoundingClientRect().right;
function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement, wrong = [], scales = new Set();
  for (const figure of page.querySelectorAll("figure")) {
    const name = figure.querySelector("h4").textContent;
    const chart = figure.querySelector(".chart"), svg = chart.querySelector("svg");
    const box = (svg || chart).getBoundingClientRect();
    if (box.width < 100 || box.height < 40)
      wrong.push(name + ": is " + box.width + " x " + box.height);
    if (!figure.querySelector("figcaption").textContent.trim())
      wrong.push(name + ": has no caption");
    if (chart.querySelector("table")) {  // which needs no label
      if (!chart.querySelector("td")) wrong.push(name + ": is empty");
      continue;
    }
    if (chart.getAttribute("role") != "img" || !chart.getAttribute("aria-label"))
      wrong.push(name + ": has no label");
    if (!svg) continue;
    const edges = figure.getBoundingClientRect().width - 34;  // padding and border
    scales.add((box.width / svg.viewBox.baseVal.width).toFixed(3));
    if (box.width < 0.9 * edges) wrong.push(name + ": fills " + box.width + " of " + edges);
    const drawn = [...svg.querySelectorAll("path, use, image")];
    const shapes = drawn.filter(e => !e.closest("defs, clipPath"));
    const sizes = shapes.map(e => e.getBoundingClientRect()).map(b => Math.max(b.width, b.height));
    if (!sizes.some(size => size > 20)) wrong.push(name + ": is empty");
    for (const text of svg.querySelectorAll("text")) {
      const t = text.getBoundingClientRect();
      const across = t.left < box.left - 1 || t.right > box.right + 1;
      const along = t.top < box.top - 1 || t.bottom > box.bottom + 1;
      if (t.width == 0 || across || along)
        wrong.push(name + ": '" + text.textContent + "' is cut off");
    }
    for (const e of svg.querySelectorAll("[*|href^='#'], [clip-path]")) {
      const id = (e.getAttribute("href") || e.getAttribute("clip-path")).match(/#([^)]*)/)[1];
      if (!svg.querySelector("#" + id)) wrong.push(name + ": refers to " + id + " elsewhere");
    }
  }
  const ids = [...page.querySelectorAll("[id]")].map(e => e.id);
  return {
    figures: page.querySelectorAll("figure").length, wrong,
    width: root.scrollWidth, view: root.clientWidth,
    twice: ids.filter((id, i) => ids.indexOf(id) != i), scales: [...scales],
    bars: [...page.querySelectorAll(".pair")].map(
      e => right(e.lastElementChild) / right(e.parentElement)),
    loads: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
    back: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    text: frame.contentWindow.getComputedStyle(page.querySelector("figure svg text")).fill,
    owned: window.owned || 0,
  };
}
window.onload = () => {
  const result = {};
  for (const frame of document.querySelectorAll("iframe")) result[frame.name] = measure(frame);
  document.body.innerHTML = "<pre></pre>";
  document.body.firstChild.textContent = JSON.stringify(result);
};
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    return chromium()


def measured(
    browser: str, pages: dict[str, str], folder: Path, dark: bool = False, width: int = 360
) -> dict:
    frames = [
        f'<iframe name="{name}" style="width: {width}px; height: 700px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
    ]
    (folder / "wrapper.html").write_text(MEASURE + "\n".join(frames), encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    ]
    options.append(f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    command = [browser, *options, "--dump-dom", (folder / "wrapper.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<pre>(\{.*\})</pre>", dom, re.S)
    assert found, f"the page was not measured: {dom[-2000:]}"
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize(
    ("dark", "back", "text"),
    [(False, "244, 246, 248", "90, 102, 117"), (True, "14, 17, 21", "156, 167, 181")],
)
def test_every_figure_renders_on_a_phone(browser, pages, report_runs, tmp_path, dark, back, text):
    result = measured(browser, pages, tmp_path, dark)
    assert result.keys() == pages.keys()
    for name, page in result.items():
        assert page["wrong"] == [], name
        assert page["figures"] == figures(report_runs, name), name
        assert page["width"] <= page["view"] == 360, f"{name}: scrolls sideways"
        assert page["twice"] == [], f"{name}: ids occur twice"
        assert page["loads"] == [], f"{name}: loads something"
        assert page["owned"] == 0, f"{name}: a name from a file ran"
        assert (page["back"], page["text"]) == (f"rgb({back})", f"rgb({text})"), (
            f"{name}: does not follow the theme"
        )


@pytest.mark.parametrize("width", [360, 800, 1100])
def test_labels_have_one_size_and_cards_are_full(browser, pages, tmp_path, width):
    """All charts are scaled by one factor and fill their cards, the ledger the page's width."""
    some = {name: pages[name] for name in ("validated", "targets", "shared")}
    for name, page in measured(browser, some, tmp_path, width=width).items():
        assert len(page["scales"]) == 1, name
        assert page["wrong"] == [], name
        assert page["width"] <= page["view"] == width, f"{name}: scrolls sideways"
        assert all(share > 0.9 for share in page["bars"]), name
