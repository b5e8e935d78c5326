"""Functions and classes of Python as JavaScript."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from javascript.expressions import Expressions
from javascript.scope import Scope, assigned_names, identifier
from javascript.values import write_value

_SKIPPED = (ast.Pass, ast.Assert)
_AUGMENTED = {ast.Add: "extend", ast.Sub: "subtract", ast.BitOr: "include"}


def write_function(node: ast.FunctionDef, scope: Scope, name: str) -> str:
    """A function of a module."""
    is_generator = "*" if _yields(node) else ""
    return f"function{is_generator} {name}{_parameters_and_body(node, scope, node.args.args)}"


def write_class(node: ast.ClassDef, kind: type, scope: Scope, name: str, base: str) -> str:
    """A class with its methods."""
    parts = []
    if dataclasses.is_dataclass(kind):
        parts.append(_dataclass_constructor(kind, scope, bool(base)))
    for one in node.body:
        path = f"{kind.__module__}.{kind.__qualname__}.{getattr(one, 'name', '')}"
        if scope.names.is_left_out(path):
            continue
        if isinstance(one, ast.FunctionDef) and (one.name == "__bool__" or one.name[:2] != "__"):
            parts.append(_method(one, scope))
        elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
            parts.append(_constructor(one, scope, bool(base)))
    body = "\n".join(parts)
    return f"class {name}{f' extends {base}' if base else ''} {{\n{body}\n}}"


def _method(node: ast.FunctionDef, scope: Scope) -> str:
    marks = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
    first, *others = node.args.args or [ast.arg("self")]
    if "classmethod" in marks:
        return f"static {node.name}{_parameters_and_body(node, scope.nested({'cls'}), others)}"
    inner = dataclasses.replace(scope, self_name=first.arg)
    written = _parameters_and_body(node, inner, others)
    name = "$bool" if node.name == "__bool__" else node.name
    if "property" in marks:
        return f"get {name}{written}"
    if "cached_property" in marks:
        return (
            f"${name}{written}\nget {name}() {{ return $py.keep(this, '{name}', this.${name}()); }}"
        )
    return f"{'*' * _yields(node)}{name}{written}"


def _constructor(node: ast.FunctionDef, scope: Scope, has_base: bool) -> str:
    inner = dataclasses.replace(scope, self_name="self")
    begin = "super(); " if has_base and "super()" not in ast.unparse(node) else ""
    return f"constructor{_parameters_and_body(node, inner, node.args.args[1:], begin)}"


def _dataclass_constructor(kind: Any, scope: Scope, has_base: bool) -> str:
    fields = dataclasses.fields(kind)
    names = [_with_default(one, scope) for one in fields]
    is_named = all(one.kw_only for one in fields) and bool(fields)
    parameters = f"{{{', '.join(names)}}} = {{}}" if is_named else ", ".join(names)
    own = ", ".join(one.name for one in fields)
    begin = "super(); " if has_base else ""
    body = f"{begin}Object.assign(this, {{{own}}}); this.__post_init__?.();"
    return f"constructor({parameters}) {{ {body} }}"


def _with_default(field: Any, scope: Scope) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name} = {write_value(field.default_factory(), scope.names.name_of)}"
    if field.default is not dataclasses.MISSING:
        return f"{field.name} = {write_value(field.default, scope.names.name_of)}"
    return str(field.name)


def _yields(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in ast.walk(node))


def _parameters_and_body(
    node: ast.FunctionDef, scope: Scope, positional: Sequence[ast.arg], begin: str = ""
) -> str:
    arguments = node.args
    names = {one.arg for one in (*positional, *arguments.kwonlyargs)}
    variables = assigned_names(node.body) - names
    inner = dataclasses.replace(scope, locals=scope.locals | names | variables, hoisted=set())
    statements = Statements(inner)
    body = "\n".join(map(statements.write, node.body))
    parameters = list(_parameters(statements, arguments, positional))
    hoisted = sorted(map(identifier, variables | inner.hoisted))
    declared = f"let {', '.join(hoisted)};\n" if hoisted else ""
    return f"({', '.join(parameters)}) {{\n{begin}{declared}{body}\n}}"


def _parameters(
    statements: Statements, arguments: ast.arguments, positional: Sequence[ast.arg]
) -> Iterator[str]:
    num_required = len(positional) - len(arguments.defaults)
    for number, one in enumerate(positional):
        default = arguments.defaults[number - num_required] if number >= num_required else None
        yield statements.parameter(one.arg, default)
    if arguments.vararg:
        yield f"...{identifier(arguments.vararg.arg)}"
    if arguments.kwonlyargs:
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        yield f"{{{', '.join(statements.parameter(one.arg, own) for one, own in pairs)}}} = {{}}"


class Statements(Expressions):
    """Writes the statements of one function."""

    def parameter(self, name: str, default: ast.expr | None) -> str:
        return identifier(name) + (f" = {self.write(default)}" if default else "")

    def write(self, node: ast.AST) -> str:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, _SKIPPED) or is_text:
            return ""
        return super().write(node)

    def _block(self, body: Sequence[ast.stmt]) -> str:
        return "{\n" + "\n".join(map(self.write, body)) + "\n}"

    def _Expr(self, node: ast.Expr) -> str:
        return f"{self.write(node.value)};"

    def _Return(self, node: ast.Return) -> str:
        return f"return {self.write(node.value) if node.value else 'null'};"

    def _Break(self, node: ast.Break) -> str:
        return "break;"

    def _Continue(self, node: ast.Continue) -> str:
        return "continue;"

    def _Raise(self, node: ast.Raise) -> str:
        raised = node.exc
        if raised is None:
            return "throw $error;"
        called = raised if isinstance(raised, ast.Call) else ast.Call(raised, [], [])
        return f"throw {self.write(called)};"

    def _If(self, node: ast.If) -> str:
        other = f" else {self._block(node.orelse)}" if node.orelse else ""
        return f"if ({self.condition(node.test)}) {self._block(node.body)}{other}"

    def _While(self, node: ast.While) -> str:
        if node.orelse:
            raise self.unsupported(node)
        return f"while ({self.condition(node.test)}) {self._block(node.body)}"

    def _For(self, node: ast.For) -> str:
        if node.orelse:
            raise self.unsupported(node)
        values = f"$py.each({self.write(node.iter)})"
        return f"for ({self.write(node.target)} of {values}) {self._block(node.body)}"

    def _Try(self, node: ast.Try) -> str:
        if node.orelse or node.finalbody or len(node.handlers) != 1:
            raise self.unsupported(node)
        (handler,) = node.handlers
        if handler.type is None:
            raise self.unsupported(node)
        test = f"if (!($error instanceof {self.write(handler.type)})) throw $error;"
        named = f"{identifier(handler.name)} = $error;" if handler.name else ""
        caught = f"catch ($error) {{\n{test}\n{named}\n{self._block(handler.body)}\n}}"
        return f"try {self._block(node.body)} {caught}"

    def _FunctionDef(self, node: ast.FunctionDef) -> str:
        inner = self.scope.nested(set())
        name = identifier(node.name)
        written = _parameters_and_body(node, inner, node.args.args)
        head, _, body = written.partition(") {\n")
        return f"{name} = {head}) => {{\n{body};"

    def _ImportFrom(self, node: ast.ImportFrom) -> str:
        raise self.unsupported(node)

    # -- assignments -------------------------------------------------------------------------

    def _Assign(self, node: ast.Assign) -> str:
        value = self.write(node.value)
        if len(node.targets) > 1 and not all(map(_is_plain, node.targets)):
            raise self.unsupported(node)
        if len(node.targets) == 1:
            return self._assign(node.targets[0], value)
        return " = ".join([*map(self._target, node.targets), value]) + ";"

    def _AnnAssign(self, node: ast.AnnAssign) -> str:
        return self._assign(node.target, self.write(node.value)) if node.value else ""

    def _assign(self, target: ast.expr, value: str) -> str:
        if isinstance(target, ast.Subscript):
            return self._set_item(target, value)
        if isinstance(target, (ast.Tuple, ast.List)):
            starred = [n for n, one in enumerate(target.elts) if isinstance(one, ast.Starred)]
            parts = [one.value if isinstance(one, ast.Starred) else one for one in target.elts]
            if starred:
                value = f"$py.gather({value}, {starred[0]}, {len(parts)})"
            return f"[{', '.join(map(self._target, parts))}] = {value};"
        return f"{self._target(target)} = {value};"

    def _target(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self.write(node.value)}.{node.attr}"
        if isinstance(node, ast.Name):
            return identifier(node.id)
        raise self.unsupported(node)

    def _set_item(self, target: ast.Subscript, value: str) -> str:
        container = self.write(target.value)
        if not isinstance(target.slice, ast.Slice):
            return f"$py.setItem({container}, {self.write(target.slice)}, {value});"
        ends = (target.slice.lower, target.slice.upper)
        written = ("null" if end is None else self.write(end) for end in ends)
        return f"$py.setSlice({', '.join([container, *written, value])});"

    def _AugAssign(self, node: ast.AugAssign) -> str:
        name = _AUGMENTED.get(type(node.op))
        if name is None:
            raise self.unsupported(node)
        value = f"$py.{name}({self._current(node.target)}, {self.write(node.value)})"
        return self._assign(node.target, value)

    def _current(self, target: ast.expr) -> str:
        if isinstance(target, ast.Subscript):
            return self.write(target)
        return self._target(target)


def _is_plain(target: ast.expr) -> bool:
    return isinstance(target, (ast.Name, ast.Attribute))


def parse(value: Any) -> ast.FunctionDef | ast.ClassDef:
    """The syntax tree of a function or class."""
    lines, start = inspect.getsourcelines(value)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, (ast.FunctionDef, ast.ClassDef))
    ast.increment_lineno(tree, start - 1)
    return tree
