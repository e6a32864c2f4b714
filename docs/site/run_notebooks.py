"""Runs the notebooks in their order and saves them with their outputs and pictures.

    python docs/site/run_notebooks.py

They share a temporary folder. Its name, times of execution and messages of libraries
are left out.
"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def main() -> None:
    """Runs all notebooks in one folder."""
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            notebook = nbformat.read(path, as_version=4)
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, timeout=600, resources=resources).execute()
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # when each cell ran
                if "outputs" in cell:
                    cell.outputs = [o for o in cell.outputs if not _is_noise(o)]

            text = nbformat.writes(notebook).replace(folder, "FOLDER")
            path.write_text(text + "\n", encoding="utf-8")
            print(path)


def _is_noise(output: nbformat.NotebookNode) -> bool:
    """Returns whether an output is a library's message, such as TensorFlow's warnings."""
    if output.output_type != "stream":
        return False
    return output.name == "stderr" or output.text.startswith("WARNING:")


if __name__ == "__main__":
    main()
