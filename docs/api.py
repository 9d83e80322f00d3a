"""Write docs/api.md, the table of public ops, from the package itself: `python docs/api.py`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

HEAD = """# All ops

Every op is a function of the package, `tv.NAME`; those that are methods of a tensor too are marked with a dot.
Written by `python docs/api.py` from the docstrings, which say more: `help(tv.conv2d)`.
"""


def table() -> str:
    """The page: one table a file, in the order of the code."""
    sys.path.insert(0, str(HERE.parent))
    import tinyvit as tv

    files: dict[str, list] = {}
    for name, function in vars(tv.registry.FUNCTIONS).items():
        files.setdefault(function.__module__, []).append((name, function))
    lines = [HEAD]
    for module in sorted(files):
        path = module.replace(".", "/") + ".py"
        what = inspect.getdoc(sys.modules[module]).split("\n\n")[0].replace("\n", " ")
        lines += [f"## {module.rpartition('.')[2]}", "", f"[{path}](../{path}): {what}", "", "| op | what it computes |",
                  "| --- | --- |"]
        for name, function in sorted(files[module], key=lambda pair: inspect.getsourcelines(pair[1])[1]):
            dot = "." if hasattr(tv.Tensor, name) else ""
            first = inspect.getdoc(function).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            lines.append(f"| `{dot}{name}{_arguments(function)}` | {first} |")
        lines.append("")
    return "\n".join(lines)


def _arguments(function) -> str:
    """The signature, without annotations."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    return str(inspect.Signature(parameters))


if __name__ == "__main__":
    (HERE / "api.md").write_text(table(), encoding="utf-8")
