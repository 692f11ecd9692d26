"""Rewrites a parsed template so that the control tokens that it writes come out marked.

Literals that are compared with data stay as they are: '</think>' in content must still find a
user's spelling. All others may end up in the output and are marked. Where a template compares its
own output, the two renderings differ, and `chat_template.py` notices.
"""

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from services.tokenizer.control_tokens import ControlMarks

# Methods and filters that search their subject for their arguments and do not write them out.
SEARCHING_METHODS = frozenset(
    {
        "split", "rsplit", "partition", "rpartition", "startswith", "endswith", "strip", "lstrip",
        "rstrip", "find", "rfind", "index", "rindex", "count", "removeprefix", "removesuffix",
        "get", "pop",
    }
)  # fmt: skip
SEARCHING_FILTERS = frozenset(
    {
        "trim", "select", "reject", "selectattr", "rejectattr", "map", "groupby", "sort", "attr",
        "unique", "min", "max", "dictsort",
    }
)  # fmt: skip


class LiteralMarker(NodeTransformer):
    """Marks literals in place: `LiteralMarker(marks).visit(tree)`."""

    def __init__(self, marks: ControlMarks) -> None:
        self._marks = marks
        self._num_comparisons = 0

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        node.data = self._marks.mark_literal(node.data)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, str) and not self._num_comparisons:
            node.value = self._marks.mark_literal(node.value)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self._visit_compared(node, "expr", "ops")
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self._visit_compared(node, "node", "args", "kwargs")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self._visit(node, "node")
        self._visit_compared(node, "arg")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self._visit_compared(node, "key")
        self._visit(node, "value")
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
        self._visit(node, "node")
        self._visit_arguments(node, method, SEARCHING_METHODS)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self._visit(node, "node")
        self._visit_arguments(node, node.name, SEARCHING_FILTERS)
        return node

    def _visit_arguments(self, node: Any, name: str, searching: frozenset[str]) -> None:
        if name in searching:
            self._visit_compared(node, "args", "kwargs")
        elif name == "replace" and node.args:
            # replace(searched, written)
            self._num_comparisons += 1
            self.visit(node.args[0])
            self._num_comparisons -= 1
            for argument in node.args[1:]:
                self.visit(argument)
        else:
            self._visit(node, "args", "kwargs")

    def _visit_compared(self, node: nodes.Node, *fields: str) -> None:
        self._num_comparisons += 1
        self._visit(node, *fields)
        self._num_comparisons -= 1

    def _visit(self, node: nodes.Node, *fields: str) -> None:
        for field in fields:
            value = getattr(node, field)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, nodes.Node):
                    self.visit(child)
