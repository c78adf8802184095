"""Docstrings: a public function documents the errors it raises, and a function that returns a tensor gives shapes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted((ROOT / "vit").rglob("*.py")) if "cli" not in path.parts]  # there they are help texts
CONSTRUCTORS = ("__init__", "__post_init__", "__new__", "__call__")  # described by the docstring of their class
SHAPE = re.compile(r"\([\w.*+' -]+,[\w.*+', -]*\)|\bscalar|\bshapes?\b")  # (B,N,D), (N,), "any shape", "a scalar"
TENSOR_PACKAGES = ("nn", "models", "generation", "tasks", "training", "inference", "evaluation")
PRIVATE_WORDS = re.compile(r"\b(said|speaks|told|tells|wants|hiding|taught|teaching|somebody|anybody|nobody)\b", re.I)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.AST, described: str = "") -> Iterator[tuple[Function, str]]:
    """Functions and methods without a leading underscore, each with the docstring that describes it."""
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child, ast.get_docstring(child) or "")
        elif isinstance(child, Function):
            own = ast.get_docstring(child) or ""
            if child.name in CONSTRUCTORS:
                yield child, f"{own} {described}"
            elif not child.name.startswith("_"):
                yield child, own


def raises(function: Function) -> bool:
    """Whether the function itself raises an error that it creates; nested functions are not searched."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


def returns_tensor(function: Function) -> bool:
    """Whether the result is one tensor; containers of tensors have no common shape."""
    return function.returns is not None and ast.unparse(function.returns) in ("Tensor", "torch.Tensor", "Tensor | None")


def parsed(path: Path) -> list[tuple[Function, str]]:
    return list(public_functions(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_public_function_documents_the_errors_it_raises(path):
    silent = [f"line {function.lineno}: {function.name}" for function, text in parsed(path)
              if raises(function) and not re.search(r"\b[Rr]aises?\b", text)]
    assert not silent, f"{path.relative_to(ROOT)}: {silent}"


@pytest.mark.parametrize("path", [path for path in FILES if path.relative_to(ROOT).parts[1] in TENSOR_PACKAGES],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_that_returns_a_tensor_gives_shapes(path):
    silent = [f"line {function.lineno}: {function.name}" for function, text in parsed(path)
              if returns_tensor(function) and function.name not in CONSTRUCTORS and not SHAPE.search(text)]
    assert not silent, f"{path.relative_to(ROOT)}: {silent}"


@pytest.mark.parametrize(("code", "found"), [
    ("def f():\n    raise ValueError()", True),
    ("def f():\n    try:\n        pass\n    except ValueError:\n        raise", False),
    ("def f():\n    def g():\n        raise ValueError()", False),
    ("def f():\n    with a:\n        raise ValueError() from None", True),
])
def test_the_check_finds_what_a_function_raises(code, found):
    assert raises(ast.parse(code).body[0]) is found


TEXTS = [*ROOT.glob("*.md"), *(path for folder in ("vit", "conf", "tests", "benchmarks", "docs")
                                for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".yaml", ".md"})]
FORMER = ("CHANGELOG.md", "moved_modules.py", "test_docstrings.py")  # with the words themselves, or former names


def test_text_has_the_terms_of_the_field():
    found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in sorted(TEXTS) if path.name not in FORMER
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if PRIVATE_WORDS.search(line)]
    assert found == [], "see docs/glossary.md"
