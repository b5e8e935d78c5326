"""The package as a whole: import time, public names, and the layers of its modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import vivace
from tests.support.project import ROOT

SOURCE = Path(vivace.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# A file imports from lower layers and from its own package only.
LAYERS = {
    "errors": 0, "speech": 0, "live_text": 0, "disk": 0, "checkpoint_files": 0, "_version": 0,
    "arguments": 0,
    "model": 1, "audio": 1, "text": 1, "sampling": 1, "device": 1, "hub": 1,
    "speaker_notes": 1,
    "checkpoint": 2, "voices": 2, "recogniser": 2, "adapter": 2, "mark": 2,
    "prompt": 3, "dialogue": 3, "options": 3, "quantize": 3, "adapter_set": 3,
    "backends": 4, "script": 4, "timing": 4, "teacher_forcing": 4,
    "engine": 5, "export": 5,
    "tts": 6, "plan": 6, "remote": 6,
    "compat": 7, "serve": 7, "integrations": 7, "books": 7, "finetune": 7,
    "conformance": 7,
    "cli": 8,
    "__main__": 9,
}  # fmt: skip
# The parts of these packages: the packages in them, and the modules beside those. The same rule
# applies to them.
PARTS = {  # the layers of the parts of large packages
    "vivace.engine": {
        "limits": 0, "turn_report": 0,
        "utterances": 1,
        "turns": 2, "streams": 2,
        "engine": 3,
        "checkpoints": 4,
        "synthesizer": 5,
        "dialogues": 6,
    },
    "vivace.serve": {
        "errors": 0, "settings": 0, "peers": 0, "garbage_collection": 0,
        "setting_sources": 1, "observability": 1, "input": 1,
        "models": 2,
        "streams": 3,
        "context": 4,
        "speaking": 5,
        "http": 6,
        "routes": 7, "page": 7,
        "sockets": 8, "wyoming": 8,
        "app": 9,
        "server": 10,
        "processes": 11, "ray_replica": 11,
        "ray_app": 12,
    },
    "vivace.backends.cuda_graph": {
        "slots": 0, "hopper": 0, "graphs": 0, "buckets": 0, "launch_sizes": 0, "triton_key": 0,
        "compile": 1,
        "layers": 2, "codec": 2,
        "prefill": 3, "rendering": 3, "stepper": 3,
        "step": 4,
        "backend": 5,
    },
}  # fmt: skip
WITHIN_LOWEST_LAYER = {
    ("speech", "errors"),
    ("live_text", "errors"),
    ("checkpoint_files", "errors"),
    ("arguments", "errors"),
    ("arguments", "speech"),
}  # the lowest layer
NARROW = {  # packages that may import less than all lower layers
    "serve": {
        *("tts", "remote", "options", "speech", "live_text", "errors", "audio", "voices", "disk"),
        *("_version", "mark", "speaker_notes"),
    },
    "integrations": {"tts", "options", "speech", "live_text", "errors", "audio", "_version"},
    "books": {"tts", "options", "speech", "errors", "audio", "text", "disk", "mark", "_version"},
}
IMPORTERS = {  # third-party packages and the only packages that may import them
    "huggingface_hub": {"hub"},
    "safetensors": {"checkpoint", "voices", "adapter", "finetune"},
    "tokenizers": {"text"},
    "faster_whisper": {"recogniser"},
    "soundfile": {"audio"},
    "av": {"audio"},
    "soxr": {"audio"},
    "sounddevice": {"audio"},
    "triton": {"backends"},
    "fastapi": {"serve"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "websockets": {"serve", "integrations"},
    "pydantic": {"serve"},
    "prometheus_client": {"serve"},
    "wyoming": {"serve"},
    "zeroconf": {"serve"},
    "opentelemetry": {"serve"},
    "pipecat": {"integrations"},
    "livekit": {"integrations"},
    "RealtimeTTS": {"integrations"},
    "ray": {"serve"},
    "fsspec": {"voices"},
    "lxml": {"books"},
    "onnx": {"export"},
    "onnxruntime": {"export"},
    "c2pa": {"mark"},
    "perth": {"mark"},
}
NOT_IN_LOWEST_LAYER = {"torch", "numpy"}
BANNED_PACKAGES = {"transformers", "torchaudio", "librosa", "einops", "accelerate"}
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


# --- Reading the sources ----------------------------------------------------------------------


@cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def import_nodes(source: str) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(parse(source))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(source: str) -> Iterator[str]:
    """Every imported module, including imports in functions and under TYPE_CHECKING."""
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, "relative imports hide the layer"
            module = node.module or ""
            # `from vivace import model` names a package, `from vivace.model import ops` a module
            is_root = module == "vivace"
            yield from (f"vivace.{alias.name}" for alias in node.names) if is_root else [module]


def find_cycle(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, the first one twice; empty if there are none."""
    graph = {name: set(imported_modules(source, sources)) for name, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imported_modules(source: str, known: Container[str]) -> Iterator[str]:
    """The `known` modules that a module imports, at any place."""
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (name if name in known else node.module for name in names)


def top_level(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def part_of(module: str, package: str) -> str:
    """The package or module directly in `package` that contains `module`; empty elsewhere."""
    rest = module.removeprefix(f"{package}.")
    return "" if rest == module else rest.split(".")[0]


def find_breaches_of_parts(name: str, source: str, known: Container[str]) -> list[str]:
    """The imports of the module `name` from parts of its own package that are not lower."""
    modules = imported_modules(source, known)
    return [f"{name} imports {module}" for module in modules if not may_import_part(name, module)]


def may_import_part(importer: str, imported: str) -> bool:
    for package, layers in PARTS.items():
        own, other = part_of(importer, package), part_of(imported, package)
        if own and other and own != other:
            return layers[other] < layers[own]
    return True


def find_breaches(name: str, source: str) -> list[str]:
    """The forbidden imports of the module `name`."""
    breaches = []
    for imported in imports(source):
        package = imported.split(".")[0]
        is_breach = (
            not may_import(top_level(name), top_level(imported))
            if package == "vivace"
            else not may_use_package(top_level(name), package)
        )
        if is_breach:
            breaches.append(f"{name} imports {imported}")
    return breaches


def may_import(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in WITHIN_LOWEST_LAYER:
        return True
    if importer in NARROW and imported not in NARROW[importer]:
        return False
    return imported in LAYERS and LAYERS[imported] < LAYERS[importer]


def may_use_package(importer: str, package: str) -> bool:
    if package in IMPORTERS and importer not in IMPORTERS[package]:
        return False
    return not (package in NOT_IN_LOWEST_LAYER and LAYERS[importer] == 0)


def find_dangers(source: str) -> list[str]:
    """Calls that could execute code from a file: pickle, eval, exec, torch.load of any object."""
    tree = parse(source)
    dangers = [name for name in imports(source) if name.split(".")[0] in PICKLES]
    for node in ast.walk(tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"):
            dangers.append(called)
        if called.endswith(("torch.load", "hub.load")) and not is_tensors_only(node):
            dangers.append(called)
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            dangers.append(node.arg)
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            dangers += [f"torch.{alias.name}" for alias in node.names if alias.name == "load"]
    return dangers


def is_tensors_only(call: ast.AST) -> bool:
    """Whether `torch.load` refuses everything but tensors and containers."""
    return isinstance(call, ast.Call) and any(
        word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in call.keywords
    )


def module_name(path: Path, root: Path = SOURCE.parent) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# --- Layers -----------------------------------------------------------------------------------


def test_source_walk_finds_modules() -> None:
    names = {module_name(path) for path in MODULES}
    assert {"vivace", "vivace.tts", "vivace.model.ops", "vivace.backends"} <= names


def test_every_module_has_a_layer() -> None:
    parts = {top_level(module_name(path)) for path in MODULES} - {""}
    assert parts <= LAYERS.keys()


def test_modules_import_only_lower_layers_and_own_package() -> None:
    sources = {module_name(path): path.read_text() for path in MODULES}
    del sources["vivace"]  # exports names of every layer lazily
    breaches = [
        breach for name, source in sources.items() for breach in find_breaches(name, source)
    ]
    assert breaches == []


@pytest.mark.parametrize("package", PARTS)
def test_every_part_of_a_package_has_a_layer(package: str) -> None:
    parts = {part_of(module_name(path), package) for path in MODULES} - {""}
    assert parts == PARTS[package].keys()


def test_parts_of_packages_import_only_lower_parts() -> None:
    sources = {module_name(path): path.read_text() for path in MODULES}
    breaches = [
        breach
        for name, source in sources.items()
        for breach in find_breaches_of_parts(name, source, sources)
    ]
    assert breaches == []


@pytest.mark.parametrize(
    "source",
    [
        "from vivace.serve.context import ServeContext",
        "from vivace.serve.speaking import speak",
        "from vivace.serve import context",
        "import vivace.serve.context",
        "def late():\n    from vivace.serve.speaking.speak import speak",
        "if TYPE_CHECKING:\n    from vivace.serve.context import ServeContext",
    ],
)
def test_import_of_higher_part_is_detected(source: str) -> None:
    known = {module_name(path) for path in MODULES}
    found = find_breaches_of_parts("vivace.serve.streams.active", source, known)
    assert len(found) == 1
    assert find_breaches_of_parts("vivace.serve.app", source, known) == []


def test_import_of_part_in_the_same_layer_is_detected() -> None:
    known = {module_name(path) for path in MODULES}
    source = "from vivace.engine.turns.worker import EngineWorker"
    assert len(find_breaches_of_parts("vivace.engine.streams.stream", source, known)) == 1
    assert find_breaches_of_parts("vivace.engine.turns.wait", source, known) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("vivace.prompt", "from vivace.tts import TTS"),
        ("vivace.prompt", "import vivace.backends.eager"),
        ("vivace.prompt", "from vivace import TTS"),
        ("vivace.prompt", "from vivace import engine"),
        ("vivace.prompt", "import vivace"),
        ("vivace.prompt", "def late():\n    from vivace.engine.engine import Engine"),
        ("vivace.prompt", "if TYPE_CHECKING:\n    from vivace.tts import TTS"),
        ("vivace.prompt", "try:\n    import vivace.cli.main\nexcept ImportError:\n    pass"),
        ("vivace.model.ops", "from vivace.sampling import draw"),
        ("vivace.audio.files", "from vivace.text.tokenizer import TextTokenizer"),
        ("vivace.checkpoint", "from vivace.voices.voice import Voice"),
        ("vivace.errors", "from vivace.speech import Usage"),
        ("vivace.compat", "from vivace.serve import app"),
        ("vivace.serve.app", "from vivace.engine.engine import Engine"),
        ("vivace.integrations.ray_serve", "from vivace.engine.engine import Engine"),
        ("vivace.prompt", "from vivace.utils import helper"),
        ("vivace.speech", "import torch"),
        ("vivace.errors", "from numpy.typing import NDArray"),
        ("vivace.tts", "from safetensors import safe_open"),
        ("vivace.model.codec", "def late():\n    import soundfile"),
        ("vivace.engine.engine", "import triton"),
    ],
)
def test_forbidden_import_is_detected(name: str, source: str) -> None:
    assert len(find_breaches(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("vivace.prompt", "from vivace.model.config import ModelConfig\nimport numpy"),
        ("vivace.model.talker", "from vivace.model import ops\nimport torch"),
        ("vivace.speech", "from vivace.errors import RequestError"),
        ("vivace.cli.say", "def late():\n    from vivace.tts import TTS"),
        ("vivace.serve.app", "import fastapi\nfrom vivace.audio.files import read_audio"),
    ],
)
def test_allowed_import_is_accepted(name: str, source: str) -> None:
    assert find_breaches(name, source) == []


def test_relative_import_is_rejected() -> None:
    with pytest.raises(AssertionError, match="relative"):
        find_breaches("vivace.prompt", "from .tts import TTS")


@pytest.mark.parametrize("folder", ["src", "benchmarks", "scripts", "recipes"])
def test_no_modules_import_each_other(folder: str) -> None:
    root = ROOT if folder == "recipes" else ROOT / folder
    files = sorted((ROOT / folder).rglob("*.py"))
    sources = {module_name(path, root): path.read_text() for path in files}
    sources.pop("vivace", None)
    assert len(sources) > 10
    assert find_cycle(sources) == []


@pytest.mark.parametrize(
    "late",
    [
        "from vivace.b import B",
        "import vivace.b",
        "from vivace import b",
        "def late():\n    from vivace.b import B",
        "if TYPE_CHECKING:\n    from vivace.b import B",
    ],
)
def test_cycle_is_detected(late: str) -> None:
    found = find_cycle({"vivace.a": late, "vivace.b": "from vivace.a import A"})
    assert sorted(set(found)) == ["vivace.a", "vivace.b"]
    assert find_cycle({"vivace.a": late, "vivace.b": ""}) == []


# --- Banned packages and calls ----------------------------------------------------------------


def test_no_module_imports_banned_package() -> None:
    used = {
        (module_name(path), name)
        for path in MODULES
        for name in imports(path.read_text())
        if name.split(".")[0] in BANNED_PACKAGES
    }
    assert used == set()


def test_no_module_executes_code_from_files() -> None:
    found = {module_name(path): find_dangers(path.read_text()) for path in MODULES}
    assert {name: dangers for name, dangers in found.items() if dangers} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def late():\n    from pickle import loads",
        "torch.load('model.pt')",
        "torch.load('model.pt', weights_only=False)",
        "import torch as t\nfrom torch import load",
        "torch.hub.load('org/name')",
        "eval('1 + 1')",
        "exec(text)",
        "compile(text, 'name', 'exec')",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_dangerous_call_is_detected(source: str) -> None:
    assert len(find_dangers(source)) == 1


def test_eval_method_and_loading_of_tensors_are_accepted() -> None:
    harmless = "model.eval()\nre.compile('x')\ntorch.load('model.pt', weights_only=True)"
    assert find_dangers(harmless) == []


# --- The package from outside -----------------------------------------------------------------

HEAVY = {"torch", "numpy", "soundfile", "soxr", "safetensors", "tokenizers", "huggingface_hub"}
WEIGH = f"""
import sys, time
began = time.process_time()
import vivace
print(time.process_time() - began, *sorted({HEAVY} & sys.modules.keys()))
"""


def weigh(code: str) -> tuple[float, list[str]]:
    """CPU seconds and heavy modules of a new Python process that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *heavy = done.stdout.split()
    return float(seconds), heavy


def test_package_import_is_quick_and_light() -> None:
    runs = [weigh(WEIGH) for _ in range(3)]
    assert [heavy for _, heavy in runs] == [[], [], []]
    assert min(seconds for seconds, _ in runs) < 0.2


@pytest.mark.ci
def test_heavy_import_is_detected() -> None:
    seconds, heavy = weigh(WEIGH.replace("import vivace\n", "import vivace, torch\n"))
    assert {"torch", "numpy"} <= set(heavy)
    assert seconds > 0.2


def test_public_class_does_not_import_torch() -> None:
    heavy = weigh(WEIGH.replace("import vivace\n", "import vivace\nvivace.TTS\n"))[1]
    assert "numpy" in heavy
    assert "torch" not in heavy


def test_errors_and_requests_import_no_heavy_package() -> None:
    light = "import vivace, vivace.errors, vivace.speech\nvivace.SamplingParams()\n"
    assert weigh(WEIGH.replace("import vivace\n", light))[1] == []


def test_audio_libraries_are_imported_on_demand() -> None:
    heavy = weigh(WEIGH.replace("import vivace\n", "import vivace\nvivace.TTS\n"))[1]
    assert set(heavy) & {"soundfile", "soxr"} == set()


PUBLIC = [
    "TTS",
    "Audio",
    "AudioChunk",
    "Lexicon",
    "SamplingParams",
    "TTSError",
    "Usage",
    "Voice",
    "Word",
    "__version__",
]


def test_public_names_are_complete() -> None:
    assert vivace.__all__ == PUBLIC
    assert dir(vivace) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC[:-1])
def test_public_name_is_defined_object(name: str) -> None:
    thing = getattr(vivace, name)
    assert thing.__name__ == name
    assert getattr(import_module(thing.__module__), name) is thing


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'vivace' has no attribute 'Speaker'"):
        _ = vivace.Speaker


def test_version_has_three_parts() -> None:
    parts = vivace.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts[:2])


def test_package_has_py_typed() -> None:
    assert (SOURCE / "py.typed").is_file()
