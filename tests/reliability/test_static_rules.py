"""G14: static rules on the syntax trees of all sources; each rule has lines that break it.

`tests/test_package.py` has the rule against pickles, `torch.load`, `eval` and similar calls.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.project import ROOT

SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])
QUEUES = ("Queue", "LifoQueue", "PriorityQueue", "JoinableQueue")
# Wake-ups of threads: their senders wait for answers, so few are queued.
SIMPLE_QUEUES = (
    *("vivace/engine/streams/stream.py", "vivace/engine/streams/batch.py"),
    "vivace/engine/turns/thread.py",
    *("vivace/audio/writer.py", "vivace/remote/host.py"),
)
Rule = Callable[[ast.AST, str], bool]


def called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def is_true(node: ast.AST, *names: str) -> bool:
    """Whether the call has this keyword with a value other than False."""
    if not isinstance(node, ast.keyword) or node.arg not in names:
        return False
    return not (isinstance(node.value, ast.Constant) and not node.value.value)


def runs_a_shell(node: ast.AST, path: str) -> bool:
    words = ("os.system", "os.popen", "subprocess.getoutput", "create_subprocess_shell")
    return is_true(node, "shell") or called(node).endswith(words)


def trusts_code(node: ast.AST, path: str) -> bool:
    is_loader = called(node).endswith(("yaml.load", "yaml.unsafe_load", "yaml.full_load"))
    return is_true(node, "trust_remote_code", "allow_pickle") or is_loader


def creates_unbounded_queue(node: ast.AST, path: str) -> bool:
    """Detect `Queue()`, `Queue(0)` and `SimpleQueue()`."""
    name = called(node).rpartition(".")[2].partition("[")[0]
    if name == "SimpleQueue":
        return not path.endswith(SIMPLE_QUEUES)
    if name not in QUEUES or not isinstance(node, ast.Call):
        return False
    sizes = [*node.args, *(word.value for word in node.keywords if word.arg == "maxsize")]
    if not sizes or not isinstance(sizes[0], ast.Constant):
        return not sizes
    size = sizes[0].value
    return isinstance(size, int) and size <= 0


def reads_request_url(node: ast.AST, path: str) -> bool:
    """Detect `request.url`, which contains the Host header; use `scope["path"]` instead."""
    if not isinstance(node, ast.Attribute) or node.attr not in ("path", "hostname", "netloc"):
        return False
    return isinstance(node.value, ast.Attribute) and node.value.attr == "url"


def skips_certificates(node: ast.AST, path: str) -> bool:
    if isinstance(node, ast.keyword):
        value = node.value
        return node.arg == "verify" and isinstance(value, ast.Constant) and value.value is False
    return called(node).endswith("_create_unverified_context")


def uses_predictable_name(node: ast.AST, path: str) -> bool:
    return called(node) in ("tempfile.mktemp", "mktemp")


def unpacks_without_checks(node: ast.AST, path: str) -> bool:
    return called(node).endswith((".extractall", "shutil.unpack_archive"))


RULES: dict[Rule, tuple[str, ...]] = {  # with lines that break each rule
    runs_a_shell: (
        "subprocess.run('ls', shell=True)",
        "subprocess.run(command, shell=is_windows)",
        "os.system('ls')",
        "await asyncio.create_subprocess_shell('ls')",
    ),
    trusts_code: (
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
    ),
    creates_unbounded_queue: (
        "waiting = queue.Queue()",
        "waiting: Queue[int] = asyncio.Queue()",
        "Queue(maxsize=0)",
        "Queue[bytes]()",
        "SimpleQueue()",
    ),
    reads_request_url: (
        "if request.url.path.startswith('/v1'): pass",
        "websocket.url.hostname",
    ),
    skips_certificates: (
        "httpx.get(url, verify=False)",
        "ssl._create_unverified_context()",
    ),
    uses_predictable_name: ("tempfile.mktemp()",),
    unpacks_without_checks: ("tarfile.open(path).extractall(folder)",),
}
ALLOWED = """
subprocess.run(["ls"], shell=False)
waiting = queue.Queue(8)
waiting = asyncio.Queue(maxsize=MOST)
load(path, trust_remote_code=False)
urlsplit(text).path
request.scope["path"]
httpx.get(url)
tempfile.mkstemp()
"""


def find_breaches(source: str, path: str = "vivace/serve/x.py") -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        for rule in RULES:
            if rule(node, path):
                yield f"{path}:{getattr(node, 'lineno', '?')} {rule.__name__}"


def test_sources_follow_the_static_rules() -> None:
    assert len(SOURCES) > 150
    found = [
        breach
        for path in SOURCES
        for breach in find_breaches(path.read_text(), path.relative_to(ROOT).as_posix())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "source"), [(rule.__name__, each) for rule in RULES for each in RULES[rule]]
)
def test_control_line_against_a_rule_is_detected(rule: str, source: str) -> None:
    body = source if not source.startswith("await") else f"async def f():\n    {source}"
    assert [breach.split()[1] for breach in find_breaches(body)] == [rule]


def test_allowed_line_is_accepted() -> None:
    assert list(find_breaches(ALLOWED)) == []


def run_bandit(*paths: Path) -> list[str]:
    """Return bandit's findings of any severity, with the rules of pyproject.toml."""
    pytest.importorskip("bandit")
    done = subprocess.run(
        [sys.executable, "-m", "bandit", "-q", "-f", "json", "-c", "pyproject.toml", "-r", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["metrics"]["_totals"]["loc"] > 0
    return [
        f"{each['test_id']} {each['filename']}:{each['line_number']}" for each in report["results"]
    ]


@pytest.mark.slow
def test_bandit_reports_nothing() -> None:
    assert run_bandit(ROOT / "src") == []


@pytest.mark.slow
def test_control_bandit_detects_unsafe_code(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle, subprocess\nsubprocess.run(input(), shell=True)\n")
    found = {each.split()[0] for each in run_bandit(bad)}
    assert {"B403", "B602"} <= found
