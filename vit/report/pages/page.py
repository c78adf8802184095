"""An HTML page in one file: no network, light and dark, readable on narrow screens and on paper."""

from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --back: #fff; --rule: #d9dee5; --muted: #5b6b7a; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf1; --back: #14181d; --rule: #37414c; --muted: #9aa7b4; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 1.2rem auto;
  padding: 0 1rem; max-width: 1500px; overflow-wrap: break-word; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } small, .muted { color: var(--muted); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top;
  overflow-wrap: break-word; }
td:first-child { overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th button { font: inherit; font-weight: 600; background: none; border: 0; color: inherit; padding: 0;
  cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
input { font: inherit; padding: .3rem .5rem; max-width: 100%; }
.failed, .damaged { color: #c0392b; } .running { color: #2471a3; } .stopped { color: #8a6100; }
.finished { color: #2e7d4f; }
@media screen and (prefers-color-scheme: dark) { .failed, .damaged { color: #ff8a7a; } .running { color: #7ab8ff; }
  .stopped { color: #e5b84b; } .finished { color: #7bd3a0; } }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 1rem;
  margin: .8rem 0; }
figure { margin: 0; border: 1px solid var(--rule); border-radius: 6px; padding: .6rem; overflow-wrap: anywhere; }
figure img { max-width: 100%; height: 120px; object-fit: contain; image-rendering: auto; }
.pair { display: flex; gap: .6rem; } .pair img { min-width: 0; flex: 1; }
blockquote { margin: 0 0 .5rem; white-space: pre-wrap; }
figure img[src^="data:image/png"] { image-rendering: pixelated; }
@media print { :root { color-scheme: light; --ink: #000; --rule: #bbb; --muted: #444; } .scroll { overflow: visible; }
  th button::after { content: ""; } label { display: none; } figure, tr { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; } }
"""

SCRIPTS = "; script-src 'unsafe-inline'"


def html_page(heading: str, body: str, script: str = "", style: str = "") -> str:
    """The text of a page.

    Args:
        heading: plain text.
        body: HTML, whose values are escaped already.
        style: further CSS.
    """
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'{SCRIPTS if script else ''}"
    end = f"<script>{script}</script>" if script else ""
    return ('<!doctype html>\n<html lang=en><head><meta charset=utf-8>'
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f'<meta http-equiv=Content-Security-Policy content="{policy}">'
            f"<title>{escape(heading)}</title><style>{STYLE}{style}</style></head>\n<body><main><h1>{escape(heading)}</h1>\n"
            f"{body}</main>{end}</body></html>\n")
