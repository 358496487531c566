"""Does a test fail when the code is wrong?   python -m tools.mutants run [search/cost …] [--sample 100] [--again]

Each mutant is one small change of one module: another comparison or operator, a number one higher, a truth value
turned, a condition negated, min for max, a statement left out. The tests of its part run on it, the quickest first,
until one fails. `run` keeps what came out in benchmarks/results/mutants.json and resumes from there; --again tries once
more what no test noticed. `report` writes the shares into docs/reliability.md and what is left into
docs/results/mutants.md, and keeps the reasons there, which are written by hand.

This process imports the large libraries once, and forks for each mutant, whose package is a copy of the sources.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import gc
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
SHARES, SURVIVORS = ROOT / "docs" / "reliability.md", ROOT / "docs" / "results" / "mutants.md"
SEARCH = ("search/test_search.py", "search/test_search_arguments.py", "search/test_filters.py")
SEARCH += ("search/test_reference.py", "search/test_cost.py", "search/test_posterior.py")
SEARCH += ("model/test_prior.py::test_the_buckets_of_an_id_promise_at_least_its_bonus",)
TESTS: dict[str, tuple[str, ...]] = {
    "hashing/bloom": ("hashing/test_hashing.py", "hashing/test_coherent.py"),
    "hashing/construct": ("hashing/test_hashing.py", "hashing/test_coherent.py"),
    "ranking": SEARCH,
    "search/reference": ("search/test_reference.py",),
    "search/certified": SEARCH,
    "search/opening": SEARCH,
    "search/combined": SEARCH,
    "search/posterior": ("search/test_posterior.py", "search/test_search_arguments.py"),
    "search/queries": SEARCH,
    "search/cost": SEARCH,
    "search/arguments": SEARCH,
    "search/scoring": SEARCH,
    "search/filters": SEARCH,
    "training/batches": ("training/test_batches.py", "corpus/test_segments.py"),
    "corpus/segments": ("corpus/test_segments.py", "training/test_batches.py"),
    "model/loss": ("model/test_loss.py",),
    "store/model_folder": ("store/test_store_contents.py",),
}
# Parts of the names of tests that train a model: too long for each mutant, and others notice the same.
LONG = ("workers", "train", "learn", "early", "noticed")
LIBRARIES = ("torch", "lightning", "hypothesis.extra.numpy", "scipy.sparse.linalg", "pyarrow.compute", "rich.progress")
LIBRARIES += ("safetensors.torch", "pytest", "_pytest.doctest", "_pytest.junitxml", "_pytest.legacypath")
CASES = "60"  # of each property of the search
MEMORY = 4 * 2**30  # bytes beyond what the libraries take
# A mutant may take so long, whatever else the machine does, and three times the computing of the tests on sound code.
SECONDS = 600

OTHERS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.Pow: ast.Mult, ast.Mod: ast.Mult},
}
NAMES = {"min": "max", "amin": "amax", "any": "all", "minimum": "maximum", "fmin": "fmax"}
NAMES |= {value: key for key, value in NAMES.items()}
Change = Callable[[Any], ast.AST]


@dataclass
class Mutant:
    """A change: the line it is in, and what becomes of which part; killed by the test that noticed, if one did."""

    module: str
    line: int
    source: str
    change: str
    killed: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.module, self.source, self.change


def mutants(module: str, text: str) -> Iterator[tuple[Mutant, str]]:
    """Every mutant of a module, and its text."""
    lines, seen = text.splitlines(), Counter[tuple[str, str]]()
    tree = ast.parse(text)
    idle = {id(part) for node in ast.walk(tree) for part in without_effect(node)}
    bound = rebound(tree)
    for number, node in enumerate(ast.walk(tree)):
        for what, change in () if id(node) in idle else changes(node, bound):
            source = lines[node.lineno - 1].strip()
            seen[source, what] += 1
            again = f" ({seen[source, what]})" if seen[source, what] > 1 else ""
            yield Mutant(module, node.lineno, source, what + again), changed(text, number, change)


def changed(text: str, number: int, change: Change) -> str:
    """The text of a module whose node of this number is changed."""
    tree = ast.parse(text)
    wanted = next(node for at, node in enumerate(ast.walk(tree)) if at == number)

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return change(node) if node is wanted else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Swap().visit(tree)))


def without_effect(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of what does nothing when sound code runs: types, assertions, texts alone."""
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    if isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        parts.append(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        parts.append(node)
    for part in parts:
        if isinstance(part, ast.AST):
            yield from ast.walk(part)


def rebound(tree: ast.AST) -> set[int]:
    """Assignments of names that had a value before; leaving out others makes an unknown name, which says little."""
    found = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        known = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        for node in sorted(
            (node for node in ast.walk(function) if isinstance(node, ast.Assign)), key=lambda node: node.lineno
        ):
            names = {part.id for target in node.targets for part in ast.walk(target) if stored(part)}
            if names <= known:
                found.add(id(node))
            known |= names
    return found


def stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def changes(node: ast.AST, bound: set[int]) -> Iterator[tuple[str, Change]]:
    """What may become of a node: in words, and how."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHERS:
        yield told(node, lambda twin: put(twin, ops=[OTHERS[type(twin.ops[0])](), *twin.ops[1:]]))
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHERS and not is_path(node):
        yield told(node, lambda twin: put(twin, op=OTHERS[type(twin.op)]()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield told(node, lambda twin: twin.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield told(node, lambda twin: put(twin, value=not twin.value if type(twin.value) is bool else twin.value + 1))
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield told(node, lambda twin: put(twin, attr=NAMES[twin.attr]))
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield told(node, lambda twin: put(twin, id=NAMES[twin.id]))
    elif isinstance(node, ast.keyword) and node.arg in NAMES:
        yield told(node, lambda twin: put(twin, arg=NAMES[twin.arg]))
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare):
        what = f"if {ast.unparse(node.test)}"
        yield f"{what} → if not …", lambda twin: put(twin, test=ast.UnaryOp(ast.Not(), twin.test))
    gone = isinstance(node, ast.Expr | ast.AugAssign | ast.Raise) or id(node) in bound
    if gone or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)):
        yield f"{short(node)} → left out", lambda _: ast.Pass()


def is_path(node: ast.AST) -> bool:
    """Paths are divided, too."""
    return isinstance(node, ast.BinOp) and isinstance(getattr(node.right, "value", None), str)


def told(node: Any, change: Change) -> tuple[str, Change]:
    before, after = short(node), short(change(node))
    if before == after:  # as far as they are shown
        kinds = [type(getattr(one, "op", None) or one.ops[0]).__name__ for one in (node, change(node))]
        return f"{before}: {' → '.join(kinds)}", change
    return f"{before} → {after}", change


def short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:59] + "…"


def put(node: Any, **parts: Any) -> Any:
    return type(node)(**{name: getattr(node, name) for name in (*node._fields, *node._attributes)} | parts)


class Watch:
    """Tells pytest what to run in which order, and what failed or how long each test took."""

    def __init__(self, durations: dict[str, float]) -> None:
        self.durations, self.took, self.failed = durations, dict[str, float](), list[str]()

    def pytest_sessionstart(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        # No failure has to be made small, and the same mutant meets the same cases.
        options: dict[str, Any] = {"phases": [Phase.explicit, Phase.generate], "derandomize": True, "database": None}
        # Nor does a slow machine count as a failure.
        settings.register_profile("mutants", settings(), suppress_health_check=list(HealthCheck), **options)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if not any(word in item.name for word in LONG)]
        items.sort(key=lambda item: self.durations.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid.rsplit("/", 1)[-1])


class Copy:
    """The package in a folder of its own, in which one module may be another."""

    def __init__(self, folder: str) -> None:
        self.folder, self.package, self.said = folder, Path(folder) / "superbloom", Path(folder) / "said"
        ignored = shutil.ignore_patterns("__pycache__", "data")
        shutil.copytree(ROOT / "src" / "superbloom", self.package, ignore=ignored)
        for data in (ROOT / "src" / "superbloom").rglob("data"):
            (self.package / data.relative_to(ROOT / "src" / "superbloom")).symlink_to(data)
        compileall.compile_dir(self.package, quiet=2)

    def put(self, module: str, text: str) -> None:
        path = self.package / f"{module}.py"
        path.write_text(text, encoding="utf-8")
        # subtle: Python tells by size and second whether compiled code is out of date; mutants are alike in both
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def try_out(self, module: str, limit: float, durations: dict[str, float]) -> tuple[str | None, dict[str, float]]:
        """The first test that failed on the module as it lies there, if any, and how long the tests took."""
        told = Path(self.folder) / "told.json"
        told.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            os._exit(self._run(module, limit, durations, told))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return f"died of signal {signal.Signals(os.WTERMSIG(status)).name}", {}
        failed, took = json.loads(told.read_text()) if told.exists() else ([], {})
        return (failed or ["it cannot be imported"])[0] if os.WEXITSTATUS(status) else None, took

    def _run(self, module: str, limit: float, durations: dict[str, float], told: Path) -> int:
        """Of the child: all tests until one fails, in bounded memory and time."""
        import pytest

        said = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        sys.path.insert(0, self.folder)
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": self.folder, "SUPERBLOOM_CASES": CASES, "PYTHONDONTWRITEBYTECODE": "1"}
        os.chdir(ROOT)
        watch = Watch(durations)
        files = [str(self.package / f"{module}.py"), *(f"tests/{name}" for name in TESTS[module])]
        options = ["-x", "-q", "--rootdir", str(ROOT), "-c", "pyproject.toml", "-p", "no:cacheprovider"]
        # Collecting garbage in all that the libraries made takes longer than most tests.
        options += ["-p", "no:unraisableexception", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, *files], plugins=[watch])
        told.write_text(json.dumps([watch.failed, watch.took]))
        return int(code)


def run(modules: list[str], sample: int | None, again: bool) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins of other tests take seconds to import
    for name in LIBRARIES:
        __import__(name)
    gc.freeze()
    known = {mutant.key: mutant for mutant in kept()}
    sound: dict[tuple[str, ...], tuple[float, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        package = Copy(folder)
        for module in modules:
            text = (ROOT / "src" / "superbloom" / f"{module}.py").read_text(encoding="utf-8")
            if TESTS[module] not in sound:
                sound[TESTS[module]] = on_sound_code(package, module)
            limit, durations = sound[TESTS[module]]
            everyone = dict(mutants_by_key(module, text))
            chosen = drawn(list(everyone.values()), sample)
            known = {key: old for key, old in known.items() if key[0] != module or key in everyone}
            due = [one for one in chosen if (again and survived(known, one)) or one[0].key not in known]
            say(f"{module}: {len(everyone)} mutants, {len(due)} to try; {len(durations)} tests")
            begun = time.monotonic()
            for number, (mutant, changed_text) in enumerate(due, 1):
                package.put(module, changed_text)
                mutant.killed, _ = package.try_out(module, limit, durations)
                known[mutant.key] = mutant
                keep(list(known.values()), {module: len(everyone)})
                left = (time.monotonic() - begun) / number * (len(due) - number)
                if not mutant.killed:
                    say(f"  {module}.py:{mutant.line}: {mutant.change}")
                say(f"{module} {number} of {len(due)}, {left / 60:.0f} min left", end="\r")
            package.put(module, text)
            mine = [known[one[0].key] for one in chosen]
            say(f"{module}: {sum(one.killed is not None for one in mine)} of {len(mine)} noticed")


def on_sound_code(package: Copy, module: str) -> tuple[float, dict[str, float]]:
    """How many seconds of computing to allow, and how long each test took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    failed, durations = package.try_out(module, 1e4, {})
    if failed:
        raise SystemExit(f"the tests of {module} fail as it is: {failed}\n{package.said.read_text()[-2000:]}")
    return 3 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before) + 20, durations


def mutants_by_key(module: str, text: str) -> Iterator[tuple[tuple[str, str, str], tuple[Mutant, str]]]:
    return ((found[0].key, found) for found in mutants(module, text))


def drawn(everyone: list[tuple[Mutant, str]], sample: int | None) -> list[tuple[Mutant, str]]:
    """A sample that stays the same while the code does, and mostly when some of it changes."""
    everyone.sort(key=lambda found: hashlib.sha256("\n".join(found[0].key).encode()).digest())
    return everyone[:sample]


def survived(known: dict[tuple[str, str, str], Mutant], found: tuple[Mutant, str]) -> bool:
    return found[0].key in known and known[found[0].key].killed is None


def kept() -> list[Mutant]:
    return [Mutant(**mutant) for mutant in stored_results()["mutants"]]


def stored_results() -> dict[str, Any]:
    """Earlier results of the modules that are listed now."""
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"possible": {}, "mutants": []}
    return {
        "possible": {name: number for name, number in found["possible"].items() if name in TESTS},
        "mutants": [mutant for mutant in found["mutants"] if mutant["module"] in TESTS],
    }


def keep(found: list[Mutant], possible: dict[str, int]) -> None:
    """A line a mutant, so that a change shows as such."""
    found.sort(key=lambda mutant: (mutant.module, mutant.line, mutant.change))
    lines = ",\n".join(json.dumps(asdict(mutant), ensure_ascii=False) for mutant in found)
    whole = json.dumps(stored_results()["possible"] | possible)
    temporary = RESULTS.with_suffix(".new")
    temporary.write_text(f'{{"possible": {whole},\n"mutants": [\n{lines}\n]}}\n', encoding="utf-8")
    temporary.replace(RESULTS)


def report() -> int:
    """Write the tables; return the number of survivors without a reason."""
    from tools.record import between_marks  # imports the package, which a run has to take from its copy

    found, possible = kept(), stored_results()["possible"]
    reasons = written(SURVIVORS.read_text(encoding="utf-8"))
    rows = ["| module | mutants | tried | noticed | share |", "|---|---|---|---|---|"]
    for module in [name for name in TESTS if name in possible]:
        rows.append(share(module, possible[module], [mutant for mutant in found if mutant.module == module]))
    rows.append(share("all", sum(possible.values()), found))
    left = ["| where | the line | the change | why no test notices |", "|---|---|---|---|"]
    without = 0
    for mutant in (mutant for mutant in found if mutant.killed is None):
        what = f"`{code(mutant.source)}` | `{code(mutant.change)}`"
        reason = reasons.get(f"{mutant.module} | {what}", "")
        without += not reason
        if not reason:
            say(f"no reason yet: {mutant.module}.py:{mutant.line}: {mutant.change}")
        left.append(f"| {mutant.module}:{mutant.line} | {what} | {reason} |")
    between_marks(SHARES, {"shares": "\n".join(rows)})
    between_marks(SURVIVORS, {"survivors": "\n".join(left)})
    return without


def share(name: str, possible: int, found: list[Mutant]) -> str:
    killed = sum(mutant.killed is not None for mutant in found)
    return f"| {name} | {possible:,} | {len(found):,} | {killed:,} | {killed / len(found):.0%} |"


def written(page: str) -> dict[str, str]:
    """The reasons in the page, by module, line and change."""
    table = page.split("<!-- survivors -->\n", 1)[1].split("<!-- end of", 1)[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") if row.endswith(" |") else [] for row in table]
    return {f"{row[0].split(':')[0]} | {row[1]} | {row[2]}": row[3].strip() for row in cells if len(row) == 4}


def code(text: str) -> str:
    """Within a table of Markdown."""
    return text.replace("|", "¦").replace("`", "'")


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(f"{text:<70}{end}")
    sys.stdout.flush()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["run", "report"])
    options.add_argument("modules", nargs="*", choices=[[], *TESTS], help="all, if none is named")
    options.add_argument("--sample", type=int, help="try only so many of each module, drawn at random")
    options.add_argument("--again", action="store_true", help="try those once more that no test noticed")
    given = options.parse_args()
    if given.what == "report":
        sys.exit(1 if report() else 0)
    run(given.modules or list(TESTS), given.sample, given.again)


if __name__ == "__main__":
    main()
