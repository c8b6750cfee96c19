"""The repository checks itself: sizes, names, habits, and that the reference pages leave nothing out."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import click
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from tools.measures import cycles, import_graph, recurring_types
from tools.measures import trees as measured_trees

import remuda
from remuda.core.errors import RemudaError
from remuda.core.log import names_secret
from remuda.core.settings import Settings, described
from remuda.store.schema import SCHEMA_VERSION
from remuda.wire import subjects

N = TypeVar("N", ast.FunctionDef, ast.AsyncFunctionDef, ast.Call, ast.ExceptHandler)
C = TypeVar("C")
Function = ast.FunctionDef | ast.AsyncFunctionDef

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
SOURCE = ROOT / "src/remuda"
SHARED_TYPE_NAMES: dict[str, str] = {}  # Names of types that may recur, each with its reason.
BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}
# In pieces, so that this file does not hold what it looks for.
FOREIGN_PATH = re.compile(r"(?<![\w.)}/-])/(?:" + "|".join(("work", "root")) + r")(?![\w-])")
ASSERTING = re.compile(r"(raises|warns|fail|expect|(assert|expect|check|wait|until)_\w+)")
SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}
METRICS = re.compile(r"Counter|Gauge|Histogram|Summary|Info|Enum|\w+MetricFamily")


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that git tracks or would take."""
    # The folder may belong to another user, as in a container; git then wants to be told that this is meant.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in sorted(listed.split("\0")) if name and (path := ROOT / name).is_file())


@cache
def syntax_trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in repository_files() if path.suffix == ".py"}


@cache
def module_paths() -> tuple[str, ...]:
    """From the top of the repository, with a slash in front."""
    return tuple(f"/{path.relative_to(ROOT)}" for path in syntax_trees())


@cache
def syntax_nodes() -> dict[Path, list[ast.AST]]:
    """Those that anything here asks for: walking the trees takes longer than reading them."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Call, ast.ExceptHandler)
    return {
        path: [node for node in ast.walk(tree) if isinstance(node, kinds)]
        for path, tree in syntax_trees().items()
    }


def found(kind: type[N], under: str = ".") -> Iterator[tuple[str, N]]:
    """Every syntax node of one kind, with the place where it stands."""
    for path, nodes in syntax_nodes().items():
        if path.is_relative_to(ROOT / under):
            for node in nodes:
                if isinstance(node, kind):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def functions(under: str = ".") -> Iterator[tuple[str, Function]]:
    yield from found(ast.FunctionDef, under)
    yield from found(ast.AsyncFunctionDef, under)


def calls(node: ast.AST) -> Iterator[str]:
    """The dotted names that are called anywhere inside a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            yield ast.unparse(part.func)


# Sizes and names


def test_no_function_is_too_long() -> None:
    lengths = {place: (node.end_lineno or 0) - node.lineno + 1 for place, node in functions()}
    assert {place: lines for place, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in syntax_trees()}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    modules = [path.relative_to(ROOT) for path in syntax_trees()]
    assert [str(path) for path in modules if BANNED_NAMES & {*path.parts[:-1], path.stem}] == []


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Those imported within functions count, too."""
    assert cycles(import_graph()) == []


def test_public_types_have_names_of_their_own() -> None:
    """Two things of one name on one path cost every reader a look at the imports. Aliases are types, too."""
    recurring = recurring_types(measured_trees())
    assert {name: where for name, where in recurring.items() if name not in SHARED_TYPE_NAMES} == {}


def test_the_architecture_page_names_modules_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    packages = "|".join(sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")))
    files = re.findall(r"(?<![\w/.])(?:[a-z_0-9]+/)*[a-z_0-9]+\.py\b", text)
    paths = re.findall(rf"`((?:{packages})(?:/[a-z_0-9]+)+)`", text)
    functions_named = re.findall(rf"`((?:{packages})(?:\.\w+){{2,}})(?:\(\))?`", text)
    assert {name for name in {*files, *(f"{path}.py" for path in paths)} if not _is_module(name)} == set()
    assert {name for name in functions_named if not _is_defined(name)} == set()


def _is_module(name: str) -> bool:
    """Whether a module or a package of ours is at this path, given whole or from anywhere below the top."""
    folder = f"/{name.removesuffix('.py')}/__init__.py"
    return any(path.endswith((f"/{name}", folder)) for path in module_paths())


def _is_defined(dotted: str) -> bool:
    parts = dotted.split(".")
    path = SOURCE / parts[0]
    for number, part in enumerate(parts[1:], 1):
        path /= part
        if path.with_suffix(".py").is_file():
            tree = syntax_trees()[path.with_suffix(".py")]
            return all(
                any(getattr(node, "name", "") == name for node in ast.walk(tree))
                for name in parts[number + 1 :]
            )
    return path.is_dir()


def test_the_architecture_page_leaves_no_package_out() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    layout = text[text.index("src/remuda/\n") : text.index("tests/                unit/")]
    packages = {path.parent for path in SOURCE.rglob("__init__.py")} - {SOURCE}
    assert [str(one.relative_to(SOURCE)) for one in sorted(packages) if f"{one.name}/" not in layout] == []


def test_migrations_are_numbered_one_after_the_other() -> None:
    """Two changes that each add the next one are noticed here, and not by the first database they meet."""
    files = sorted((ROOT / "src/remuda/store/migrations/versions").glob("v*.py"))
    assert [int(path.stem[1:5]) for path in files] == list(range(1, SCHEMA_VERSION + 1))
    for path in files:
        assert f'revision = "{path.stem[1:5]}"' in path.read_text(), path.name


def test_no_file_names_a_folder_of_one_machine() -> None:
    def lines(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1):
            if FOREIGN_PATH.search(line):
                yield f"{path.relative_to(ROOT)}:{number}"

    assert [place for path in repository_files() for place in lines(path)] == []


# UpkeepPolicy


def test_no_test_sleeps() -> None:
    def naps(call: ast.Call) -> bool:
        spans = [part.value for part in call.args if isinstance(part, ast.Constant)]
        return ast.unparse(call.func) in SLEEPS and any(span != 0 for span in spans)

    assert [place for place, call in found(ast.Call, "tests") if naps(call)] == []


def test_every_test_asserts_something() -> None:
    def asserts(test: Function) -> bool:
        if any(isinstance(part, ast.Assert) for part in ast.walk(test)):
            return True
        return any(ASSERTING.fullmatch(name.rpartition(".")[2]) for name in calls(test))

    tests = [(place, node) for place, node in functions("tests") if node.name.startswith("test_")]
    assert [place for place, test in tests if not asserts(test)] == []


def test_nothing_is_caught_in_silence() -> None:
    def catches_all(handler: ast.ExceptHandler) -> bool:
        return handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}

    def speaks(handler: ast.ExceptHandler) -> bool:
        inside = [part for statement in handler.body for part in ast.walk(statement)]
        raised = any(isinstance(part, ast.Raise) for part in inside)
        passed_on = any(isinstance(part, ast.Name) and part.id == handler.name for part in inside)
        logged = any(re.match(r"(\w+\.)*_?log(ger)?\.", name) for name in calls(handler))
        return raised or passed_on or logged

    handlers = [(place, node) for place, node in found(ast.ExceptHandler) if catches_all(node)]
    assert [place for place, handler in handlers if not speaks(handler)] == []


def test_no_log_line_has_a_field_that_is_always_masked() -> None:
    """What is named like a secret is shown as ***: another name, or it need not be logged."""

    def masked(call: ast.Call) -> bool:
        named = {keyword.arg or "" for keyword in call.keywords}
        return ast.unparse(call.func).startswith("log.") and any(map(names_secret, named))

    assert [place for place, call in found(ast.Call, "src") if masked(call)] == []


# Reference pages


def remuda_modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(remuda.__path__, "remuda.")]
    # These two do their work when imported: one inside Alembic, the other as a program.
    programs = (".migrations.env", ".__main__")
    return [importlib.import_module(name) for name in names if not name.endswith(programs)]


def family(base: type[C]) -> Iterator[type[C]]:
    """A class and all its subclasses."""
    yield base
    for child in base.__subclasses__():
        yield from family(child)


def error_codes() -> Iterator[str]:
    for error in family(RemudaError):
        yield error.code
    for place, call in found(ast.Call, "src"):
        if ast.unparse(call.func).rpartition(".")[2] == "Problem" and call.args:
            yield from _text(call.args[0], place)


def _text(argument: ast.expr, place: str) -> Iterator[str]:
    """A text that stands there, or that a constant of that module holds."""
    if isinstance(argument, ast.Constant) and argument.value:
        yield str(argument.value)
    elif isinstance(argument, ast.Name) and argument.id.isupper():
        module = place.partition(":")[0].removeprefix("src/").removesuffix(".py").replace("/", ".")
        yield str(vars(importlib.import_module(module))[argument.id])


def setting_names() -> Iterator[str]:
    for model in family(Settings):
        for item in described(model):
            yield from (item.env, *item.setting.aliases)


def subject_forms() -> Iterator[str]:
    """Each subject with its variable parts in braces, such as `nodes.{node}.stop`."""
    for name, value in vars(subjects).items():
        if inspect.isfunction(value) and inspect.signature(value).return_annotation is str:
            if value is not subjects.token and not name.startswith("_"):
                yield value(*(f"{{{parameter}}}" for parameter in inspect.signature(value).parameters))
        elif name.isupper() and isinstance(value, str) and "." in value:
            yield value


def metric_names() -> Iterator[str]:
    for _, call in found(ast.Call, "src"):
        if METRICS.fullmatch(ast.unparse(call.func).rpartition(".")[2]) and call.args:
            name = call.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                counted = ast.unparse(call.func).endswith("Counter")
                yield f"{name.value}_total" if counted else name.value


def cli_verbs() -> Iterator[str]:
    def walk(command: click.Command, path: str) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield path
            return
        for name, child in command.commands.items():
            yield from walk(child, f"{path} {name}")

    for module in remuda_modules():
        if module.__name__ == "remuda.cli.main":
            for group in vars(module).values():
                if isinstance(group, click.Group):
                    yield from walk(group, "remuda")


def http_routes() -> Iterator[str]:
    for module in remuda_modules():
        for router in vars(module).values():
            if isinstance(router, APIRouter):
                yield from (route.path_format for route in router.routes if isinstance(route, APIRoute))


def test_the_table_of_wiring_has_every_setting() -> None:
    table = (ROOT / "tests/integration/cli/test_wiring.py").read_text()
    remuda_modules()
    used = [item for model in family(Settings) for item in described(model) if not item.setting.no_effect_yet]
    assert sorted({item.field for item in used if f'    "{item.field}": ' not in table}) == []


@pytest.mark.parametrize(
    "names", [error_codes, setting_names, subject_forms, metric_names, cli_verbs, http_routes]
)
def test_reference_pages_mention_all(names: Callable[[], Iterator[str]]) -> None:
    remuda_modules()
    reference = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))

    def mentioned(name: str) -> bool:
        return bool(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w/{{-])", reference))

    assert [name for name in sorted(set(names())) if not mentioned(name)] == []


def test_migrations_follow_each_other() -> None:
    """Two that take the same number leave no database that can be opened."""
    versions = sorted((ROOT / "src" / "remuda" / "store" / "migrations" / "versions").glob("v*.py"))
    for number, file in enumerate(versions, start=1):
        text = file.read_text()
        assert f'revision = "{number:04}"' in text, file.name
        assert file.name.startswith(f"v{number:04}_")
    assert f"SCHEMA_VERSION = {len(versions)}\n" in (ROOT / "src/remuda/store/schema.py").read_text()
