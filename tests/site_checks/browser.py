"""Checks of a page in Chromium: what it asks for, how it is laid out, and whether it can be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 390, "height": 800}
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-quic", "--disable-sync")
"""Chromium looks for news of its own, which has nothing to do with the pages."""
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", *QUIET)
CONTRAST = 4.5
"""What WCAG 2.2 asks for at level AA (success criterion 1.4.3), of text of any size."""

OVERFLOW = """() => {
    const scrolls = e => getComputedStyle(e).overflowX != "visible";
    const inside = (e, top) => e != top && (scrolls(e) || inside(e.parentElement, top));  // of something that scrolls
    return [document.documentElement, ...document.querySelectorAll(".content")]
        .filter(e => e.scrollWidth > e.clientWidth + 1)
        .map(e => `${e.scrollWidth} px in ${e.clientWidth}: ` + [...e.querySelectorAll("*")]
            .filter(c => c.getBoundingClientRect().right > e.getBoundingClientRect().right + 1)
            .filter(c => !inside(c.parentElement, e))
            .slice(0, 3).map(c => c.outerHTML.slice(0, 100)).join(" "));
}"""

FORMULAS = """() => [...document.querySelectorAll("math")].filter(e => !e.closest("details:not([open])"))
    .filter(e => { const box = e.getBoundingClientRect(); return !(box.width > 0 && box.height > 0); })
    .map(e => e.textContent.trim())"""

PICTURES = """() => [...document.images].filter(e => !(e.complete && e.naturalWidth > 0))
    .map(e => e.getAttribute("src"))"""

COLOURS = """() => {
    // What is behind an element: the colours of those that it lies in, one over the other.
    const numbers = colour => { const n = colour.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
    const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => a * c + (1 - a) * below[i]);
    const behind = e => {
        if (!e) return [255, 255, 255];
        const colour = numbers(getComputedStyle(e).backgroundColor);
        return colour[3] == 1 ? colour.slice(0, 3) : over(colour, behind(e.parentElement));
    };
    const light = colour => colour.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const found = new Map(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const e = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
        if (!text || !e.closest("article, .sidebar-tree, .toc-tree")) continue;
        if (e.closest(".headerlink, script, style")) continue;
        if (!e.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
        const ground = behind(e), colour = over(numbers(getComputedStyle(e).color), ground);
        const [low, high] = [light(ground), light(colour)].sort((a, b) => a - b);
        const key = `${colour.map(Math.round)} on ${ground.map(Math.round)}`;
        if (!found.has(key)) found.set(key, [(high + 0.05) / (low + 0.05), text.slice(0, 40)]);
    }
    return [...found].map(([colours, [ratio, text]]) => [ratio, colours, text]);
}"""


@contextmanager
def chromium(executable: str) -> Iterator[Any]:
    """The browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield browser
        browser.close()


def complaints(browser: Any, path: Path) -> list[str]:
    """What is wrong with the page at this path, in light and dark, on a wide and on a narrow screen."""
    found: list[str] = []
    page = browser.new_page(viewport=WIDE, color_scheme="light")
    page.on("console", lambda m: m.type == "error" and found.append(f"the console says: {m.text}"))
    page.on("pageerror", lambda error: found.append(f"a script fails: {error}"))
    page.on("requestfailed", lambda r: found.append(f"a request fails: {r.url}"))
    page.route("**/*", lambda route: _let_through(route, found))
    page.goto(path.as_uri())
    found += [f"a formula without a size: {text}" for text in page.evaluate(FORMULAS)]
    found += [f"a picture that is not there: {source}" for source in page.evaluate(PICTURES)]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for ratio, colours, text in page.evaluate(COLOURS):
            if ratio < CONTRAST:
                found.append(f"hard to read when {scheme}, contrast {ratio:.2f}: {colours}: {text!r}")
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        found += [f"wider than a screen of {size['width']} px: {what}" for what in page.evaluate(OVERFLOW)]
    page.close()
    return found


def _let_through(route: Any, found: list[str]) -> None:
    """No request leaves this machine."""
    url = route.request.url
    if url.startswith(("file:", "data:", "http://localhost", "http://127.0.0.1")):
        route.continue_()
    else:
        found.append(f"a request leaves this machine: {url}")
        route.abort()
