"""Does a test fail when the code is wrong?   python tests/mutants.py search ranking scoring filters --sample 100

Each mutant is one small change of one module (a comparison, an operator, a number, a truth value, a call's min or max)
in a copy of the sources; the tests of its part run against it. Prints what no test noticed, and the share that one did.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("test_search.py", "test_filters.py", "test_prior.py", "test_hashing.py")
OTHERS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
NAMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "any": "all", "all": "any"}


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, description and text of every changed copy of a module."""
    tree = ast.parse(source)
    types = {id(part) for node in ast.walk(tree) for part in annotation(node)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in types:
            continue
        for what, change in changes(node):
            other = copy.deepcopy(tree)
            change(next(twin for at, twin in enumerate(ast.walk(other)) if at == number))
            yield node.lineno, what, ast.unparse(other)


def annotation(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a type annotation, which does nothing when the code runs."""
    for kind in (getattr(node, "annotation", None), getattr(node, "returns", None)):
        if isinstance(kind, ast.AST):
            yield from ast.walk(kind)


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHERS:
        other = OTHERS[type(node.ops[0])]
        yield f"{ast.unparse(node)}: {other.__name__}", lambda twin: twin.ops.__setitem__(0, other())
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHERS:
        other = OTHERS[type(node.op)]
        yield f"{ast.unparse(node)}: {other.__name__}", lambda twin: setattr(twin, "op", other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield f"{ast.unparse(node)}: without", lambda twin: setattr(twin, "op", ast.UAdd())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        value = (not node.value) if type(node.value) is bool else node.value + 1
        yield f"{node.value}: {value}", lambda twin: setattr(twin, "value", value)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield f"{ast.unparse(node)}: {NAMES[node.attr]}", lambda twin: setattr(twin, "attr", NAMES[node.attr])
    elif isinstance(node, ast.keyword) and node.arg in ("min", "max"):
        yield f"{ast.unparse(node)}: {NAMES[node.arg]}", lambda twin: setattr(twin, "arg", NAMES[node.arg])


def noticed(module: str, text: str) -> bool:
    """Whether a test fails on this copy of a module; one that never ends is noticed, too."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__", "data"))
        (Path(folder) / "src" / "superbloom" / f"{module}.py").write_text(text)
        surroundings = os.environ | {"PYTHONPATH": f"{folder}/src", "SUPERBLOOM_CASES": "150", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *(str(ROOT / "tests" / test) for test in TESTS)],
                env=surroundings,
                cwd=folder,
                capture_output=True,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("modules", nargs="+")
    options.add_argument("--sample", type=int, help="try only so many, drawn at random")
    given = options.parse_args()
    found = []
    for module in given.modules:
        source = (ROOT / "src" / "superbloom" / f"{module}.py").read_text()
        assert noticed(module, source) is False, f"the tests fail on {module} as it is"
        found += [(module, *mutant) for mutant in mutants(source)]
    if given.sample:
        found = random.Random(0).sample(found, min(given.sample, len(found)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda mutant: noticed(mutant[0], mutant[3]), found))
    for (module, line, what, _), killed in sorted(zip(found, outcomes, strict=True)):
        if not killed:
            sys.stdout.write(f"{module}.py:{line}: {what}\n")
    sys.stdout.write(f"{sum(outcomes)} of {len(outcomes)} noticed, {sum(outcomes) / len(outcomes):.0%}\n")


if __name__ == "__main__":
    main()
