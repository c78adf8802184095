"""A MkDocs hook that adds the pages made from the code: config groups, API reference, error messages, changelog,
and the notebooks.

Everything is read as text, so that building the site imports neither torch nor this project.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
PROJECT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
PACKAGES = ("nn", "models", "data", "generation", "inference", "bundle", "exchange", "tasks", "training")


LINKED = re.compile(r"\[`([\w.]+)`\]\(\.\./\.\./((?:vit|tests)/[\w/]+)\.py\)")  # a function and its file
FORMULA = re.compile(r"\$([^$\n]+)\$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {**config_pages(), **reference_pages(), **project_pages(), **notebook_pages(), **source_pages()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to notebooks lead to their pages; in the table of formulas, links to functions lead to pages of their
    files, and formulas are MathML, which needs no script.
    """
    if f"({Path(page.file.src_uri).stem}.ipynb)" not in text:  # the page of a notebook links to the file itself
        text = text.replace(".ipynb)", ".md)")
    if page.file.src_uri != "learn/formulas.md":
        return text
    text = LINKED.sub(lambda match: f"[`{match[1]}`](../source/{match[2]}.md#{line_anchor(match[1], match[2])})", text)
    return FORMULA.sub(lambda match: convert(match[1]), text)


def notebook_pages() -> dict[str, str | bytes]:
    """The executed notebooks with their figures."""
    pages = {}
    for path in sorted((ROOT / "docs/learn").glob("*.ipynb")):
        text, resources = MarkdownExporter().from_filename(str(path), {"output_files_dir": f"{path.stem}-figures"})
        link = f"\n\n[The notebook itself]({path.name})\n"
        pages[f"learn/{path.stem}.md"] = text + link
        pages |= {f"learn/{name}": content for name, content in resources["outputs"].items()}
    return pages


def source_pages() -> dict[str, str]:
    """The files that `learn/formulas.md` links to, with numbered lines."""
    text = (ROOT / "docs/learn/formulas.md").read_text(encoding="utf-8")
    pages = {}
    for path in sorted({match[2] for match in LINKED.finditer(text)}):
        code = (ROOT / f"{path}.py").read_text(encoding="utf-8")
        pages[f"source/{path}.md"] = f"# `{path}.py`\n\n````python linenums=\"1\"\n{code}````\n"
    return pages


def line_anchor(name: str, path: str) -> str:
    """The anchor of the line of a function or `Class.method` on the page of its file."""
    body, line = ast.parse((ROOT / f"{path}.py").read_text(encoding="utf-8")).body, 1
    for part in name.split("."):
        node = next(node for node in body if getattr(node, "name", None) == part)
        body, line = node.body, node.lineno
    return f"__codelineno-0-{line}"


def config_pages() -> dict[str, str]:
    """A page per config group, and one for the keys of a whole run."""
    conf = ROOT / "conf"
    pages = {"config/train.md": "# Run-wide keys\n\n" + described(conf / "train.yaml")}
    for group in sorted(path for path in conf.iterdir() if path.is_dir()):
        options = sorted(group.glob("*.yaml"), key=lambda path: (path.stem.startswith("_"), path.stem))
        sections = [f"## {title(group.name, path.stem)}\n\n{described(path)}" for path in options]
        pages[f"config/{group.name}.md"] = f"# {group.name}\n\n" + "\n".join(sections)
    return pages


def title(group: str, option: str) -> str:
    return f"`{option}` (shared defaults)" if option.startswith("_") else f"`{group}={option}`"


def described(path: Path) -> str:
    """A config file: its header comment as text, then its keys with their comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    count = next((row for row, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = [line[1:].removeprefix(" ") for line in lines[:count] if not line.startswith("# @package")]
    return f"{prose(header)}\n\n```yaml\n{chr(10).join(lines[count:]).strip()}\n```\n"


def prose(lines: list[str]) -> str:
    """Sentences as a paragraph; indented lines, which are commands and tables, as they are."""
    parts, code = [], False
    for line in lines:
        if line.startswith("  ") != code:
            code = not code
            parts.append("```text" if code else "```")
        parts.append(line if code else escaped(line))
    return "\n".join([*parts, "```"] if code else parts)


def escaped(text: str) -> str:
    return re.sub(r"([<>*_\[\]|])", r"\\\1", text)


def reference_pages() -> dict[str, str]:
    """The public names of each package, and the error messages."""
    pages = {"reference/errors.md": error_page()}
    for package in ("vit", *(f"vit.{name}" for name in PACKAGES)):
        found = sorted(public_paths(package).items(), key=lambda item: item[0].lower())
        entries = [f"::: {path}\n    options:\n      heading: {package}.{name}\n" for name, path in found]
        pages[f"reference/{package.removeprefix('vit.')}.md"] = "\n".join([f"# {package}\n", *entries])
    return pages


def public_paths(package: str) -> dict[str, str]:
    """Public name -> where it is defined: names imported at once (`__all__`) or on first use (`_MODULES`)."""
    init = ROOT / package.replace(".", "/") / "__init__.py"
    if names := assigned(init, "__all__"):  # former names are not imported, constants have no text of their own
        return {name: f"{package}.{name}" for name in names if name in imported(init) and not name.isupper()}
    paths = {}
    for name, module in dict(assigned(init, "_MODULES")).items():
        lazy = (ROOT / module.replace(".", "/") / "__init__.py").is_file()
        paths[name] = public_paths(module)[name] if lazy else f"{module}.{name}"
    return paths


def imported(path: Path) -> set[str]:
    """The names that a module imports from others."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


def assigned(path: Path, name: str):
    """The literal that a module assigns to a name, or an empty list."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    return []


def error_page() -> str:
    parts = ["# Error messages\n", "Every message that the code raises, by package. `{...}` stands for a value.\n"]
    for package in sorted(path for path in (ROOT / "vit").iterdir() if (path / "__init__.py").is_file()):
        rows = sorted({message for path in package.rglob("*.py") for message in messages(path)})
        if rows:
            parts.append(f"## vit.{package.name}\n")
            parts += [f"- {escaped(text)} ({kind})" for kind, text in rows]
            parts.append("")
    return "\n".join(parts)


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """(exception, message) of each `raise` with a text; values in it as `{...}`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = pattern(node.exc.args[0])
            if text.replace("{...}", "").strip(" :;."):
                yield ast.unparse(node.exc.func), text


def pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return " ".join(str(node.value).split(" "))
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    return pattern(node.left) + pattern(node.right) if isinstance(node, ast.BinOp) else "{...}"


def project_pages() -> dict[str, str]:
    """The project's own files, with links that lead to pages of the site."""
    pages = {}
    for page, source in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for name, target in PROJECT.items():
            text = text.replace(f"]({target})", f"]({name})")
        pages[page] = text
    return pages
