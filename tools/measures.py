"""What the source tree is like, in figures.

    uv run --group dev python -m tools.measures

Files and lines, sizes of functions and files, how modules import each other, names of types that recur, and
where types or errors are left open.
"""

import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "remuda"
SMALL_LINES = 60
_TYPE_VARIABLES = ("TypeVar", "TypeVarTuple", "ParamSpec")
Tree = dict[str, ast.Module]


def trees() -> Tree:
    files = sorted(path for path in SOURCE.rglob("*.py") if not path.name.startswith("backend_pb2"))
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in files}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def spread(values: Sequence[int]) -> str:
    p95 = sorted(values)[int(len(values) * 0.95)]
    return f"median {statistics.median(values):.0f}, p95 {p95}, most {max(values)}"


def recurring_types(found: Tree) -> dict[str, list[str]]:
    """The names of public classes and type aliases that stand for more than one thing, and where."""
    places = defaultdict[str, list[str]](list)
    for file, tree in found.items():
        for name in [*_classes(tree), *_aliases(tree)]:
            if not name.startswith("_"):
                places[name].append(file)
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def _classes(tree: ast.Module) -> list[str]:
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _aliases(tree: ast.Module) -> list[str]:
    """Names in capitals and small letters that a module gives to what is no class; type variables are not
    meant, for each module has its own."""
    named = (
        (target, node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    return [
        target.id
        for target, value in named
        if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id)
        if not (isinstance(value, ast.Call) and ast.unparse(value.func) in _TYPE_VARIABLES)
    ]


def anys(found: Tree) -> int:
    return sum(
        isinstance(node, ast.Name) and node.id == "Any" for tree in found.values() for node in ast.walk(tree)
    )


def broad_excepts(found: Tree) -> Counter[str]:
    def broad(node: ast.AST) -> bool:
        if not isinstance(node, ast.ExceptHandler):
            return False
        return node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")

    return Counter(name for name, tree in found.items() for node in ast.walk(tree) if broad(node))


def import_graph() -> dict[str, set[str]]:
    graph = grimp.build_graph("remuda", cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def reached_from(graph: dict[str, set[str]], start: str) -> frozenset[str]:
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = graph[ahead.pop()] - reached
        reached |= fresh
        ahead.extend(fresh)
    return frozenset(reached)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other."""
    reached = {module: reached_from(graph, module) for module in graph}
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return [sorted(group) for group in groups]


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The longest path along imports; modules of a cycle are passed once."""
    best: dict[str, list[str]] = {}

    def chain(module: str, above: frozenset[str]) -> list[str]:
        if module not in best:
            below = (chain(one, above | {module}) for one in graph[module] - above - {module})
            best[module] = [module, *max(below, key=len, default=[])]
        return best[module]

    return max((chain(module, frozenset()) for module in sorted(graph)), key=len)


def main() -> None:
    found = trees()
    lines = {name: len((SOURCE / name).read_text().splitlines()) for name in found}
    sizes = [length(function) for tree in found.values() for function in functions(tree)]
    packages = sum(name.endswith("__init__.py") for name in found)
    small = sum(count < SMALL_LINES for name, count in lines.items() if not name.endswith("__init__.py"))
    graph = import_graph()
    importers = Counter(one for imported in graph.values() for one in imported)
    single = sum(importers[module] == 1 for module in graph)
    chain, rings, recurring = longest_chain(graph), cycles(graph), recurring_types(found)
    broad = broad_excepts(found)
    facts = {
        "files": f"{len(found)} ({packages} of them __init__, {small} below {SMALL_LINES} lines)",
        "modules imported once": single,
        "lines": sum(lines.values()),
        "lines of a file": spread(list(lines.values())),
        "lines of a function": spread(sizes),
        "longest import chain": f"{len(chain)}: {' > '.join(one.removeprefix('remuda.') for one in chain)}",
        "import cycles": f"{len(rings)} {rings or ''}",
        "recurring type names": f"{len(recurring)}: {', '.join(sorted(recurring))}",
        "uses of Any": anys(found),
        "broad excepts": f"{sum(broad.values())}: {', '.join(sorted(broad))}",
    }
    for name, fact in facts.items():
        print(f"{name:22} {fact}")


if __name__ == "__main__":
    main()
