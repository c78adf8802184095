"""Execute the notebooks of this folder: `python docs/learn/build.py [NAME ...]`.

A notebook is written as a Python file in `sources/`, with `# %%` before each cell, and stored with its outputs in the
`.ipynb` of the same name. Nothing is read from the network.
"""

import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
LIMIT = 300  # seconds per notebook


def names() -> list[str]:
    """The names of all notebooks."""
    return sorted(path.stem for path in (FOLDER / "sources").glob("*.py"))


def read(name: str) -> NotebookNode:
    """The notebook of a source, without outputs; cell ids are numbers, so that a new build changes no lines.

    Raises:
        FileNotFoundError: there is no such source.
    """
    notebook = jupytext.read(FOLDER / "sources" / f"{name}.py", fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return nbformat.from_dict(notebook)


def execute(name: str, folder: Path) -> NotebookNode:
    """The executed notebook of a source; its relative paths are in `folder`.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = read(name)
    options = {"resources": {"metadata": {"path": str(folder)}}, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, timeout=LIMIT, **options).execute()
    for cell in notebook.cells:
        if "outputs" in cell:  # without warnings, which name paths of the machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                tidy(output)
    return notebook


def tidy(output: NotebookNode) -> None:
    """Make a figure small, and remove what changes from build to build: the date, and its text with an address."""
    if svg := output.get("data", {}).get("image/svg+xml"):
        svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE.*?>", "", svg, flags=re.S)
        svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), svg)  # to a hundredth of a point
        output.data = {"image/svg+xml": re.sub(r"\s+", " ", svg).strip()}


def main() -> None:
    for name in sys.argv[1:] or names():
        notebook = execute(name, FOLDER)
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
