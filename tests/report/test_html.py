"""The page in a real browser, as wide as a phone and as a desktop, dark and light."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from specaudit.cache import Cache, folder
from specaudit.configured import Configured
from specaudit.model import Evidence, Scan
from specaudit.report.gate import Gate
from specaudit.report.pages import html
from specaudit.report.view import STAGES, opened, report_of
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.store import rulebook
from specaudit.scan import Options, scan
from specaudit.targets import parse

#: Asks the laid-out page about itself; the answer is read from the dumped document.
_PROBE = """
<script>
const wide = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1);
const light = color => color.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 3;
const shown = e => e.checkVisibility({contentVisibilityAuto: true});
const answer = {
  width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  wide: wide.length,
  background: light(getComputedStyle(document.body).backgroundColor),
  ink: light(getComputedStyle(document.body).color),
  loaded: performance.getEntriesByType("resource").length,
  stages: [...document.querySelectorAll("details.path[open] .stage")].map(e => e.classList[1]),
  stagesShown: [...document.querySelectorAll("details.path[open] .stage")].every(shown),
  findings: document.querySelectorAll(".finding").length,
  evidenceShown: [...document.querySelectorAll(".finding .evidence")].filter(shown).length,
  scripts: document.scripts.length,
  smallest: Math.min(...[...document.querySelectorAll("p, dd, li, summary")].filter(shown)
    .map(e => parseFloat(getComputedStyle(e).fontSize))),
};
parent.document.documentElement.setAttribute("data-answer", JSON.stringify(answer));
</script>
"""


@pytest.fixture(scope="module")
def configured(release: Callable[[str], Path]) -> Scan:
    with Cache(folder()) as cache:
        judge = RuleJudge(rulebook(), cache)
        configure = Configured(("eagle3",), {}, judge.summary.needs)
        return scan(parse(f"dir:{release('0.33.0')}"), Options(judge=judge, configure=configure), cache)


@pytest.fixture(scope="module")
def page(configured: Scan) -> str:
    return html(report_of([configured], Gate("high")))


def browse(page: str, place: Path, width: int, *, dark: bool) -> dict[str, Any]:
    """What the page says about itself in Chromium at that width."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "a Chromium is needed to look at the page"
    probed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
        "</body>", _PROBE + "</body>"
    )
    # A window is never narrower than 500 pixels; a frame is as narrow as a phone, and media queries see the frame.
    file = place / "page.html"
    frame = f'<iframe srcdoc="{escape(probed)}" style="width:{width}px;height:900px;border:0"></iframe>'
    file.write_text(f'<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">{frame}')
    done = subprocess.run(
        [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            f"--user-data-dir={place / 'profile'}", "--window-size=1400,1000", "--hide-scrollbars",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answer = re.search(r'data-answer="([^"]*)"', done.stdout)
    assert answer is not None, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(unescape(answer[1]))
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_can_be_read(page: str, configured: Scan, tmp_path: Path, width: int, dark: bool) -> None:
    seen = browse(page, tmp_path, width, dark=dark)
    assert seen["width"] == width
    assert (seen["scroll"], seen["wide"]) == (width, 0)
    assert (seen["background"] < 60) == dark
    assert abs(seen["background"] - seen["ink"]) > 150
    assert seen["smallest"] >= 12
    assert seen["findings"] == len(opened(configured)) > 0
    assert seen["evidenceShown"] == 0
    assert seen["stagesShown"]
    assert seen["loaded"] == 0


def test_the_diagram_leads_from_configuration_to_kernel(page: str, tmp_path: Path) -> None:
    stages = browse(page, tmp_path, 1280, dark=False)["stages"]
    assert stages == [stage for stage in STAGES if stage in stages]
    assert (stages[0], stages[-1]) == ("config", "kernel")
    flow = page[page.index('<ol class="flow">') : page.index("</ol>")]
    assert "EagleSpeculator(" in flow
    assert "_rejection_kernel" in flow
    assert "&#34;eagle3&#34;" in flow
    assert "GPUModelRunnerV2(" in flow


def test_the_page_is_one_file_that_runs_nothing(page: str) -> None:
    assert not re.search(r"<(script|iframe|object|embed|link|img)\b", page)
    assert not re.search(r"(?:src|@import|url\()\s*=?\s*[\"']?http", page)
    assert "default-src 'none'" in page


def test_the_engine_puts_nothing_into_the_page(configured: Scan, tmp_path: Path) -> None:
    text = "</code></details><script>document.body.remove()</script><img src=x onerror=alert(1)>\"'"
    bad = tuple(
        replace(
            f, title=text, symptom=text, remedy=text, reason=text, symbol=text, sites=(Evidence("vllm/a.py", 1, text),)
        )
        for f in configured.findings
    )
    page = html(report_of([replace(configured, findings=bad)], Gate("low")))
    assert not re.search(r"<(script|img)\b", page)
    assert browse(page, tmp_path, 390, dark=False)["scripts"] == 1


def test_links_go_to_public_threads_only(page: str, configured: Scan) -> None:
    known = {address for finding in configured.findings for address in finding.references}
    assert set(re.findall(r'href="(https?://[^"]*)"', page)) <= known


def test_a_reference_that_is_no_web_address_is_no_link(configured: Scan) -> None:
    bad = tuple(replace(f, references=("javascript:alert(1)",)) for f in configured.findings)
    assert 'href="javascript' not in html(report_of([replace(configured, findings=bad)]))
