#!/usr/bin/env python3
"""Writes tests/models/tasks: a graph with an input `task_id`, one number for a whole run, as jina-embeddings-v3 has it. Its output is the
token's id and a hundred times the task.

It needs what generate.py needs. Run it after a change here and commit the file:

    .tools/python/bin/python tests/models/tasks.py
"""

from pathlib import Path

from onnx import TensorProto, checker, helper, save

FILE = Path(__file__).resolve().parent / "tasks" / "model.onnx"


def main():
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["task_id"], ["task"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["task", "hundred"], ["shift"]),
        helper.make_node("Add", ["ids", "shift"], ["y"]),
    ]
    tokens = ["batch", "length"]
    graph = helper.make_graph(
        nodes, "tasks",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens), helper.make_tensor_value_info("task_id", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, tokens)],
        [helper.make_tensor("hundred", TensorProto.FLOAT, [], [100.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    FILE.parent.mkdir(exist_ok=True)
    save(model, FILE)


if __name__ == "__main__":
    main()
