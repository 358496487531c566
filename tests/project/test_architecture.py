"""Imports run one way: each package imports only from those before it in ORDER.

Imports inside functions and for type checking count as well. Outside a package, a name that its __init__ exports is
imported from the package, so that a file of the package can be moved without touching the others.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "superbloom"
# The order of the data flow. A name without a folder is a module of the package superbloom.
ORDER = (
    *("version", "errors", "special", "answers", "progress", "ranking", "config", "runtime", "client"),
    *(
        "storage",
        "corpus",
        "prepare",
        "hashing",
        "search",
        "memory",
        "model",
        "predict",
        "evaluate",
        "training",
        "store",
        "batch",
    ),
    *("api", "serve", "reproduce", "commands", "cli", "__main__", "__init__"),
)


def unit(module: tuple[str, ...]) -> str:
    """The package or top-level module that a dotted name belongs to."""
    return module[1] if len(module) > 1 else "__init__"


def modules() -> dict[tuple[str, ...], Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("superbloom", *path.relative_to(SOURCE).with_suffix("").parts)
        found[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """Every module of ours that a file imports, and the name it takes from it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "superbloom":
                    yield tuple(alias.name.split(".")), None
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: write the whole name of the module"
            base = tuple((node.module or "").split("."))
            if base[0] == "superbloom":
                for alias in node.names:
                    inner = (*base, alias.name)
                    yield (inner, None) if inner in MODULES else (base, alias.name)


def exported(package: str) -> set[str]:
    """What the __init__ of a package exports."""
    path = MODULES[("superbloom", package)]
    if path.name != "__init__.py":
        return set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_the_order_names_every_package_once():
    assert sorted(ORDER) == sorted({unit(module) for module in MODULES})


def test_imports_run_one_way():
    wrong = [
        f"{'.'.join(module)} imports {'.'.join(target)}"
        for module, path in MODULES.items()
        for target, _ in imports(path)
        if unit(target) != unit(module) and ORDER.index(unit(target)) > ORDER.index(unit(module))
    ]
    assert wrong == []


def test_exported_names_are_imported_from_their_package():
    exports = {package: exported(package) for package in ORDER if package != "__init__"}
    wrong = [
        f"{'.'.join(module)} imports {name} from {'.'.join(target)}"
        for module, path in MODULES.items()
        for target, name in imports(path)
        if unit(target) != unit(module) and len(target) > 2 and name in exports[unit(target)]
    ]
    assert wrong == []


def test_modules_of_a_package_do_not_import_each_other_in_a_circle():
    edges = {module: {target for target, _ in imports(path)} - {module} for module, path in MODULES.items()}
    while leaves := [module for module, targets in edges.items() if not targets & edges.keys()]:
        for module in leaves:
            del edges[module]
    assert list(edges) == []
