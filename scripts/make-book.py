#!/usr/bin/env python3
"""Makes the site of docs/ with mdBook: make-book.py [--repository URL] [--prepare]

The pages of docs/ and those beside README.md go to target/book/src, side by side, so that docs/index.md is the first page of the site. Links between
them follow. A link to another file of the repository becomes one to URL; without a URL it is the path alone. Then mdBook makes target/book/site (--prepare leaves that out), and every link within the
site has to lead somewhere. docs/SUMMARY.md has to list every page.
"""

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BOOK = ROOT / "target" / "book"
BESIDE = ("SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
TOML = """[book]
title = "Trireme"
src = "src"

[build]
build-dir = "site"
create-missing = false

[output.html]
no-section-label = true
"""


def pages():
    """All pages of the site, as paths in the repository."""
    return [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "adr").glob("*.md")), *(ROOT / name for name in BESIDE)]


def place(path):
    """Where a page or a picture of the repository lies in the book."""
    return path.relative_to(DOCS) if path.is_relative_to(DOCS) else Path(path.name)


def summary():
    """The table of contents; the decisions follow docs/SUMMARY.md."""
    text = (DOCS / "SUMMARY.md").read_text()
    listed = {(DOCS / target).resolve() for _, target, _, _ in LINK.findall(text)}
    lacking = [page.name for page in DOCS.glob("*.md") if page not in listed and page.name != "SUMMARY.md"]
    if lacking:
        sys.exit(f"docs/SUMMARY.md does not list {', '.join(sorted(lacking))}")
    text = LINK.sub(lambda link: f"]({place((DOCS / link[2]).resolve())})", text)
    titles = [(page, page.read_text().splitlines()[0].lstrip("# ")) for page in sorted((DOCS / "adr").glob("*.md"))]
    return text + "\n# Decisions\n\n" + "".join(f"- [{title}]({place(page)})\n" for page, title in titles)


def prepare(repository):
    """Writes the sources of the book."""
    shutil.rmtree(BOOK, ignore_errors=True)
    inside = set(pages())
    for page in inside:
        def link(found, page=page):
            target = (page.parent / unquote(found[2])).resolve()
            if re.match(r"[a-z]+:", found[2]):
                return found[0]
            if target in inside or target.suffix == ".png":
                return f"{found[1]}{os.path.relpath(place(target), place(page).parent)}{found[3] or ''}{found[4]}"
            shown = target.relative_to(ROOT) if target.is_relative_to(ROOT) else found[2]
            return f"{found[1]}{repository}/{shown}{found[3] or ''}{found[4]}" if repository else found[0]

        target = BOOK / "src" / place(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(LINK.sub(link, page.read_text()))
    for picture in DOCS.glob("*.png"):
        shutil.copy(picture, BOOK / "src")
    (BOOK / "src" / "SUMMARY.md").write_text(summary())
    (BOOK / "book.toml").write_text(TOML)


def broken(site):
    """Links within the site that lead nowhere."""
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")}
    for page in anchors:
        for target in re.findall(r'<a [^>]*?href="([^"]+)"', page.read_text()):
            path, _, anchor = unquote(html.unescape(target)).partition("#")
            if re.match(r"[a-z]+:|//", path) or page.name in ("print.html", "toc.html"):
                continue
            where = (page.parent / path).resolve() if path else page
            if where.suffix == ".html" and (where not in anchors or (anchor and anchor not in anchors[where])):
                yield f"{page.relative_to(site)}: {target}"


def main():
    """Makes the site and checks it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", default="", metavar="URL", help="where files of the repository are shown, such as https://github.com/OWNER/NAME/blob/main")
    parser.add_argument("--prepare", action="store_true", help="only write target/book/src")
    args = parser.parse_args()
    prepare(args.repository.rstrip("/"))
    if args.prepare:
        return
    if not shutil.which("mdbook"):
        sys.exit("mdbook is missing: cargo install --locked mdbook")
    subprocess.run(["mdbook", "build", BOOK], check=True)
    faults = sorted(broken(BOOK / "site"))
    if faults:
        sys.exit("links that lead nowhere:\n" + "\n".join(faults))
    print(f"==> {BOOK.relative_to(ROOT)}/site: {len(pages())} pages")


if __name__ == "__main__":
    main()
