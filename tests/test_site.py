"""The built site, read as HTML and looked at in Chromium; and every check on pages with one fault each.

Build it first, then ``python -m pytest -m site``. Each check is a function in tests/site_checks/ that gives complaints.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from site_checks import browser, reading
from site_checks.page import Site

DOCS = Path(__file__).parents[1] / "docs"
BUILT = DOCS / "_build" / "html"
PAGES = sorted(
    path.relative_to(DOCS).with_suffix(".html").as_posix()
    for path in DOCS.rglob("*.md")
    if "_build" not in path.relative_to(DOCS).parts
)


@pytest.fixture(scope="session")
def built():
    if not (BUILT / "index.html").exists():
        pytest.fail("docs/_build/html is not there; README.md has the command that builds it")
    return Site(BUILT)


@pytest.fixture(scope="session")
def chromium():
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("Chromium is not installed (Debian: apt install chromium)")
    pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[site]'")
    with browser.chromium(executable) as opened:
        yield opened


@pytest.mark.site
@pytest.mark.parametrize("check", reading.ALL, ids=lambda check: check.__name__)
def test_the_built_site_reads_well(built, check):
    assert list(check(built)) == []


@pytest.mark.site
@pytest.mark.parametrize("name", [*PAGES, "genindex.html", "search.html"])
def test_the_built_page_looks_well(built, chromium, name):
    assert browser.complaints(chromium, BUILT / name) == []


@pytest.mark.site
def test_links_to_the_repository_lead_on(built):
    readme, gpu = built.pages["readme.html"].links, built.pages["gpu.html"].links
    assert "readme.html" in gpu
    assert "contributing.html" in gpu
    assert "api/formulas.html#module-tinynorm.formulas.norms" in readme
    assert [link for link in readme if link.startswith("_downloads/") and link.endswith("/train_mlp.py")]


def mi(letter):
    return f"<mi>{letter}</mi>"


BAR = '<mover><mi>x</mi><mo stretchy="false">\u00af</mo></mover>'
FORMULAS = {
    r"x_k": f"<msub>{mi('x')}{mi('k')}</msub>",
    r"\bar x_k": f"<msub>{BAR}{mi('k')}</msub>",
    r"\bar x_k^n": f"<msubsup>{BAR}{mi('k')}{mi('n')}</msubsup>",
    r"\frac12": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    r"\frac1D": f"<mfrac><mn>1</mn>{mi('D')}</mfrac>",
    r"\overline{xy}": f'<mrow class="overline"><mrow>{mi("x")}{mi("y")}</mrow></mrow>',
    r"\underbrace{x}_{k}": f"<munder><munder>{mi('x')}<mo>⏟</mo></munder>{mi('k')}</munder>",
    r"\overbrace{x}^{k}": f"<mover><mover>{mi('x')}<mo>⏞</mo></mover>{mi('k')}</mover>",
    r"\|x\|": f'<mo stretchy="false">‖</mo>{mi("x")}<mo stretchy="false">‖</mo>',
    r"\left\|x\right\|": f"<mrow><mo>‖</mo>{mi('x')}<mo>‖</mo></mrow>",
}
"""What MathML has for them. docutils alone gives this for the first, the fifth and the last."""


@pytest.mark.site
@pytest.mark.parametrize("tex", FORMULAS)
def test_formulas_mean_what_they_say(monkeypatch, tex):
    monkeypatch.syspath_prepend(DOCS)
    mathml = pytest.importorskip("mathml", reason="Sphinx is not installed: pip install -e '.[docs]'")
    lines = mathml.mathml(tex, as_block=False).splitlines()
    found = re.sub(r' accent="\w+"', "", "".join(line.strip() for line in lines))
    assert found == f"<math>{FORMULAS[tex]}</math>"


@pytest.mark.site
def test_docstrings_are_shown_as_they_stand(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    docstrings = pytest.importorskip("docstrings", reason="Sphinx is not installed: pip install -e '.[docs]'")
    lines = ["The *sum* |x|, `a * b`:", "", "    y = |x|", "      + 1", "", ":param x: |x|", "", ">>> 2*3", "6"]
    docstrings.prepare(None, "function", "f", None, None, lines)
    formula, rest = ["::", "", "    y = |x|", "      + 1", ""], [r":param x: \|x\|", "", ">>> 2*3", "6"]
    assert lines == [r"The \*sum\* \|x\|, `a * b`:", "", *formula, *rest]


# The checks themselves: each finds the one fault that was made in pages that are well.

CELL = '<div class="cell_input"><div class="highlight"><pre><span>x</span> = 1  # {}\n</pre></div></div>'
PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8">
<style>body {{ margin: 0; background: #fff; color: #000 }} a {{ color: #00c }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #eee }} a {{ color: #9bf }} }}</style></head>
<body><article class="content"><h1 id="title">Title</h1><p>Text, <a href="{twin}" hreflang="{other}">other</a>.</p>
<p><a href="#title">up</a> <img src="{up}dot.svg" alt="A black dot."> <math><mi>x</mi></math></p>
<a href="{up}_downloads/page.ipynb">notebook</a>{cell}</article></body></html>
"""
DOT = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle cx="4" cy="4" r="4"/></svg>'
ENGLISH = {"language": "en", "other": "zh-Hant-TW", "twin": "zh_TW/page.html", "up": "", "cell": CELL.format("one")}
CHINESE = {"language": "zh-Hant-TW", "other": "en", "twin": "../page.html", "up": "../", "cell": CELL.format("一")}
NOTEBOOK = {"cells": [{"cell_type": "markdown", "source": ["# Title"]}]}


def notebook(comment):
    cell = {"cell_type": "code", "metadata": {}, "source": ["x = 1", f"  # {comment}"]}
    return json.dumps({"cells": [*NOTEBOOK["cells"], cell]})


@pytest.fixture
def small(tmp_path):
    """A site of two pages without faults."""
    (tmp_path / "zh_TW/_downloads").mkdir(parents=True)
    (tmp_path / "_downloads").mkdir()
    (tmp_path / "dot.svg").write_text(DOT)
    (tmp_path / "page.html").write_text(PAGE.format(**ENGLISH), encoding="utf-8")
    (tmp_path / "_downloads/page.ipynb").write_text(notebook("one"))
    chinese = PAGE.format(**CHINESE).replace("../_downloads", "_downloads")
    (tmp_path / "zh_TW/page.html").write_text(chinese, encoding="utf-8")
    (tmp_path / "zh_TW/_downloads/page.ipynb").write_text(notebook("一"), encoding="utf-8")
    return tmp_path


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


READ = {
    "a link to no page": ("page.html", 'href="#title"', 'href="nothing.html"', "broken_links"),
    "a link to no place": ("page.html", 'href="#title"', 'href="zh_TW/page.html#there"', "broken_links"),
    "a picture that is not there": ("page.html", 'src="dot.svg"', 'src="no.svg"', "broken_links"),
    "a picture without words": ("page.html", 'alt="A black dot."', 'alt=""', "pictures_without_words"),
    "a picture with nothing": ("page.html", ' alt="A black dot."', "", "pictures_without_words"),
    "a picture with a name": ("page.html", "A black dot.", "images/dot.svg", "pictures_without_words"),
    "a formula that failed": ("page.html", "<mi>x</mi>", "<merror>x</merror>", "formulas_that_failed"),
    "no title": ("page.html", '<h1 id="title">Title</h1>', '<p id="title">Title</p>', "titles"),
    "two titles": ("page.html", "<p>Text", "<h1>Again</h1><p>Text", "titles"),
    "English that says to be Chinese": ("page.html", 'lang="en"', 'lang="zh-Hant-TW"', "languages"),
    "Chinese that says to be English": ("zh_TW/page.html", 'html lang="zh-Hant-TW"', 'html lang="en"', "languages"),
    "no way to the translation": ("page.html", 'hreflang="zh-Hant-TW"', "", "languages"),
    "no way back": ("zh_TW/page.html", 'href="../page.html"', 'href="page.html"', "languages"),
    "no notebook": ("page.html", "_downloads/page.ipynb", "dot.svg", "notebooks"),
    "what is no notebook": ("_downloads/page.ipynb", "{", "[", "notebooks"),
    "a notebook with other code": ("_downloads/page.ipynb", "x = 1", "x = 2", "notebooks"),
    "a translation of other code": ("zh_TW/page.html", "<span>x</span> = 1", "x = 2", "translated_code"),
    "a translation that runs less": ("zh_TW/page.html", 'class="cell_input"', "", "translated_code"),
}


@pytest.mark.parametrize("fault", [None, *READ])
def test_reading_finds_the_fault(small, fault):
    if fault is None:
        expected = set()
    else:
        file, old, new, check = READ[fault]
        change(small / file, old, new)
        expected = {check}
    complaining = {check.__name__ for check in reading.ALL if list(check(Site(small)))}
    if fault == "a translation of other code":  # it is not that of its own notebook either
        expected |= {"notebooks"}
    assert complaining == expected


LOOK = {
    "a script that complains": ("</article>", "<script>console.error('no')</script></article>", "the console says: no"),
    "a script that fails": ("</article>", "<script>nothing()</script></article>", "a script fails"),
    "a style that is not there": ("<style>", '<link rel="stylesheet" href="no.css"><style>', "a request fails"),
    "a style from afar": ("<style>", '<link rel="stylesheet" href="https://x.invalid/a.css"><style>', "leaves this"),
    "a formula without a size": ("<mi>x</mi>", "", "a formula without a size"),
    "a picture that is none": ('src="dot.svg"', 'src="page.html"', "a picture that is not there: page.html"),
    "grey on white": ("<p>Text", '<p style="color: #999; background: #fff">Text', "hard to read when light"),
    "a link that is grey when it is dark": ("a { color: #9bf }", "a { color: #555 }", "hard to read when dark"),
    "glass on white": ("<p>Text", '<p style="color: #0003; background: #fff">Text', "hard to read when light"),
    "what is wide": ("<p>Text", '<p style="width: 1300px">Text', "wider than a screen of 1200 px"),
    "what is wide for a telephone": ("<p>Text", '<p style="width: 500px">Text', "wider than a screen of 390 px"),
}


@pytest.mark.site
@pytest.mark.parametrize("fault", [None, *LOOK])
def test_looking_finds_the_fault(small, chromium, fault):
    if fault is None:
        assert browser.complaints(chromium, small / "page.html") == []
        return
    old, new, complaint = LOOK[fault]
    change(small / "page.html", old, new)
    found = browser.complaints(chromium, small / "page.html")
    assert any(complaint in said for said in found), found
