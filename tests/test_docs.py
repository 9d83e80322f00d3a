"""The documentation is right: its code runs and prints what it shows, its quotations, links, commands and table of ops hold."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LESSONS = sorted((DOCS / "lessons").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]


def load(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def check(page, **settings):
    """`docs/pages.py` in a process of its own: a page may define ops and kernels, and switch the backend."""
    setting = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8", **settings}
    return subprocess.run([sys.executable, str(DOCS / "pages.py"), str(page)], env={**os.environ, **setting},
                          capture_output=True, encoding="utf-8", timeout=300, check=False)


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_the_page_shows(page):
    done = check(page, TINYVIT_BACKEND="numpy")  # what an idea needs; no kernel is compiled for it
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_trains_a_model_that_learns():
    done = check(ROOT / "README.md")
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_something_to_check():
    pages = load("pages")
    for page in LESSONS:
        assert sum(block.shown is not None for block in pages.blocks(page)) >= 3, f"{page.name} shows no outputs"


@pytest.mark.parametrize(("text", "complaint"), [
    ("```python\nprint(1 + 1)\n```\n```text\n3\n```\n", "the page shows"),
    ("```python\nprint(1 + 1)\n```\n", "the page shows"),
    ("<!-- from tinyvit/tensor.py -->\n```python\nclass Tensr:\n```\n", "no longer in"),
    ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
])
def test_a_wrong_page_is_caught(tmp_path, text, complaint):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    done = check(page)
    assert done.returncode == 1 and complaint in done.stdout + done.stderr


def test_a_right_page_passes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\nprint(x, 1e-9)\n```\n\n```text\n1 3.5e-11\n```\n\n"
                    "```python\nprint(x + 1, 'seconds')\n```\n```text\n... seconds\n```\n", encoding="utf-8")
    assert check(page).returncode == 0


def links(text):
    """Targets of the links and pictures of a page, without what is between ``` lines."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page.read_text(encoding="utf-8")):
        target, _, place = link.partition("#")
        if "://" in target:
            continue
        file = page if not target else page.parent / target
        assert file.exists(), f"{page.name} links to {link}, which does not exist"
        if place:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert place in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, f"{page.name}: {link}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m (tinyvit[\w.]*)", text):
        assert importlib.util.find_spec(module.rstrip(".")), f"{page.name} names python -m {module}, which does not exist"
    for script in re.findall(r"python ((?:docs|demos)/\w+\.py)", text):
        assert (ROOT / script).is_file(), f"{page.name} names {script}, which does not exist"


def test_the_guide_names_every_demo():
    text = (DOCS / "teachers.md").read_text(encoding="utf-8")
    for demo in (ROOT / "demos").glob("[0-9]*.py"):
        assert demo.name in text


def test_index_names_every_lesson():
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    for lesson in LESSONS:
        assert f"lessons/{lesson.name}" in text


def test_table_of_ops_is_up_to_date():
    assert (DOCS / "api.md").read_text(encoding="utf-8") == load("api").table(), "run: python docs/api.py"


def test_figures_are_small_and_used():
    text = "".join(page.read_text(encoding="utf-8") for page in TEXTS)
    for figure in (DOCS / "figures").iterdir():
        assert figure.stat().st_size < 200_000, figure.name
        assert figure.name in text, f"{figure.name} is used nowhere"
