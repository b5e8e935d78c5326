"""Expressions of Python as JavaScript."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from javascript.errors import UnsupportedError
from javascript.scope import Parameters, Scope, arrange_unknown, identifier
from javascript.values import write_constant

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Mod: "modulo",
    ast.FloorDiv: "floorDivide", ast.Pow: "power", ast.BitOr: "union",
}  # fmt: skip
_ORDER: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
# Methods of Python's types; `$py.call` looks at the type of the object.
_OF_TYPES = frozenset(
    name for kind in (str, list, dict, set) for name in dir(kind) if not name.startswith("_")
) | {"popleft", "appendleft"}
_OF_RE = ("fullmatch", "match", "search", "sub", "findall", "finditer", "split")


class Expressions:
    """Writes the expressions of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def write(self, node: ast.AST) -> str:
        writer: Callable[[Any], str] | None = getattr(self, f"_{type(node).__name__}", None)
        if writer is None:
            raise self.unsupported(node)
        return writer(node)

    def condition(self, node: ast.expr) -> str:
        """An expression that JavaScript takes for true where Python does."""
        if isinstance(node, ast.BoolOp):
            sign = " && " if isinstance(node.op, ast.And) else " || "
            return f"({sign.join(map(self.condition, node.values))})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"!{self.condition(node.operand)}"
        written = self.write(node)
        return written if isinstance(node, ast.Compare) else f"$py.truth({written})"

    def unsupported(self, node: ast.AST) -> UnsupportedError:
        return UnsupportedError.at(node, self.scope.module.__name__)

    # -- names and constants -----------------------------------------------------------------

    def _Constant(self, node: ast.Constant) -> str:
        return write_constant(node.value)

    def _Name(self, node: ast.Name) -> str:
        scope = self.scope
        if node.id == scope.self_name:
            return "this"
        if node.id in scope.locals:
            return identifier(node.id)
        if scope.is_builtin(node.id):
            return f"$py.{node.id}"
        try:
            value = scope.find(node.id)
        except KeyError:
            raise self.unsupported(node) from None
        if isinstance(value, ModuleType):
            return f"$py.{value.__name__}"
        return scope.names.name_of(value)

    def _Attribute(self, node: ast.Attribute) -> str:
        target = self.write(node.value)
        is_method = bool(self.scope.names.methods(node.attr)) or node.attr in _OF_TYPES | {*_OF_RE}
        if is_method and not self._is_provided(node.value):
            return f"$py.bound({target}, {json.dumps(node.attr)})"
        return f"{target}.{node.attr}"

    def _JoinedStr(self, node: ast.JoinedStr) -> str:
        return f"`{''.join(map(self._template, node.values))}`"

    def _template(self, part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            text = write_constant(part.value)[1:-1].replace('\\"', '"')
            return text.replace("`", "\\`").replace("${", "\\${")
        if not isinstance(part, ast.FormattedValue):
            raise self.unsupported(part)
        written = self.write(part.value)
        if part.format_spec is not None:
            return f"${{$py.format({written}, {self.write(part.format_spec)})}}"
        return f"${{{f'$py.repr({written})' if part.conversion == ord('r') else written}}}"

    # -- operators ---------------------------------------------------------------------------

    def _BoolOp(self, node: ast.BoolOp) -> str:
        name = "and" if isinstance(node.op, ast.And) else "or"
        first, *others = map(self.write, node.values)
        return f"$py.{name}({', '.join([first, *(f'() => {one}' for one in others)])})"

    def _UnaryOp(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.Not):
            return self.condition(node)
        if isinstance(node.op, ast.USub):
            return f"-{self.write(node.operand)}"
        raise self.unsupported(node)

    def _BinOp(self, node: ast.BinOp) -> str:
        name = _BINARY.get(type(node.op))
        if name is None:
            raise self.unsupported(node)
        return f"$py.{name}({self.write(node.left)}, {self.write(node.right)})"

    def _IfExp(self, node: ast.IfExp) -> str:
        parts = self.condition(node.test), self.write(node.body), self.write(node.orelse)
        return "({} ? {} : {})".format(*parts)

    def _NamedExpr(self, node: ast.NamedExpr) -> str:
        return f"({identifier(node.target.id)} = {self.write(node.value)})"

    def _Compare(self, node: ast.Compare) -> str:
        """A chain such as `a < b < c` keeps the value of `b`."""
        parts, left = [], self.write(node.left)
        for number, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            own = self.write(right)
            if number < len(node.ops) - 1:
                kept = f"$kept{len(self.scope.hoisted)}"
                self.scope.hoisted.add(kept)
                parts.append(self._compare(left, operator, f"({kept} = {own})", node))
                left = kept
            else:
                parts.append(self._compare(left, operator, own, node))
        return f"({' && '.join(parts)})"

    def _compare(self, left: str, operator: ast.cmpop, right: str, node: ast.Compare) -> str:
        if isinstance(operator, (ast.Is, ast.IsNot)):
            sign = "!" if isinstance(operator, ast.IsNot) else "="
            return f"{left} {sign}{'=' if 'null' in (left, right) else '=='} {right}"
        if isinstance(operator, (ast.In, ast.NotIn)):
            return f"{'!' * isinstance(operator, ast.NotIn)}$py.contains({right}, {left})"
        if isinstance(operator, (ast.Eq, ast.NotEq)):
            is_plain = any(text[:1] in '"0123456789' for text in (left, right))
            sign = "!" if isinstance(operator, ast.NotEq) else ""
            return (
                f"{left} {sign or '='}== {right}"
                if is_plain
                else f"{sign}$py.equal({left}, {right})"
            )
        if ".keys" in left or "set(" in right.lower():
            return f"$py.compare({left}, {json.dumps(_ORDER[type(operator)])}, {right})"
        return f"{left} {_ORDER[type(operator)]} {right}"

    # -- containers --------------------------------------------------------------------------

    def _items(self, nodes: Sequence[ast.expr]) -> str:
        return ", ".join(map(self.write, nodes))

    def _List(self, node: ast.List) -> str:
        return f"[{self._items(node.elts)}]"

    def _Tuple(self, node: ast.Tuple) -> str:
        return f"[{self._items(node.elts)}]"

    def _Set(self, node: ast.Set) -> str:
        return f"new Set([{self._items(node.elts)}])"

    def _Dict(self, node: ast.Dict) -> str:
        pairs = zip(node.keys, node.values, strict=True)
        parts = (
            f"...{self.write(value)}"
            if key is None
            else f"[{self.write(key)}, {self.write(value)}]"
            for key, value in pairs
        )
        return f"new Map([{', '.join(parts)}])"

    def _Starred(self, node: ast.Starred) -> str:
        return f"...$py.each({self.write(node.value)})"

    def _Subscript(self, node: ast.Subscript) -> str:
        target = self.write(node.value)
        if not isinstance(node.slice, ast.Slice):
            return f"$py.item({target}, {self.write(node.slice)})"
        ends = [node.slice.lower, node.slice.upper]
        ends += [] if node.slice.step is None else [node.slice.step]
        written = ("null" if end is None else self.write(end) for end in ends)
        return f"$py.slice({', '.join([target, *written])})"

    def _ListComp(self, node: ast.ListComp) -> str:
        return self._comprehension(node.generators, node.elt)

    _GeneratorExp = _ListComp  # its values are computed at once

    def _SetComp(self, node: ast.SetComp) -> str:
        return f"new Set({self._ListComp(ast.ListComp(node.elt, node.generators))})"

    def _DictComp(self, node: ast.DictComp) -> str:
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return f"new Map({self._ListComp(ast.ListComp(pair, node.generators))})"

    def _comprehension(self, loops: Sequence[ast.comprehension], element: ast.expr) -> str:
        inner, begin = self, ""
        for loop in loops:
            values = inner.write(loop.iter)
            names = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
            inner = Expressions(inner.scope.nested(names))
            begin += f"for (const {inner.write(loop.target)} of $py.each({values})) "
            begin += "".join(f"if ({inner.condition(test)}) " for test in loop.ifs)
        body = f"{begin}$out.push({inner.write(element)});"
        return f"(() => {{ const $out = []; {body} return $out; }})()"

    def _Lambda(self, node: ast.Lambda) -> str:
        names = [one.arg for one in node.args.args]
        inner = Expressions(self.scope.nested(set(names)))
        return f"(({', '.join(map(identifier, names))}) => {inner.write(node.body)})"

    # -- calls -------------------------------------------------------------------------------

    def _Yield(self, node: ast.Yield) -> str:
        return f"yield {self.write(node.value) if node.value else 'null'}"

    def _Call(self, node: ast.Call) -> str:
        if any(keyword.arg is None for keyword in node.keywords):
            raise self.unsupported(node)
        given = [self.write(one) for one in node.args]
        keywords = {str(one.arg): self.write(one.value) for one in node.keywords}
        function = node.func
        if isinstance(function, ast.Name):
            return self._call_name(function, given, keywords)
        if isinstance(function, ast.Attribute):
            return self._call_method(node, function, given, keywords)
        if isinstance(function, ast.Subscript) and not given:  # `list[str]()`
            return f"{self.write(function.value)}()"
        raise self.unsupported(node)

    def _call_name(self, name: ast.Name, given: list[str], keywords: dict[str, str]) -> str:
        scope, written = self.scope, self._Name(name)
        if written.startswith("$py."):
            return f"{written}({', '.join(arrange_unknown(given, keywords))})"
        if name.id in scope.locals:
            arguments = ", ".join(arrange_unknown(given, keywords))
            if name.id == "cls":
                return f"new this({arguments})"
            return f"$py.invoke({', '.join(filter(None, [written, arguments]))})"
        function = scope.find(name.id)
        is_plain_error = getattr(function, "__init__", None) is Exception.__init__
        if is_plain_error or getattr(function, "__init__", None) is ValueError.__init__:
            return f"new {written}({', '.join(given)})"
        arguments = ", ".join(Parameters.of(function).arrange(given, keywords))
        return f"{'new ' * isinstance(function, type)}{written}({arguments})"

    def _call_method(
        self, node: ast.Call, method: ast.Attribute, given: list[str], keywords: dict[str, str]
    ) -> str:
        name, target = method.attr, method.value
        if isinstance(target, ast.Call) and ast.unparse(target.func) == "super":
            called = "super" if name == "__init__" else f"super.{name}"
            return f"{called}({', '.join(arrange_unknown(given, keywords))})"
        if isinstance(target, ast.Name) and self._is_module(target, re):
            return self._call_re(node, name, given)
        written = self.write(target)
        own = vars(self.scope.owner).get(name) if written == "this" and self.scope.owner else None
        known = [own] if own else self.scope.names.methods(name)
        arguments = ", ".join(self._arrange(known, given, keywords, node))
        if name in _OF_TYPES and written != "this" and not self._is_provided(target):
            return f"$py.call({', '.join(filter(None, [json.dumps(name), written, arguments]))})"
        return f"{written}.{name}({arguments})"

    def _arrange(
        self, methods: Sequence[Any], given: list[str], keywords: dict[str, str], node: ast.Call
    ) -> list[str]:
        """Arguments of a method; keywords need a method that all classes declare alike."""
        if not keywords:
            return given
        known = {Parameters.of(one, is_method=True) for one in methods}
        fitting = [one for one in known if {*one.positional, *one.keyword_only} >= keywords.keys()]
        if not fitting:
            return arrange_unknown(given, keywords)
        arranged = {tuple(one.arrange(given, keywords)) for one in fitting}
        if len(arranged) > 1:
            raise self.unsupported(node)
        return list(arranged.pop())

    def _is_provided(self, target: ast.expr) -> bool:
        """Whether the expression is a type or module of Python, such as `str` in `str.isalnum`."""
        return isinstance(target, ast.Name) and self._Name(target).startswith("$py.")

    def _is_module(self, target: ast.Name, module: ModuleType) -> bool:
        return (
            target.id not in self.scope.locals and vars(self.scope.module).get(target.id) is module
        )

    def _call_re(self, node: ast.Call, name: str, given: list[str]) -> str:
        """`re.sub(pattern, …)` with a constant pattern; `re.compile` in a function."""
        source = ast.Expression(node.args[0])
        try:
            pattern = re.compile(
                eval(compile(source, "<pattern>", "eval"), vars(self.scope.module))
            )
        except NameError:
            raise self.unsupported(node) from None
        written = self.scope.names.name_of(pattern)
        if name == "compile":
            return written
        if name not in _OF_RE:
            raise self.unsupported(node)
        return f"{written}.{name}({', '.join(given[1:])})"
