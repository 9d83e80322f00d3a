"""The code on the pages of the documentation: run it, and compare what it prints with what the page shows.

    python docs/pages.py PAGE ...            check the pages (what the tests do)
    python docs/pages.py --write PAGE ...    put what the code prints into the pages

A ```python block is run; all blocks of a page share one namespace and an empty working folder. A ```text block right
after it is what it prints; there `...` stands for anything, and a number below 1e-6, which is rounding, for any other.
A ```python block after `<!-- from FILE -->` is a quotation: it is not run, and must be in that file, word for word.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?:<!-- from (?P<source>\S+) -->\n)?^```python\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<shown>.*?)^```$)?",
                   re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """One ```python block: its code, the line of the page it starts at, and what stands around it."""

    code: str
    line: int
    shown: str | None  # the output on the page
    place: tuple[int, int]  # where the output stands in the page's text
    source: str | None  # the file it is quoted from


def blocks(page: Path) -> list[Block]:
    """The ```python blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(m["code"], text.count("\n", 0, m.start("code")) + 1, m["shown"], m.span("shown"), m["source"])
            for m in BLOCK.finditer(text)]


def run(page: Path, found: list[Block]) -> list[str]:
    """What each block prints; "" for a quotation. Errors show the line of the page."""
    namespace: dict = {"__name__": "__main__"}
    outputs = []
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in found:
                printed = io.StringIO()
                if block.source is None:
                    code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
                    with contextlib.redirect_stdout(printed):
                        exec(code, namespace)
                outputs.append("".join(line.rstrip() + "\n" for line in printed.getvalue().splitlines()))
        finally:
            os.chdir(before)
    return outputs


def same(shown: str, printed: str) -> bool:
    """Whether the outputs are equal, apart from numbers that are rounding errors and differ between machines."""
    shown, printed = (re.sub(r"\b\d(\.\d+)?e-(0[7-9]|[1-9]\d)\b", "tiny", text) for text in (shown, printed))
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


def problems(page: Path) -> list[str]:
    """What is wrong with a page: quotations that are out of date, and outputs other than those shown."""
    found = blocks(page)
    wrong = []
    for block, output in zip(found, run(page, found)):
        where = f"{page.name}:{block.line}"
        if block.source is not None:
            file = ROOT / block.source
            if not file.is_file() or block.code not in file.read_text(encoding="utf-8"):
                wrong.append(f"{where}: this is no longer in {block.source}; quote it again")
        elif not same(block.shown or "", output):
            wrong.append(f"{where}: the page shows\n{block.shown or ''}and the code prints\n{output}")
    return wrong


def write(page: Path) -> None:
    """Put what the code prints into the page, where a ```text block waits for it."""
    text, found = page.read_text(encoding="utf-8"), blocks(page)
    for block, output in reversed(list(zip(found, run(page, found)))):
        if block.shown is not None and "..." not in block.shown:
            text = text[: block.place[0]] + output + text[block.place[1]:]
    page.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    pages = [Path(a).resolve() for a in arguments if a != "--write"]
    if "--write" in arguments:
        for page in pages:
            write(page)
        return 0
    found = [problem for page in pages for problem in problems(page)]
    print("\n".join(found) or f"{len(pages)} pages are right")
    return 1 if found else 0


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.exit(main(sys.argv[1:]))
